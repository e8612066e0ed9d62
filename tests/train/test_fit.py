"""``lbq.fit``: any model, any data, exact resume, and what cannot be right is refused."""

import random
from dataclasses import replace
from functools import partial

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

import lbq
from lbq.data import train_batches
from lbq.data.user_data import UserData
from lbq.errors import FormatError, ParameterError, RecipeError, RunError, ShapeError
from lbq.kernels.scan_interface import is_packing
from lbq.train import OptimConfig, correct_predictions
from lbq.train.provenance import check_same_run
from lbq.train.run_folder import RunFolder

OPTIONS = lbq.RunOptions(device="cpu", log_every=1, save_every_s=1e9)
CONFIG = lbq.TrainConfig(epochs=2, batch=16, optim=OptimConfig(lr=0.05), test_batch=16)


def network(seed=0, dropout=0.0, **neuron):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 12),
        nn.BatchNorm1d(12),
        nn.Dropout(dropout),
        lbq.RepeatOverTime(2),
        lbq.BurstLIF(**neuron),
        nn.Linear(12, 3),
    )


class Noisy(Dataset):
    """Draws from all three global generators, as transforms of several libraries do."""

    def __init__(self, count=64):
        self.x = torch.randn(count, 6, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = torch.rand(6) + float(np.random.rand()) + random.random()  # noqa: NPY002
        return self.x[index] + 0.1 * noise, index % 3


def arrays(count=64):
    generator = np.random.default_rng(0)
    classes = np.arange(count) % 3
    return generator.standard_normal((count, 6)) + classes[:, None], classes


def test_a_network_that_is_not_ours_trains_on_arrays_and_is_read_back(tiny, tmp_path):
    model, data = network(), arrays()
    outcome = lbq.fit(model, data, data, replace(CONFIG, epochs=12), tmp_path, options=OPTIONS)
    assert (outcome.ending, outcome.step) == ("finished", 48)
    assert outcome.evaluations[-1].accuracy > 0.8 > outcome.evaluations[0].accuracy
    assert not model.training
    run = lbq.load_run(tmp_path, network(seed=1))
    x = torch.randn(5, 6)
    assert torch.equal(run.model(x), model(x))
    assert run.config == replace(CONFIG, epochs=12)
    assert [row["step"] for row in run.metrics if row["event"] == "evaluation"] == [
        *range(4, 49, 4)
    ]
    assert run.evaluations == outcome.evaluations


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than there are cores
def test_dropout_and_random_transforms_resume_bit_for_bit_with_any_number_of_workers(
    tiny, tmp_path
):
    fit = partial(lbq.fit, train_data=Noisy(), eval_data=Noisy(32), config=CONFIG)
    fit(network(dropout=0.5), out=tmp_path / "whole", options=OPTIONS)
    for step, workers in ((1, 1), (3, 0), (4, 2), (6, 4)):
        torch.manual_seed(step)  # what the caller drew must not matter
        random.seed(step)
        np.random.seed(step)  # noqa: NPY002
        options = replace(OPTIONS, stop_at=step, workers=workers)
        state = torch.get_rng_state()
        model = network(dropout=0.5)
        torch.set_rng_state(state)
        assert fit(model, out=tmp_path / "cut", options=options).ending == "stopped"
        assert torch.equal(torch.get_rng_state(), state)
    fit(network(dropout=0.5), out=tmp_path / "cut", options=OPTIONS)
    assert tiny.final_hashes(tmp_path / "cut") == tiny.final_hashes(tmp_path / "whole")


def test_a_subclass_of_tensor_dataset_keeps_its_own_getitem_and_a_list_is_a_data_set(tmp_path):
    class Shifted(TensorDataset):
        def __getitem__(self, index):
            x, target = super().__getitem__(index)
            return x + 100, target

    seen = []
    model = nn.Linear(6, 3)
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    shifted = Shifted(torch.zeros(16, 6), torch.arange(16) % 3)
    lbq.fit(model, shifted, None, CONFIG, tmp_path / "subclass", options=OPTIONS)
    assert bool((seen[0] == 100).all())
    samples = [(torch.zeros(6), 0), (torch.ones(6), 1)]
    config = replace(CONFIG, batch=2)
    assert lbq.fit(model, samples, None, config, tmp_path / "list", options=OPTIONS).step == 2


def test_every_sample_draws_other_numbers_and_every_epoch_too(tmp_path):
    data = UserData(Noisy(), None)
    epochs = [
        torch.cat([b.x - data.train.x[b.sample_ids] for b in batches])
        for batches in (train_batches(data, seed=0, epoch=e, global_batch=16) for e in (0, 1))
    ]
    assert len(torch.cat(epochs).unique(dim=0)) == 128


def test_random_bits_by_position_reach_a_dataset_that_asks(tmp_path):
    class Augmented(Noisy):
        epoch = None

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __getitem__(self, index):
            seen.append((self.epoch, index))
            noise = lbq.sample_rng(7, self.epoch, index).standard_normal(6)
            return self.x[index] + torch.from_numpy(noise).float(), index % 3

    seen = []
    lbq.fit(network(), Augmented(), None, CONFIG, tmp_path, options=OPTIONS)
    assert sorted(seen) == [(epoch, index) for epoch in (0, 1) for index in range(64)]
    first = lbq.sample_rng(7, 0, 5).standard_normal(6)
    assert (first == lbq.sample_rng(7, 0, 5).standard_normal(6)).all()
    for other in ((8, 0, 5), (7, 1, 5), (7, 0, 6)):
        assert (first != lbq.sample_rng(*other).standard_normal(6)).all()


def test_initial_weights_survive_a_kill_before_the_first_step(tiny, tmp_path):
    """A caller may not seed: what counts is the first call."""

    def crash(record):
        if record["event"] == "train":
            raise KeyboardInterrupt

    fit = partial(lbq.fit, train_data=arrays(), eval_data=None, config=CONFIG, options=OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        fit(network(seed=0), out=tmp_path / "cut", callbacks=[crash])
    fit(network(seed=5), out=tmp_path / "cut")
    fit(network(seed=0), out=tmp_path / "whole")
    assert tiny.final_hashes(tmp_path / "cut") == tiny.final_hashes(tmp_path / "whole")


@pytest.mark.parametrize("seed", [0, 1])
def test_own_loss_and_metrics(tmp_path, seed):
    x, _ = arrays()
    y = x.sum(1, keepdims=True)
    errors = {"absolute_error": lambda output, target: (output - target).abs().squeeze(1)}
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 1))
    outcome = lbq.fit(
        model, (x, y), (x, y), replace(CONFIG, epochs=20), tmp_path,
        loss=nn.functional.mse_loss, metrics=errors, options=OPTIONS,
    )  # fmt: skip
    last = outcome.evaluations[-1]
    with torch.no_grad():
        error = (model(torch.tensor(x).float()) - torch.tensor(y).float()).abs().mean().item()
    assert last.metrics["absolute_error"] == pytest.approx(error, rel=1e-5)
    assert last.loss < outcome.evaluations[0].loss / 10
    assert last.correct is None
    assert np.isnan(last.accuracy)
    records = lbq.load_run(tmp_path, model).metrics
    assert "accuracy" not in records[0]
    assert records[-1]["absolute_error"] == last.metrics["absolute_error"]
    assert outcome.evaluations[-1].describe().startswith("loss ")


