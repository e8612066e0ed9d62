import hashlib
import json
import resource
import sys
from pathlib import Path

import own_recipe_files
import pytest
import torch
from torch import nn

import lbq
from lbq.adapters.hub import CONFIG, WEIGHTS, from_pretrained, pretrained_recipe, save_pretrained
from lbq.adapters.run_record import record_run
from lbq.errors import FormatError, MissingExtraError, ParameterError, RunError
from lbq.pretrained.model_card import CARD
from lbq.train import build_network, load_run, train
from lbq.train.engine import run_task
from lbq.train.recipe_file import load_recipe_file

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny):
    folder = tmp_path_factory.mktemp("hub") / "run"
    train(tiny.tiny_recipe(epochs=1), folder)
    return folder


@pytest.fixture
def saved(run, tmp_path):
    model = load_run(run).model
    save_pretrained(model, tmp_path / "net", record=record_run(run))
    return tmp_path / "net"


def change(folder, **fields):
    config = json.loads((folder / CONFIG).read_text()) | fields
    (folder / CONFIG).write_text(json.dumps(config))


def test_what_was_saved_answers_as_before(run, saved):
    loaded = load_run(run)
    model, recipe = loaded.model, loaded.recipe
    loaded = from_pretrained(saved)
    assert not loaded.training
    assert torch.equal(loaded(IMAGES), model(IMAGES))
    assert pretrained_recipe(saved).model == recipe.model
    assert sorted(path.name for path in saved.iterdir()) == ["README.md", CONFIG, WEIGHTS]


