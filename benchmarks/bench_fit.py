"""The cost of ``lbq.fit`` against a hand-written loop: same network, data set, batch, optimizer.

    python benchmarks/bench_fit.py --rounds 7 --out benchmarks/results/fit.json

Both train the pocket network (ResNet-20 at an eighth of its width) on one thread, in turns, in one
process. The data set notes when samples are asked for, so a step is timed from batch to batch in
both, without set-up, evaluation and the last checkpoint. Wall time includes the time that ``fit``
waits; CPU time varies less on a shared machine. Both are recorded.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from measure import write_record
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import lbq
from lbq.train import OptimConfig


class Images(Dataset):
    """Random images with plain augmentation; notes the time of every request."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(count, 3, 32, 32, generator=generator)
        self.times: list[tuple[float, float]] = []

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.times.append((time.perf_counter(), time.process_time()))
        image = self.images[index]
        return image.flip(-1) if torch.rand(()) < 0.5 else image, index % 10


def network() -> torch.nn.Module:
    """Build the pocket network."""
    torch.manual_seed(0)
    return lbq.resnet20(10, width=0.125, timesteps=2, fused=True)


def by_hand(data: Images, *, batch: int) -> None:
    """Train an epoch like most scripts."""
    model = network().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    loader = DataLoader(data, batch_size=batch, shuffle=True, drop_last=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(loader))
    running_loss = correct = 0.0
    for images, classes in loader:
        logits = model(images.to(memory_format=torch.channels_last))
        loss = F.cross_entropy(logits, classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        running_loss += loss.item()
        correct += (logits.argmax(1) == classes).sum().item()


def by_fit(data: Images, *, batch: int) -> None:
    """Train an epoch with ``fit``."""
    config = lbq.TrainConfig(epochs=1, batch=batch, optim=OptimConfig(lr=0.1), channels_last=True)
    with tempfile.TemporaryDirectory() as out:
        lbq.fit(network(), data, None, config, out, options=lbq.RunOptions(threads=1))


def seconds_per_step(data: Images, *, batch: int) -> tuple[float, float]:
    """Return the mean wall and CPU time of a step, from the second batch to the last one."""
    _, second, *_, last = data.times[::batch]
    steps = len(data.times) // batch - 2
    return (last[0] - second[0]) / steps, (last[1] - second[1]) / steps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[tuple[float, float]]] = {"by hand": [], "fit": []}
    for round_ in range(arguments.rounds + 1):
        for name, train in (("by hand", by_hand), ("fit", by_fit)):
            data = Images(arguments.batch * arguments.steps)
            train(data, batch=arguments.batch)
            if round_:  # the first one warms up
                found[name].append(seconds_per_step(data, batch=arguments.batch))
    record: dict[str, object] = {
        "processor": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "batch": arguments.batch,
        "steps": arguments.steps,
    }
    for index, clock in enumerate(("wall", "cpu")):
        times = {name: [pair[index] for pair in pairs] for name, pairs in found.items()}
        ratios = [fit / hand for hand, fit in zip(times["by hand"], times["fit"], strict=True)]
        record[clock] = {
            "seconds_per_step": {name: statistics.median(all_) for name, all_ in times.items()},
            "ratio": statistics.median(ratios),
            "ratios": [round(ratio, 4) for ratio in ratios],
        }
    print(json.dumps(record, indent=1))
    write_record(arguments.out, record)


if __name__ == "__main__":
    main()