@pytest.mark.parametrize("packs", [False, True])
def test_bursts_are_packed_in_training_if_the_options_say_so(tmp_path, packs):
    found, model, data = set(), network(), arrays()
    model.register_forward_hook(lambda module, *_: found.add((module.training, is_packing())))
    options = replace(OPTIONS, pack_bursts=packs)
    lbq.fit(model, data, data, CONFIG, tmp_path, options=options)
    assert found == {(True, packs), (False, False)}


def test_own_loss_with_accuracy_counts_correct_predictions(tmp_path):
    outcome = lbq.fit(
        network(), arrays(), arrays(), CONFIG, tmp_path, options=OPTIONS,
        loss=lambda output, target: nn.functional.cross_entropy(output.mean(0), target),
        metrics={"accuracy": correct_predictions},
    )  # fmt: skip
    same = lbq.fit(network(), arrays(), arrays(), CONFIG, tmp_path / "b", options=OPTIONS)
    assert outcome.evaluations == same.evaluations


def test_sequences_are_batched_with_time_first(tmp_path):
    frames, classes = torch.randn(64, 4, 6), torch.arange(64) % 3
    model = nn.Sequential(nn.Linear(6, 12), lbq.BurstLIF(), nn.Linear(12, 3))
    shapes = set()
    model[0].register_forward_pre_hook(lambda module, args: shapes.add(tuple(args[0].shape)))
    for name, config in (("plain", CONFIG), ("canonical", replace(CONFIG, deterministic="canonical",
                                                                  shards=4))):  # fmt: skip
        data = TensorDataset(frames, classes)
        lbq.fit(model, data, data, config, tmp_path / name, options=OPTIONS, time_first=True)
    assert shapes == {(4, 16, 6), (4, 4, 6)}


