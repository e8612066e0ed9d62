import json
import sys

import h5py
import nir
import numpy as np
import pytest
import torch
from bundles import tiny_network
from nir_reference import Literal
from onnx_networks import stir

import lbq
from lbq import neurons
from lbq.errors import FormatError, LoweringError
from lbq.formats import nir as nir_format
from lbq.formats.metadata import network_metadata, write_metadata
from lbq.formats.nir import export_nir, import_nir
from lbq.graph.graph import INPUT, GraphBuilder
from lbq.graph.operators import (
    Merge,
    Offset,
    Pool,
    Readout,
    RealNeuron,
    Rearrange,
    Repeat,
    Slice,
    Synapse,
    Upsample,
)
from lbq.lowering import lower, to_fixed_point
from lbq.preprocessing import Pixels
from lbq.runtime import run_network

NEURONS = {
    "LBQ": lambda c: lbq.BurstLIF(5, step=lbq.LearnedStep(0.4)),
    "LBQ per channel": lambda c: lbq.BurstLIF(5, step=lbq.LearnedStep(0.4, channels=c)),
    "no leak, level reset": lambda c: lbq.BurstLIF(3, step=0.3, decay=1.0, reset_mode="level"),
    "awkward leak, no reset": lambda c: lbq.BurstLIF(3, step=0.3, tau=3.0, reset_mode="none"),
    "no memory": lambda c: lbq.BurstLIF(4, step=0.4, decay=0.0),
    "binary": lambda c: neurons.BinaryLIF(threshold=0.5),
    "I-LIF": lambda c: neurons.IntegerLIF(),
}  # fmt: skip


def lowered(build=lbq.resnet20, *, timesteps=3, dtype=torch.float64, **options):
    torch.manual_seed(1)
    model = stir(build(10, timesteps=timesteps, width=1 / 32, **options)).to(dtype)
    shape = (timesteps, 4, 2, 8, 8) if build.form == "events" else (4, 3, 8, 8)
    inputs = torch.randn(shape, dtype=dtype)
    return lower(model, inputs), inputs


def watched(network, inputs):
    levels = {}
    logits = run_network(
        network, inputs, watch=lambda path, t, level: levels.setdefault((path, t), level)
    )
    return logits, levels