def test_a_folder_needs_no_hub_and_no_network(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert from_pretrained(str(saved))(IMAGES).shape == (4, 10)
    with pytest.raises(MissingExtraError, match="pip install 'huggingface-hub>=1'"):
        from_pretrained("owner/name")


def test_a_repository_is_read_from_the_hubs_own_cache(run, saved, tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    snapshot = tmp_path / "cache" / "models--owner--name" / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    saved.rename(snapshot)
    reference = snapshot.parents[1] / "refs" / "main"
    reference.parent.mkdir()
    reference.write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    model = load_run(run).model
    loaded = from_pretrained("owner/name", local_files_only=True)
    assert torch.equal(loaded(IMAGES), model(IMAGES))


def test_a_flipped_bit_is_noticed_before_anything_is_parsed(saved):
    data = bytearray((saved / WEIGHTS).read_bytes())
    data[0] ^= 1  # the length of the header
    (saved / WEIGHTS).write_bytes(data)
    with pytest.raises(FormatError, match="damaged or was replaced"):
        from_pretrained(saved)


def test_a_configuration_is_data_and_read_strictly(saved):
    before = (saved / CONFIG).read_text()
    for fields, message in [
        ({"auto_map": {"AutoModel": "code.Model"}}, "auto_map"),
        ({"format": "lbq-network-1"}, "lbq-network-2"),
        ({"num_classes": "10"}, "num_classes"),
        ({"recipe": {"_target_": "os.system"}}, "_target_"),
        ({"num_classes": 11}, r"\(11,"),
    ]:
        change(saved, **fields)
        with pytest.raises(lbq.LBQError, match=message):
            from_pretrained(saved)
        (saved / CONFIG).write_text(before)
    from_pretrained(saved)
    (saved / CONFIG).write_text(before + "x")
    with pytest.raises(FormatError, match=r"config\.json is not strict JSON") as caught:
        from_pretrained(saved)
    assert "rule" not in str(caught.value)


def test_a_pickle_is_not_looked_at(saved):
    (saved / WEIGHTS).rename(saved / "pytorch_model.bin")
    with pytest.raises(FormatError, match=f"{WEIGHTS} cannot be read"):
        from_pretrained(saved)


def test_a_model_that_its_record_does_not_describe_is_not_saved(run, tmp_path, tiny):
    record = record_run(run)
    other = build_network(tiny.tiny_recipe().model, num_classes=10).double()
    with pytest.raises(FormatError, match="against its record's recipe"):
        save_pretrained(other, tmp_path / "net", record=record)
    with pytest.raises(FormatError, match="got Linear"):
        save_pretrained(nn.Linear(2, 2), tmp_path / "net", record=record)
    with pytest.raises(FormatError, match="pass the result of record_run"):
        save_pretrained(other, tmp_path / "net", record={})
    assert not (tmp_path / "net").exists()


def test_the_card_is_that_of_pretrained_networks_behind_what_the_hub_reads(run, saved):
    hub, record = pytest.importorskip("huggingface_hub"), record_run(run)
    card = hub.ModelCard((saved / CARD).read_text())
    assert card.data.library_name == "lbq"
    (result,) = card.data.eval_results
    assert result.metric_type == "accuracy"
    assert result.metric_value == record["accuracy_after_last_epoch"]
    assert result.dataset_name == record["recipe"]["data"]["source"]
    assert card.text.strip().startswith(f"# {record['recipe']['name']}")
    assert record["weights_sha256"] in card.text


def test_words_of_a_recipe_cannot_leave_their_place_in_the_front_matter(run, tmp_path):
    hub, record = pytest.importorskip("huggingface_hub"), record_run(run)
    record["recipe"]["name"] = 'odd: "name" --- # license: mit'
    model = load_run(run).model
    save_pretrained(model, tmp_path / "net", record=record)
    data = hub.ModelCard((tmp_path / "net" / CARD).read_text()).data
    assert data.get("license") is None
    assert data.model_name == record["recipe"]["name"]


def test_neither_folder_nor_name_is_said_so(tmp_path):
    with pytest.raises(FormatError, match="neither a folder here nor the name"):
        from_pretrained(tmp_path / "absent")
    with pytest.raises(FormatError, match="neither a folder here nor the name"):
        from_pretrained("./absent/net")


def change_model(folder, **fields):
    config = json.loads((folder / CONFIG).read_text())
    config["recipe"]["model"] |= fields
    (folder / CONFIG).write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("num_classes", "model", "says"),
    [
        (10, {"width": 40.0}, r"must be torch.float32 \(5120, 3, 3, 3\)"),
        (10, {"width": 1e6}, "width must be above 0 and at most 1024"),
        (10, {"width": 1e300}, "width must be above 0 and at most 1024"),
        (1 << 20, {}, r"must be torch.float32 \(1048576, "),
        (10, {"blocks": [200, 1, 1]}, r"stages of \[3, 3, 3\] blocks, .* \[200, 1, 1\]"),
        (10, {"blocks": [100_000, 1, 1]}, "blocks must be at least 0 and at most 200"),
        (10, {"timesteps": 10**9}, "timesteps must be at least 1 and at most 65536"),
    ],
)
def test_a_configuration_that_its_weights_do_not_fit_is_refused_before_it_is_built(
    saved, num_classes, model, says
):
    change(saved, num_classes=num_classes)
    change_model(saved, **model)
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 2**29
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        with pytest.raises(lbq.LBQError, match=says):
            from_pretrained(saved)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def header(**fields):
    raw = json.dumps(fields).encode()
    return len(raw).to_bytes(8, "little") + raw


@pytest.mark.parametrize(
    "weights",
    [
        b"",
        b"Dear reader, this is text",
        (2**60).to_bytes(8, "little") + b"{}",
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
        header(a={"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}) + bytes(4),
        header(a={"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}) + bytes(1),
        header(a={"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}) + bytes(4),
    ],
    ids=["empty", "text", "long header", "deep", "overflow", "dtype", "short"],
)
def test_weights_that_are_no_safetensors_are_refused(saved, weights):
    (saved / WEIGHTS).write_bytes(weights)
    change(saved, weights_sha256=hashlib.sha256(weights).hexdigest())
    with pytest.raises(FormatError, match=f"{WEIGHTS} is not a safetensors file"):
        from_pretrained(saved)


@pytest.mark.parametrize("source", ["owner/not-there", "a/..", "~/x", "a/b c"])
def test_a_repository_that_cannot_be_read_is_an_error_of_ours(source, tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FormatError, match="cannot be read from the hub"):
        from_pretrained(source, local_files_only=True)


@pytest.fixture(scope="module", params=["IMAGES", "REGRESSION"])
def own(request, tmp_path_factory):
    """Return a recipe file of a user's own, and the folder of its run."""
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(getattr(own_recipe_files, request.param))
    run_task(lambda: load_recipe_file(path), path.parent / "run", None, callbacks=())
    return path, path.parent / "run"


def test_a_network_without_a_recipe_is_loaded_into_one_of_the_same_structure(own, tmp_path):
    path, run = own
    model = load_run(run, load_recipe_file(path).model).model
    record = json.loads(json.dumps(record_run(run)))
    assert str(tmp_path.parent) not in json.dumps(record)
    save_pretrained(model, tmp_path, record=record)
    config = json.loads((tmp_path / CONFIG).read_text())
    assert sorted(config) == ["format", "structure", "weights_sha256"]
    fresh = load_recipe_file(path).model
    for parameter in fresh.parameters():
        parameter.data.zero_()
    loaded = from_pretrained(tmp_path, model=fresh)
    assert loaded is fresh
    assert not loaded.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    card = (tmp_path / CARD).read_text()
    assert 'from_pretrained("this/repository", model=my_model)' in card
    assert "2 epochs of batches of 16" in card
    if "correct" in record:
        assert f"{record['correct']:,} of 60" in card
    else:
        assert f"test loss after the last epoch | {record['loss_after_last_epoch']:.4g}" in card


def test_what_does_not_fit_a_network_without_a_recipe_is_refused(own, saved, tmp_path):
    path, run = own
    model = load_run(run, load_recipe_file(path).model).model
    save_pretrained(model, tmp_path / "own", record=record_run(run))
    with pytest.raises(ParameterError, match="model=my_model"):
        from_pretrained(tmp_path / "own")
    with pytest.raises(FormatError, match="does not belong to this network"):
        from_pretrained(tmp_path / "own", model=nn.Linear(2, 2))
    other = load_recipe_file(path).model
    other.extra = 3  # a setting
    with pytest.raises(RunError, match="other modules or settings"):
        from_pretrained(tmp_path / "own", model=other)
    with pytest.raises(FormatError, match="other modules or settings"):
        save_pretrained(other, tmp_path / "other", record=record_run(run))
    with pytest.raises(FormatError, match="holds no recipe"):
        pretrained_recipe(tmp_path / "own")
    with pytest.raises(ParameterError, match="leave out model"):
        from_pretrained(saved, model=model)
    data = bytearray((tmp_path / "own" / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (tmp_path / "own" / WEIGHTS).write_bytes(data)
    with pytest.raises(FormatError, match="damaged or was replaced"):
        from_pretrained(tmp_path / "own", model=load_recipe_file(path).model)
