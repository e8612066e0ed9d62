"""Process groups, devices and launching workers; nothing else imports torch.distributed.

A single process needs no process group. Otherwise every process was started by torchrun, or by
:func:`launch_workers`, and reads its rank from the environment. CPUs use gloo, GPUs NCCL.
"""

import inspect
import os
import signal
import sys
import uuid
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

from lbq.errors import RunError
from lbq.train.supervisor import PARENT_PID

_CONNECTION_ERRORS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
)
"""Messages of gloo when a peer is gone."""

_KEEP_BUFFERS: dict[str, Any] = (
    {"forward_sync_buffers": False}  # renamed in torch 2.13
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
    else {"broadcast_buffers": False}
)


@dataclass(frozen=True)
class ProcessGroup:
    """Rank and device of this process, and its collectives.

    Methods that take a tensor are collectives: all processes call them in the same order.
    """

    rank: int
    size: int
    device: torch.device
    _wrapped: list[DistributedDataParallel] = field(default_factory=list[DistributedDataParallel])

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0: only this process writes files and logs."""
        return self.rank == 0

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its sum over all processes; the bits are the same on each of them."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Stack the tensors of all processes, in the order of ranks: ``[size, ...]``."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        rows = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(rows, tensor.contiguous())
        return torch.stack(rows)

    def broadcast_(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by that of the first process."""
        if self.size > 1:
            dense = tensor.to(self.device).contiguous()  # AdamW keeps its step count on the CPU
            dist.broadcast(dense, src=0)
            if dense is not tensor:
                tensor.copy_(dense)
        return tensor

    def broadcast_text(self, text: str | None) -> str:
        """Return the text of the first process on every process, without pickling."""
        data = (text or "").encode() if self.is_first else b""
        size = int(self.broadcast_(torch.tensor([len(data)], device=self.device)).item())
        characters = torch.tensor(list(data) if self.is_first else [0] * size, dtype=torch.uint8)
        return bytes(self.broadcast_(characters.to(self.device)).cpu().tolist()).decode()

    def barrier(self) -> None:
        """Wait until every process has reached this call."""
        self.all_reduce_(torch.zeros(1, device=self.device))

    def wrap(self, module: nn.Module) -> nn.Module:
        """Wrap a module in DistributedDataParallel.

        Its buffers are not broadcast: TrainStep averages the batch norm statistics.
        """
        if self.size == 1:
            return module
        wrapped = DistributedDataParallel(
            module,
            device_ids=None if self.device.type == "cpu" else [self.device],
            gradient_as_bucket_view=True,
            **_KEEP_BUFFERS,
        )
        self._wrapped.append(wrapped)
        return wrapped

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """Skip the gradient all-reduce of a wrapped module inside the ``with`` block."""
        if isinstance(module, DistributedDataParallel):
            return module.no_sync()
        return nullcontext()

    def destroy(self) -> None:
        """Destroy the process group.

        The DDP wrappers release it first: if a wrapper were its last owner, the destructor would
        hold the GIL while it waits for a gloo thread that needs the GIL (docs/log.md).
        """
        for wrapped in self._wrapped:
            del wrapped.logger, wrapped.reducer
        dist.destroy_process_group()


@contextmanager
def open_process_group(
    device: str = "auto", *, timeout_s: float = 300.0
) -> Generator[ProcessGroup]:
    """Join the processes of a torchrun job, or return a group of one.

    Args:
        device: "auto" (a GPU if there is one), or a torch device name.
        timeout_s: timeout of collectives; torch's default is half an hour.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = choose_device(device, local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if size == 1:
        yield ProcessGroup(0, 1, chosen)
        return
    if os.environ.get("LOCAL_WORLD_SIZE") == str(size):  # one machine: use the loopback interface
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if chosen.type == "cuda" else "gloo",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
        device_id=chosen if chosen.type == "cuda" else None,
    )
    group = ProcessGroup(rank, size, chosen)
    yield group
    group.destroy()  # not after an error: it could wait for a dead process


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device of a name for the n-th process of this machine."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RunError(f"there is no device {name!r}; use cpu, cuda, cuda:1 or auto") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RunError(f"{name} was requested, but torch finds no GPU here; `lbq doctor` shows why")
    if name != "cuda":
        return device
    if local_rank >= torch.cuda.device_count():
        raise RunError(
            f"this machine has {torch.cuda.device_count()} GPUs, too few for process {local_rank} "
            f"(counted from 0); start fewer with --devices"
        )
    return torch.device("cuda", local_rank)


def is_inside_launcher() -> bool:
    """Return whether torchrun or :func:`launch_workers` started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def available_backends() -> list[str]:
    """List the available backends of torch.distributed."""
    known = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available}
    return [name for name, is_there in known.items() if dist.is_available() and is_there()]


def is_first_process() -> bool:
    """Return whether this process has rank 0; known before the group is opened."""
    return os.environ.get("RANK", "0") == "0"


def is_connection_error(error: BaseException) -> bool:
    """Return whether an error means that a peer is gone, and so is not the first failure."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _CONNECTION_ERRORS)
    )


def launch_workers(arguments: Sequence[str], *, devices: int) -> int:
    """Run ``python <arguments>`` once per device on this machine, like torchrun.

    Without restarts in place: they recovered 13 of 16 killed workers, the supervisor all of them.
    Signals are forwarded to the workers, which have 30 seconds to save.

    Returns:
        The exit code: 0, that of the worker that failed first, or 128 + signal.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        shutdown_timeout=30,
        signals_to_handle="SIGQUIT",  # others: _raise_once_on_signals
    )
    threads = max(1, (os.cpu_count() or 1) // devices)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ[PARENT_PID] = str(os.getpid())
    _raise_once_on_signals()
    try:
        elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        code = failure.exitcode
        return code if code >= 0 else 128 - code
    except SignalException as stop:
        return 128 + int(stop.sigval)
    return 0


def _raise_once_on_signals() -> None:
    """Turn the first SIGTERM or SIGINT into torchrun's exception and ignore the rest.

    A scheduler signals every process of a job and a supervisor forwards its signal: at the second
    one torchrun would abandon its workers.
    """

    def handle(number: int, frame: FrameType | None) -> NoReturn:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise SignalException(f"signal {number}", sigval=signal.Signals(number))

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, handle)