CASES = {
    **{name: {"neuron": neuron} for name, neuron in NEURONS.items()},
    "one timestep": {"timesteps": 1},
    "sew": {"block": "sew"},
    "ms": {"block": "ms"},
    "events": {"build": lbq.resnet19, "timesteps": 2},
    "float32": {"dtype": torch.float32},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_there_and_back_no_level_and_no_logit_changes(case, tmp_path):
    network, inputs = lowered(**case)
    export_nir(network, tmp_path / "net.nir")
    again = import_nir(tmp_path / "net.nir")
    assert network_metadata(again) == network_metadata(network)
    (logits, levels), (found, found_levels) = watched(network, inputs), watched(again, inputs)
    assert found.dtype == logits.dtype
    assert torch.equal(found, logits)
    assert found_levels.keys() == levels.keys()
    assert all(torch.equal(found_levels[place], level) for place, level in levels.items())


@pytest.mark.parametrize("case", [c for n, c in CASES.items() if n != "float32"])
def test_the_graph_means_what_the_network_computes(case, tmp_path):
    network, inputs = lowered(**case)
    export_nir(network, tmp_path / "net.nir")
    graph = nir.read(tmp_path / "net.nir")
    literal = Literal(graph)
    logits, levels = watched(network, inputs)
    assert max(int(level.max()) for level in levels.values()) > 0
    answers = []
    for t in range(network.timesteps):
        values = literal.step(inputs[t].numpy() if network.takes_frames else inputs.numpy())
        wrong = sum(
            int((values[path] != levels[path, t].numpy()).sum()) for path, _ in network.neurons()
        )
        assert wrong == 0
        answers.append(values[next(iter(graph.outputs))])
    np.testing.assert_allclose(np.mean(answers, axis=0), logits.numpy(), rtol=0, atol=1e-9)


def test_an_imported_network_goes_on_to_integers(tmp_path):
    network, inputs = lowered()
    export_nir(network, tmp_path / "net.nir")
    pixels = Pixels(mean=(0.5,) * 3, std=(0.25,) * 3)
    bytes_ = torch.randint(0, 256, inputs.shape, dtype=torch.uint8)
    mine, other = (
        to_fixed_point(found, pixels=pixels)
        for found in (network, import_nir(tmp_path / "net.nir"))
    )
    assert torch.equal(run_network(mine, bytes_), run_network(other, bytes_))


def chain(*nodes, shape=(2, 4, 4)):
    network = GraphBuilder(timesteps=2, input_shape=shape, takes_frames=True)
    name = INPUT
    for number, node in enumerate(nodes):
        name = network.add(f"layer{number}", node, name)
    network.add("readout", Readout("none"), name)
    return network.finish()


def synapse(*shape, **options):
    return Synapse(torch.randn(shape, dtype=torch.float64), max_input=None, **options)


def level_neuron(channels):
    thresholds = torch.linspace(0.5, 2, 3, dtype=torch.float64).reshape(-1, 1).repeat(1, channels)
    half = torch.full((1,), 0.5, dtype=torch.float64)
    return RealNeuron(thresholds, decay=half, reset_amount=half, reset="event")


def two_headed_network(*, takes_frames):
    """One axis, a constant per channel, a flattening before neurons, two outputs."""
    network = GraphBuilder(timesteps=2, input_shape=(3, 9), takes_frames=takes_frames)
    times = {"has_time": takes_frames}
    settings = {"stride": (2,), "padding": (1,), "dilation": (2,)}
    current = network.add("conv", synapse(4, 3, 3, **settings, **times), INPUT)
    bias = torch.randn(4, 1, dtype=torch.float64)
    current = network.add("offset", Offset(bias), current)
    flat = Rearrange(sizes=(4, 4), order=(0, 1), shape=(16,), **times)
    flat = network.add("flat", flat, current)
    for name, path, channels in (("first", current, 4), ("second", flat, 16)):
        timed = path if takes_frames else network.add(f"{name}_repeat", Repeat(2), path)
        levels = network.add(f"{name}_neuron", level_neuron(channels), timed)
        head = Synapse(torch.randn(5, 16, dtype=torch.float64), max_input=3)
        network.add(f"{name}_readout", Readout("mean"), network.add(f"{name}_head", head, levels))
    return network.finish()


@pytest.mark.parametrize("takes_frames", [False, True])
def test_one_axis_and_two_outputs_there_and_back(takes_frames, tmp_path):
    torch.manual_seed(0)
    network = two_headed_network(takes_frames=takes_frames)
    shape = (2, 3, 3, 9) if takes_frames else (3, 3, 9)
    inputs = torch.randn(shape, dtype=torch.float64)
    export_nir(network, tmp_path / "net.nir")
    again = import_nir(tmp_path / "net.nir")
    assert network_metadata(again) == network_metadata(network)
    expected, literal = run_network(network, inputs), Literal(nir.read(tmp_path / "net.nir"))
    steps = [literal.step(frame.numpy()) for frame in (inputs if takes_frames else [inputs] * 2)]
    for path, found, logits in zip(
        network.outputs, run_network(again, inputs), expected, strict=True
    ):
        torch.testing.assert_close(found, logits, rtol=0, atol=1e-12)
        mean = np.mean([values[path] for values in steps], axis=0)
        np.testing.assert_allclose(mean, logits.numpy(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (Pool("max", kernel=(2, 2)), r"layer0 .* no max pools; .*\.onnx"),
        (Upsample(factors=(2, 2)), r"layer0 .* no operator for upsample; .*\.onnx"),
        (Slice(axis=0, start=0, stop=1), r"layer0 .* no operator for slice; .*\.onnx"),
        (
            Rearrange(sizes=(2, 16), order=(1, 0), shape=(32,)),
            r"layer0 .* no operator for rearrange; .*\.onnx",
        ),
        (Offset(torch.zeros(2, 4, 1)), "layer0 .* from place to place"),
        (synapse(2, 1, 3, 3, groups=2), "layer0 .* grouped"),
        (synapse(2, 2, 1, 3), "layer0 .* not square"),
    ],
)
def test_what_nir_cannot_say_is_refused_by_name(node, why, tmp_path):
    with pytest.raises(LoweringError, match=why):
        export_nir(chain(node), tmp_path / "net.nir")
    assert not list(tmp_path.iterdir())


def test_an_integer_network_is_refused(tmp_path):
    with pytest.raises(LoweringError, match="real numbers"):
        export_nir(tiny_network(), tmp_path / "net.nir")


def test_sums_of_sums_are_added_in_their_order(tmp_path):
    network = GraphBuilder(timesteps=2, input_shape=(2, 4, 4), takes_frames=True)
    terms = [network.add(f"term{n}", synapse(2, 2, 3, 3, padding=(1, 1)), INPUT) for n in range(4)]
    left = network.add("left", Merge(), *terms[:2])
    right = network.add("right", Merge(), terms[2], terms[3], terms[2])
    total = network.add("total", Merge(), left, right)
    network.add("readout", Readout("none"), total)
    network = network.finish()
    export_nir(network, tmp_path / "net.nir")
    inputs = torch.randn(2, 3, 2, 4, 4, dtype=torch.float64)
    assert torch.equal(
        run_network(import_nir(tmp_path / "net.nir"), inputs), run_network(network, inputs)
    )


def test_a_node_named_like_an_added_sum_is_read_as_itself(tmp_path):
    network = GraphBuilder(timesteps=2, input_shape=(2,), takes_frames=True)
    first = network.add("late_merge", synapse(2, 2), INPUT)  # the sum before "late" has this name
    total = network.add("total", Merge(), first, network.add("second", synapse(2, 2), INPUT))
    deep = INPUT
    for name in ("one", "two", "three"):
        deep = network.add(name, synapse(2, 2), deep)
    behind = network.add("behind", Merge(), first, deep)
    for name, source in (("late", total), ("later", behind)):
        levels = network.add(name, level_neuron(2), source)
        head = Synapse(torch.randn(3, 2, dtype=torch.float64), max_input=3)
        network.add(f"{name}_readout", Readout("none"), network.add(f"{name}_head", head, levels))
    network = network.finish()
    export_nir(network, tmp_path / "net.nir")
    inputs = torch.randn(2, 50, 2, dtype=torch.float64)
    found = run_network(import_nir(tmp_path / "net.nir"), inputs)
    for one, other in zip(found, run_network(network, inputs), strict=True):
        assert torch.equal(one, other)


def test_other_files_and_other_graphs_are_refused(tmp_path):
    with pytest.raises(FormatError, match="not a readable NIR graph"):
        import_nir(tmp_path / "nothing.nir")
    (tmp_path / "text.nir").write_text("hello")
    with pytest.raises(FormatError, match="not a readable NIR graph"):
        import_nir(tmp_path / "text.nir")
    ones = np.ones(3)
    nir.write(tmp_path / "other.nir", nir.NIRGraph.from_list(nir.LIF(ones, ones, ones, ones)))
    with pytest.raises(FormatError, match="how many timesteps"):
        import_nir(tmp_path / "other.nir")
    spiking = nir.NIRGraph.from_list(nir.IF(ones, ones))
    network = GraphBuilder(timesteps=2, input_shape=(3,), takes_frames=False).finish()
    spiking.metadata.update(lbq=write_metadata(network), over_time="mean")
    nir.write(tmp_path / "spiking.nir", spiking)
    with pytest.raises(FormatError, match=r"if in .* is of kind IF"):
        import_nir(tmp_path / "spiking.nir")


def test_without_the_library_the_install_line_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "nir", None)
    with pytest.raises(lbq.LBQError, match=r"pip install 'nir>=1\.0\.6' h5py"):
        nir_format.import_nir(tmp_path / "net.nir")


