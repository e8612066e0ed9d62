"""One integer network on every engine there is: do all answers agree bit for bit?"""

import importlib.util
from pathlib import Path

import numpy as np
from integer_oracle import run_oracle
from random_networks import to_proven_integers

import lbq
from lbq.cli.samples import open_samples, sample_batches
from lbq.deploy.run import BACKENDS
from lbq.formats import OnnxRunner, export_onnx
from lbq.kernels import native_scan as kernels

_READER = Path(__file__).parents[2] / "examples" / "numpy_reader.py"


def answers(network, inputs, folder, *, with_oracle=True):
    """Return the integers of every engine by name; folder is for the files."""
    backends = [*BACKENDS, "native"] if kernels.isa() else BACKENDS
    found = {name: lbq.run_network(network, inputs, backend=name).numpy() for name in backends}
    if with_oracle:
        found["int64 oracle"] = run_oracle(network, inputs)[network.plan[-1].path]
    bundle = folder / "net.lbq"
    lbq.save_network(network, bundle)
    found["bundle"] = lbq.run_network(lbq.load_network(bundle), inputs, backend="dense").numpy()
    reader = _load_reader()
    found["numpy reader"] = reader.run(reader.read_bundle(str(bundle)), inputs.numpy())
    for style in ("exact", "fast"):
        path = folder / f"{style}.onnx"
        try:
            export_onnx(network, path, style=style)
        except lbq.LBQError:
            continue  # refused: "fast" where float32 rounds, "exact" where a distance needs 33 bits
        for engine in ("onnxruntime", "openvino"):
            found[f"{engine}, {style}"] = OnnxRunner(path, engine=engine)(inputs.numpy())
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


def integer_network(model, inputs, *, bits, calibrate=False):
    """Lower a random network and turn it into integers, of 8 bits if the proof refuses 16."""
    pixels = lbq.Pixels(mean=[0.4] * model.channels, std=[0.25] * model.channels)
    images = (inputs.float() / 255 - 0.4) / 0.25
    lowered = lbq.lower(model, images)
    given = images if calibrate else None
    return to_proven_integers(lowered, bits=bits, pixels=pixels, calibration=given)


def cifar10_bytes(data, count, recipe):
    """Return images of the test set as bytes, and normalised."""
    opened = open_samples(recipe, source=str(data), cache=Path("~/.cache/lbq"))
    samples = next(sample_batches(opened, limit=count, batch=count))
    return samples.raw, samples.real