@pytest.mark.parametrize("deterministic", ["samples", "canonical"])
def test_tied_frozen_and_unused_parameters(tiny, tmp_path, deterministic):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second, self.unused = (nn.Linear(6, 6) for _ in range(3))
            self.second.weight = self.first.weight
            self.last = nn.Linear(6, 3)
            self.last.bias.requires_grad_(False)

        def forward(self, x):
            return self.last(self.second(self.first(x).relu()))

    config = replace(CONFIG, deterministic=deterministic, shards=4)
    fit = partial(lbq.fit, train_data=arrays(), eval_data=arrays(), config=config)
    bias = Tied().last.bias.clone()
    fit(Tied(), out=tmp_path / "whole", options=OPTIONS)
    fit(Tied(), out=tmp_path / "cut", options=replace(OPTIONS, stop_at=3))
    fit(Tied(), out=tmp_path / "cut", options=OPTIONS)
    assert tiny.final_hashes(tmp_path / "cut") == tiny.final_hashes(tmp_path / "whole")
    model = lbq.load_run(tmp_path / "cut", Tied()).model
    assert model.first.weight is model.second.weight
    assert torch.equal(model.last.bias, bias)


def test_a_moving_average_is_what_is_evaluated_and_loaded(tmp_path):
    config = replace(CONFIG, ema_decay=0.9)
    model = network()
    lbq.fit(model, arrays(), arrays(), config, tmp_path, options=OPTIONS)
    averaged = lbq.load_run(tmp_path, network()).model
    assert not torch.equal(averaged[0].weight, model[0].weight)


def test_our_own_data_are_taken_as_one_object(tiny, tmp_path):
    model, data, config = tiny.tiny_recipe(epochs=1).build(tmp_path)
    by_hand = lbq.fit(model, data, data, config, tmp_path / "a", options=OPTIONS)
    by_recipe = lbq.train.train(tiny.tiny_recipe(epochs=1), tmp_path / "b", OPTIONS)
    assert by_hand.evaluations == by_recipe.evaluations
    assert tiny.final_hashes(tmp_path / "a") == tiny.final_hashes(tmp_path / "b")
    with pytest.raises(RunError, match=r"a run of lbq.fit, which a recipe cannot continue"):
        lbq.train.train(tiny.tiny_recipe(epochs=1), tmp_path / "a", OPTIONS)
    with pytest.raises(ParameterError, match="pass the same object"):
        lbq.fit(model, data, arrays(), config, tmp_path / "c", options=OPTIONS)


def test_samples_as_mappings_and_images(tmp_path):
    class Pictures(Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, index):
            image = Image.new("RGB", (2, 1), (255, 51, 0))
            return {"img": image, "label": index % 3}

    model, seen = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), []
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    lbq.fit(model, Pictures(), None, CONFIG, tmp_path, options=OPTIONS)
    assert torch.equal(seen[0][0], torch.tensor([[[1.0, 1.0]], [[0.2, 0.2]], [[0.0, 0.0]]]))


