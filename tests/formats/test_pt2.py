import json
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch
from onnx_networks import RESNETS, lowered_resnet

from lbq.errors import FormatError, ShapeError
from lbq.formats.metadata import network_metadata
from lbq.formats.pt2 import export_pt2, read_pt2, run_pt2
from lbq.runtime import run_network

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ELSEWHERE = """
import sys
sys.modules["lbq"] = None  # importing it fails
import torch
inputs = torch.load("inputs.pt")
program = torch.export.load("net.pt2").module()
torch.save([program(piece) for piece in inputs], "answers.pt")
try:
    import lbq
except ImportError:
    print("without lbq")
"""


@pytest.fixture(scope="module")
def export_once(tmp_path_factory):
    """Exporting takes seconds: once for all tests."""
    made = {}

    def export(name, is_integer):
        if (name, is_integer) not in made:
            bits = 8 if is_integer else None
            network, inputs = lowered_resnet(RESNETS[name], timesteps=2, bits=bits, batch=5)
            path = tmp_path_factory.mktemp("pt2") / "net.pt2"
            export_pt2(network, path)
            made[name, is_integer] = network, inputs, path
        return made[name, is_integer]

    return export


@pytest.fixture(
    params=[("resnet20", False), ("resnet20", True), ("resnet19", False), ("resnet19", True)],
    ids=["floats", "integers", "frames of floats", "frames of integers"],
)
def exported(request, export_once):
    return export_once(*request.param)