@pytest.fixture
def written(tmp_path):
    export_nir(chain(synapse(2, 2, 3, 3)), tmp_path / "net.nir")
    return tmp_path / "net.nir"


def far_away(file):
    file["node/metadata/more"] = h5py.ExternalLink("other.h5", "/secret")


def soft(file):
    file["node/metadata/more"] = h5py.SoftLink("/node/metadata")


def loop(file):
    file["node/metadata/more"] = file["node"]


def virtual(file):
    layout = h5py.VirtualLayout((4,), np.uint8)
    layout[:] = h5py.VirtualSource("other.h5", "secret", (4,))
    file.create_virtual_dataset("node/metadata/more", layout)


def references(file):
    file.create_dataset("node/metadata/more", data=file["node"].ref, dtype=h5py.ref_dtype)


def dataset(shape, dtype, **options):
    return lambda file: file.create_dataset("node/metadata/more", shape, dtype, **options)


HOSTILE = {
    "far away": (far_away, "link to elsewhere"),
    "soft": (soft, "link to elsewhere"),
    "loop": (loop, "twice"),
    "outside": (
        dataset((4,), np.uint8, external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)]),
        "another file",
    ),
    "virtual": (virtual, "another file"),
    "a terabyte in some kilobytes": (
        dataset((2**40,), np.uint8, compression="gzip"),
        "unpacks beyond",
    ),
    "never written": (dataset((2**20, 2**20), np.float64), "unpacks beyond"),
    "wide chunk": (
        dataset((1,), np.uint8, compression="gzip", chunks=(2**32 - 1,), maxshape=(None,)),
        "unpacks beyond",
    ),
    "many strings": (dataset((2**30,), h5py.string_dtype(), compression="gzip"), "strings"),
    "references": (references, "holds object"),
    "other filter": (dataset((999,), np.float64, compression="lzf"), "filters"),
}


@pytest.mark.parametrize(("spoil", "why"), HOSTILE.values(), ids=HOSTILE)
def test_what_nir_does_not_write_is_refused_before_it_is_read(written, spoil, why):
    assert import_nir(written).timesteps == 2
    with h5py.File(written, "a") as file:
        spoil(file)
    with pytest.raises(FormatError, match=why):
        import_nir(written)


@pytest.mark.parametrize(
    ("name", "value"),
    [("timesteps", 10**9), ("timesteps", 0), ("input_shape", [2**20] * 3), ("input_shape", [-3])],
)
def test_sizes_that_no_network_has_are_refused(written, name, value):
    with h5py.File(written, "a") as file:
        metadata = json.loads(file["node/metadata/lbq"][()]) | {name: value}
        del file["node/metadata/lbq"]
        file["node/metadata/lbq"] = json.dumps(metadata)
    with pytest.raises(FormatError, match=name):
        import_nir(written)


def test_a_graph_whose_numbers_do_not_fit_is_refused_as_a_file(written):
    with h5py.File(written, "a") as file:
        del file["node/nodes/layer0"]
    with pytest.raises(FormatError, match=r"net\.nir"):
        import_nir(written)