@pytest.mark.parametrize("format_", [None, "torch", "numpy"])
def test_hugging_face_data_sets_are_read_and_their_fingerprints_compared(tiny, tmp_path, format_):
    x, y = arrays()

    def rows(x):
        found = datasets.Dataset.from_dict({"vector": x.astype(np.float32), "label": y})
        return found.with_format(format_) if format_ else found.with_transform(to_tensors)

    lbq.fit(network(), rows(x), rows(x), CONFIG, tmp_path / "rows", options=OPTIONS)
    lbq.fit(network(), (x, y), (x, y), CONFIG, tmp_path / "arrays", options=OPTIONS)
    assert tiny.final_hashes(tmp_path / "rows") == tiny.final_hashes(tmp_path / "arrays")
    with pytest.raises(RunError, match="data: "):
        lbq.fit(network(), rows(x + 1), rows(x), CONFIG, tmp_path / "rows", options=OPTIONS)


def to_tensors(batch):
    return {**batch, "vector": [torch.tensor(vector) for vector in batch["vector"]]}


def refused(tmp_path, error, match, model=None, train=None, config=CONFIG, **options):
    with pytest.raises(error, match=match):
        lbq.fit(
            network() if model is None else model,
            arrays() if train is None else train,
            None,
            config,
            tmp_path / match,
            options=OPTIONS,
            **options,
        )


def test_what_cannot_be_right_is_refused(tmp_path):
    x, y = arrays()
    refuse = partial(refused, tmp_path)
    refuse(ParameterError, "no parameters", model=nn.Flatten())
    refuse(ParameterError, "run it once on a batch", model=nn.LazyLinear(3))
    refuse(ShapeError, "as many inputs as targets, got 64 and 63", train=(x, y[1:]))
    refuse(ParameterError, "map-style", train=torch.utils.data.DataLoader(Noisy()))
    refuse(ParameterError, "map-style", train=torch.from_numpy(x))
    refuse(ParameterError, "at least one sample", train=Subset(Noisy(), []))
    refuse(ParameterError, "a pair", train=[(1, 2, 3)] * 20)
    refuse(ParameterError, "one input column", train=[{"a": 1, "b": 2, "label": 0}] * 20)
    refuse(ShapeError, "cannot be stacked", train=[(torch.zeros(i), 0) for i in range(20)])
    refuse(
        ShapeError, r"logits \[B, classes\]", model=nn.Sequential(nn.Linear(6, 3), nn.Flatten(0))
    )
    refuse(ShapeError, "integer classes", train=(x, y.astype(float)))
    refuse(ShapeError, r"classes must lie in 0\.\.2, .* got 5\.\.7", train=(x, y + 5))
    refuse(ShapeError, "one number", loss=lambda output, target: output)
    refuse(ParameterError, "has parameters", loss=nn.Linear(2, 2))
    refuse(ParameterError, "other names", metrics={"loss": correct_predictions})
    refuse(ShapeError, "every timestep", model=nn.Linear(6, 3), config=replace(CONFIG, loss="tet"))
    refuse(ParameterError, "between 1 and all 64", config=replace(CONFIG, batch=65))
    with pytest.raises(RecipeError, match="epochs must be at least 1"):
        lbq.TrainConfig(epochs=0, batch=1)


def test_a_run_is_not_resumed_with_another_model_data_loss_or_settings(tmp_path):
    stop = replace(OPTIONS, stop_at=1)
    lbq.fit(network(), arrays(), None, CONFIG, tmp_path, options=stop)

    def refuse(match, *, model=None, train=None, config=CONFIG, **options):
        with pytest.raises(RunError, match=match):
            lbq.fit(model or network(), train or arrays(), None, config, tmp_path, **options)

    refuse("config.epochs: 2 -> 3", config=replace(CONFIG, epochs=3))
    refuse("structure: ", model=network(max_level=3))  # same tensors
    refuse("data: ", train=arrays(48))
    x, y = arrays()
    refuse("data: ", train=(x + 1, y))  # same shapes
    refuse("loss: None -> 'mse_loss'", loss=nn.functional.mse_loss)
    with pytest.raises(RunError, match="other modules or settings"):
        lbq.load_run(tmp_path, network(max_level=3))
    with pytest.raises(FormatError, match="tensors are missing"):
        lbq.load_run(tmp_path, nn.Linear(6, 3))
    with pytest.raises(RunError, match="pass a model of the same structure"):
        lbq.load_run(tmp_path)
    with pytest.raises(RunError, match="not trained by a recipe"):
        assert lbq.load_run(tmp_path, network()).recipe
    allowed = replace(OPTIONS, allow_changed=("config.epochs",))
    longer = replace(CONFIG, epochs=3)
    assert lbq.fit(network(), arrays(), None, longer, tmp_path, options=allowed).step == 12