@pytest.mark.multi
def test_it_answers_alike_in_a_process_without_lbq_for_any_batch(exported):
    network, inputs, path = exported
    axis = 1 if network.takes_frames else 0
    pieces = [inputs, inputs.narrow(axis, 0, 1), inputs.narrow(axis, 1, 3)]
    torch.save(pieces, path.with_name("inputs.pt"))
    done = subprocess.run(
        [sys.executable, "-I", "-c", ELSEWHERE],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.strip() == "without lbq", done.stderr
    answers = torch.load(path.with_name("answers.pt"))
    for piece, answer in zip(pieces, answers, strict=True):
        expected = run_network(network, piece, backend="dense")
        assert answer.dtype == expected.dtype
        assert torch.equal(answer, expected)


def test_it_says_what_it_takes_and_runs_at_home(exported):
    network, inputs, path = exported
    program, metadata = read_pt2(path)
    assert metadata == network_metadata(network)
    expected = run_network(network, inputs, backend="dense")
    assert torch.equal(run_pt2(path, inputs), expected)
    if network.is_integer:  # no setting of torch changes an integer
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(program(inputs), expected)
    with pytest.raises(ShapeError, match="this network takes"):
        run_pt2(path, inputs[..., :8])


def test_no_path_of_this_machine_is_written(exported):
    _, _, path = exported
    with zipfile.ZipFile(path) as archive:
        contents = [archive.read(name) for name in archive.namelist()]
    assert not any(source in body for body in contents for source in (b"graph.py", b"synapse.py"))


def rewritten(path, tmp_path, change):
    """Copy an archive; ``change(name, body)`` returns the body that is written, or None."""
    target = tmp_path / "changed.pt2"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            body = change(name.partition("/")[2], old.read(name))
            if body is not None:
                new.writestr(name, body)
    return target


@pytest.fixture
def whole(export_once, tmp_path):
    return shutil.copy(export_once("resnet20", is_integer=True)[2], tmp_path / "net.pt2")


def test_a_file_that_could_run_code_is_not_loaded(whole, tmp_path):
    def pickled(name, body):
        return body.replace(b'"use_pickle": false', b'"use_pickle": true', 1)

    with pytest.raises(FormatError, match=r"pickled tensors.*not loaded"):
        read_pt2(rewritten(whole, tmp_path, pickled))

    class Hostile:
        def __reduce__(self):
            return (pytest.fail, ("code of the file ran",))

    torch.save(Hostile(), tmp_path / "hostile.pt")
    hostile = (tmp_path / "hostile.pt").read_bytes()
    with pytest.raises(FormatError, match=r"pickled example.*not loaded"):
        read_pt2(rewritten(whole, tmp_path, lambda n, b: hostile if "sample_inputs" in n else b))
    with zipfile.ZipFile(whole, "a") as archive:
        archive.writestr("net/data/aotinductor/model/model.so", b"")
    with pytest.raises(FormatError, match=r"model\.so.*not loaded"):
        read_pt2(whole)


def test_damage_is_named(whole, tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        read_pt2(tmp_path / "nothing.pt2")
    with pytest.raises(FormatError, match=r"torch .* cannot read|not a complete"):
        read_pt2(rewritten(whole, tmp_path, lambda n, b: None if n == "models/model.json" else b))
    with zipfile.ZipFile(whole) as archive:
        weights = [info for info in archive.infolist() if "/weights/weight_" in info.filename]
        body = archive.read(max(weights, key=lambda info: info.file_size))
    sound = whole.read_bytes()
    flipped = bytearray(sound)
    flipped[sound.index(body) + len(body) // 2] ^= 1
    whole.write_bytes(flipped)
    with pytest.raises(FormatError, match=r"damaged: the checksum of .*weight"):
        read_pt2(whole)
    whole.write_bytes(sound[:-100])
    with pytest.raises(FormatError, match=r"not loaded|not a complete"):
        read_pt2(whole)


def test_a_small_file_that_unpacks_to_a_large_one_is_not_unpacked(whole, tmp_path):
    bomb = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            is_weight = name.endswith("/weights/weight_0")
            new.writestr(name, bytes(2**26) if is_weight else old.read(name))
    assert bomb.stat().st_size < 2**20
    with pytest.raises(FormatError, match=r"compressed entries.*not loaded"):
        read_pt2(bomb)


def test_entries_that_claim_more_bytes_than_the_file_has_are_not_read(whole):
    with zipfile.ZipFile(whole, "a") as archive:
        for entry in archive.infolist():  # as if they all shared their bytes
            entry.file_size = entry.compress_size = 2**24
        archive._didModify = True
    with pytest.raises(FormatError, match="claims to hold"):
        read_pt2(whole)


def reworked(source, path, change):
    """Copy a program and change its graph; torch's own reader takes the result."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("models/model.json"):
                program = json.loads(data)
                change(program)
                data = json.dumps(program).encode()
            new.writestr(name, data)
    return path


def _first_size(program):
    values = program["graph_module"]["graph"]["sym_int_values"]
    return next(iter(values.values()))["as_expr"]


def _set_target(program, target, *arguments):
    node = program["graph_module"]["graph"]["nodes"][0]
    node["target"] = target
    node["inputs"] = [{"name": "a", "arg": {"as_string": a}, "kind": 1} for a in arguments]


def _size_of_a_tensor(program, text):
    values = program["graph_module"]["graph"]["tensor_values"]
    values["inputs"]["sizes"][0] = {"as_expr": {"expr_str": text, "hint": None}}


CODE = "__import__('os').system('touch canary')"
PROGRAMS = {
    "size": lambda p: _first_size(p).update(expr_str=CODE),
    "size of a tensor": lambda p: _size_of_a_tensor(p, CODE),
    "lambda": lambda p: _first_size(p).update(expr_str=f"(lambda: {CODE})()"),
    "attribute": lambda p: _first_size(p).update(expr_str="Symbol('a').func.__class__"),
    "name of a symbol": lambda p: _first_size(p).update(expr_str=f"Symbol(''+{CODE})"),
    "endless power": lambda p: _first_size(p).update(expr_str="9**9**9**9**9"),
    "power": lambda p: _first_size(p).update(expr_str="Pow(Integer(9), Integer(9999999999))"),
    "target": lambda p: _set_target(p, "torch.os.system", "touch canary"),
    "target in a module": lambda p: _set_target(p, "torch._sources.os.system", "touch canary"),
    "operator": lambda p: _set_target(p, "_operator.attrgetter", "system"),
    "file": lambda p: _set_target(p, "torch.ops.aten.from_file.default", "canary"),
    "attribute of an operator": lambda p: _set_target(p, "torch.ops.aten.add.__init__"),
    "higher order": lambda p: _set_target(p, "torch.ops.higher_order.cond"),
    "extension": lambda p: _set_target(p, "#x.y"),
    "guards": lambda p: p.update(guards_code=[CODE]),
    "range": lambda p: p["range_constraints"].update(s9={"min_val": CODE, "max_val": None}),
    "no range": lambda p: p.update(range_constraints=[]),
    "no graph": lambda p: p.pop("graph_module"),
    "wrong types": lambda p: p.update(graph_module={"graph": 3, "signature": None}),
    "list of nodes": lambda p: p["graph_module"]["graph"].update(nodes="x"),
    "cut signature": lambda p: p["graph_module"]["signature"].update(input_specs=[]),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_a_graph_that_could_run_code_is_refused(case, export_once, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = export_once("resnet20", True)[2]
    path = reworked(source, tmp_path / "evil.pt2", PROGRAMS[case])
    with pytest.raises(FormatError) as caught:
        read_pt2(path)
    assert not (tmp_path / "canary").exists(), "code of the file ran"
    assert str(path) in str(caught.value)


def test_torch_loads_what_was_checked_not_another_archive_in_the_same_file(export_once, tmp_path):
    """Python's reader shifts offsets by what stands before an archive, torch's does not."""
    source = export_once("resnet20", True)[2]
    first = reworked(source, tmp_path / "first.pt2", PROGRAMS["target"])
    path = tmp_path / "both.pt2"
    path.write_bytes(first.read_bytes() + source.read_bytes())
    try:
        program, _ = read_pt2(path)
    except FormatError:
        return
    assert "system" not in str(program.graph)
