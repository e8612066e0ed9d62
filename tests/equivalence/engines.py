"""One integer network on every engine there is: do all answers agree bit for bit?"""

import importlib.util
import os
import subprocess
from pathlib import Path

import numpy as np
from integer_oracle import run_oracle
from random_networks import to_proven_integers

import lbq
from lbq.cli.samples import open_samples, sample_batches
from lbq.formats import OnnxRunner, export_onnx
from lbq.kernels import native_scan as kernels
from lbq.runtime.run import BACKENDS

_READER = Path(__file__).parents[2] / "examples" / "numpy_reader.py"


def answers(network, inputs, folder, *, with_oracle=True):
    """Return the integers of every engine by name, all outputs; folder is for the files.

    LBQ_RUN names lbq-run, if it takes part: its interpreter and its engine.
    """
    backends = [*BACKENDS, "native"] if kernels.isa() else BACKENDS
    found = {name: _flat(lbq.run_network(network, inputs, backend=name)) for name in backends}
    if with_oracle:
        values = run_oracle(network, inputs)
        found["int64 oracle"] = _flat([values[path] for path in network.outputs])
    bundle = folder / "net.lbq"
    lbq.save_network(network, bundle)
    again = lbq.load_network(bundle)
    found["bundle"] = _flat(lbq.run_network(again, inputs, backend="dense"))
    reader = _load_reader()
    found["numpy reader"] = _flat(reader.run(reader.read_bundle(str(bundle)), inputs.numpy()))
    if "LBQ_RUN" in os.environ:
        found |= by_lbq_run(network, inputs, bundle)
    for style in ("exact", "fast"):
        path = folder / f"{style}.onnx"
        try:
            export_onnx(network, path, style=style)
        except lbq.LBQError:
            continue  # refused: "fast" where float32 rounds, "exact" where a distance needs 33 bits
        for engine in ("onnxruntime", "openvino"):
            found[f"{engine}, {style}"] = _flat(OnnxRunner(path, engine=engine)(inputs.numpy()))
    return found


def _flat(outputs):
    """Return the integers of all outputs, one behind the other."""
    several = outputs if isinstance(outputs, tuple | list) else [outputs]
    return np.concatenate([np.asarray(output).astype(np.int64).reshape(-1) for output in several])


def by_lbq_run(network, inputs, bundle):
    """Run the C reader's interpreter and its engine on raw samples."""
    samples = inputs.transpose(0, 1).contiguous() if network.takes_frames else inputs
    ends = [network.operators[path].over_time for path in network.outputs]
    steps = network.timesteps if ends[0] == "none" else 1
    sizes = [network.values()[path].size for path in network.outputs]
    found = {}
    for isa in ("interpreter", "scalar"):
        line = [os.environ["LBQ_RUN"], bundle, "-", "--isa", isa]
        done = subprocess.run(
            line, input=samples.numpy().tobytes(), capture_output=True, check=True
        )
        header, *lines = done.stdout.decode().splitlines()
        rows = np.loadtxt(lines, delimiter=",", dtype=np.int64, ndmin=2)
        names = header.split(",")
        first = next(i for i, name in enumerate(names) if name.startswith("class"))
        kept = [i for i in range(first, len(names)) if not names[i].startswith("class")]
        by_sample = rows[:, kept].reshape(-1, steps, sum(sizes)).transpose(1, 0, 2)  # [T, B, n]
        found[f"lbq-run, {isa}"] = _flat(np.split(by_sample, np.cumsum(sizes)[:-1], axis=2))
    return found


def disagreements(found):
    """Return how many integers of each engine differ from the dense backend's."""
    expected = found["dense"].astype(np.int64)
    wrong = {}
    for name, integers in found.items():
        assert integers.shape == expected.shape, name
        wrong[name] = int((integers.astype(np.int64) != expected).sum())
    return wrong


def _load_reader():
    spec = importlib.util.spec_from_file_location("numpy_reader", _READER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def integer_network(model, inputs, *, bits, calibrate=False, batch_axis=None):
    """Lower a random network and turn it into integers, of 8 bits if the proof refuses 16."""
    images = (inputs.float() / 255 - 0.4) / 0.25
    lowered = lbq.lower(model, images, batch_axis=batch_axis)
    channels = lowered.input_shape[0]
    pixels = lbq.Pixels(mean=[0.4] * channels, std=[0.25] * channels)
    given = images if calibrate else None
    return to_proven_integers(lowered, bits=bits, pixels=pixels, calibration=given)


def cifar10_bytes(data, count, recipe):
    """Return images of the test set as bytes, and normalised."""
    opened = open_samples(recipe, source=str(data), cache=Path("~/.cache/lbq"))
    samples = next(sample_batches(opened, limit=count, batch=count))
    return samples.raw, samples.real