def scaled_loss(scale):
    def loss(output, target):
        return nn.functional.cross_entropy(output.mean(0) * scale, target)

    return loss


def test_a_run_is_not_resumed_with_another_loss_or_metric_of_the_same_name(tmp_path):
    def go(scale=1.0, metric=lambda output, target: target.float(), **changes):
        options = replace(OPTIONS, **changes)
        return lbq.fit(
            network(), arrays(), None, CONFIG, tmp_path,
            loss=scaled_loss(scale), metrics={"size": metric}, options=options,
        )  # fmt: skip

    go(stop_at=1)
    assert go(stop_at=2).step == 2
    with pytest.raises(RunError, match=r"(?s)loss_code: .*allow_changed=\('loss_code',\)"):
        go(scale=9.0)
    with pytest.raises(RunError, match=r"metrics_code\.size: "):
        go(metric=lambda output, target: 2 * target.float())
    assert go(scale=9.0, allow_changed=("loss_code",)).ending == "finished"


def test_a_run_without_digests_of_its_loss_is_compared_by_name(tmp_path):
    options, loss = replace(OPTIONS, stop_at=1), scaled_loss(1.0)
    lbq.fit(network(), arrays(), None, CONFIG, tmp_path, loss=loss, options=options)
    folder = RunFolder(tmp_path)
    saved = folder.checkpoints.load_newest(quarantine=False)
    for key in ("loss_code", "metrics_code"):
        del saved.metadata[key]
    assert check_same_run(saved.metadata, saved.metadata | {"loss_code": "abc"}, allowed=()) == []
    with pytest.raises(RunError, match="loss: "):
        check_same_run(saved.metadata, saved.metadata | {"loss": "another"}, allowed=())


def test_a_loss_without_code_says_that_its_name_is_compared(tmp_path, caplog):
    model = nn.Linear(6, 6)
    x = torch.randn(64, 6)
    lbq.fit(model, (x, x), None, CONFIG, tmp_path, loss=torch.dist, options=OPTIONS)
    assert "the loss has no Python code to compare" in caplog.text


@pytest.mark.parametrize("kind", ["file", "link to nothing", "below a file"])
def test_a_folder_that_cannot_be_one_is_refused(kind, tmp_path):
    out = tmp_path / "run"
    if kind == "link to nothing":
        out.symlink_to(tmp_path / "nothing")
    else:
        out.write_text("")
    out = out / "mine" if kind == "below a file" else out
    with pytest.raises(RunError, match=f"{out} cannot be the folder of a run"):
        lbq.fit(network(), arrays(), None, CONFIG, out, options=OPTIONS)


@pytest.mark.parametrize("is_evaluated", [False, True])
@pytest.mark.parametrize(
    "change",
    [lambda x: x[:, :5], lambda x: x[:, None], lambda x: x.astype(int), lambda x: x > 0],
    ids=["width", "axes", "integers", "booleans"],
)
def test_inputs_that_the_model_does_not_take_are_named(change, is_evaluated, tmp_path):
    x, y = arrays()
    given = change(x), y
    train, test = ((x, y), given) if is_evaluated else (given, None)
    with pytest.raises(ShapeError, match=r"the model cannot take a batch of torch\.\w+ \["):
        lbq.fit(network(), train, test, CONFIG, tmp_path, options=OPTIONS)


def test_a_loss_without_gradient_is_refused(tmp_path):
    def loss(output, target):
        return nn.functional.cross_entropy(output.mean(0), target).detach()

    with pytest.raises(ParameterError, match="the loss has no gradient"):
        lbq.fit(network(), arrays(), None, CONFIG, tmp_path, loss=loss, options=OPTIONS)
