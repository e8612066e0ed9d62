import pytest
import torch

from lbq.data import open_data
from lbq.errors import FormatError
from lbq.train.checkpoint import Checkpoint, CheckpointFolder
from lbq.train.distributed import ProcessGroup
from lbq.train.evaluation import Evaluation
from lbq.train.prepare import build_state
from lbq.train.state import Progress, copy_tensors, read_progress

ALONE = ProcessGroup(0, 1, torch.device("cpu"))


def build(tiny, tmp_path, **changes):
    recipe = tiny.tiny_recipe(**changes)
    return build_state(recipe, open_data(recipe.data, tmp_path), ALONE)


def evaluation(step, correct):
    return Evaluation(step=step, epoch=step, correct=correct, count=10, loss=0.5)


@pytest.mark.parametrize("changes", [{}, {"ema_decay": 0.9, "precision": "fp16"}])
def test_a_state_survives_a_file_bit_for_bit(tiny, tmp_path, changes):
    before, after = (build(tiny, tmp_path, **changes) for _ in range(2))
    generator = torch.Generator().manual_seed(5)
    for part in before.tensors().values():
        for tensor in part.values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator))
    before.progress = Progress(step=7, skipped=1, evaluations=[evaluation(4, 3)])
    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.save(before.checkpoint({"words": "more"}))
    found = folder.load(7)
    after.restore(found)
    assert after.progress == before.progress
    assert after.precision.state() == before.precision.state()
    assert found.metadata["words"] == "more"
    for part, tensors in before.tensors().items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, after.tensors()[part][name]), name


def test_a_state_with_other_parts_is_refused(tiny, tmp_path):
    state = build(tiny, tmp_path, ema_decay=0.9)
    parts = {"model": state.tensors()["model"]}
    with pytest.raises(FormatError, match=r"the parts \['model'\], this run"):
        state.restore(Checkpoint(step=1, parts=parts, metadata={}))


def test_the_best_is_the_first_of_the_most_right_answers():
    assert Progress().best is None
    found = [evaluation(1, 3), evaluation(2, 7), evaluation(3, 7), evaluation(4, 5)]
    assert Progress(evaluations=found).best == found[1]
    assert found[1].accuracy == 0.7


@pytest.mark.parametrize("scale", [None, {}, {"scale": "large"}])
def test_a_loss_scale_that_does_not_fit_is_refused(tiny, tmp_path, scale):
    state = build(tiny, tmp_path, precision="fp16")
    metadata = state.checkpoint({}).metadata | {"loss_scale": scale}
    with pytest.raises(FormatError, match="loss scale"):
        state.restore_metadata(metadata)


@pytest.mark.parametrize("metadata", [{}, {"progress": {}}, {"progress": {"evaluations": [{}]}}])
def test_facts_without_progress_are_refused(metadata):
    with pytest.raises(FormatError, match="does not say how far it was"):
        read_progress(metadata)


def test_tensors_that_do_not_fit_are_refused():
    target = {"a": torch.zeros(2), "b": torch.zeros(3)}
    with pytest.raises(FormatError, match=r"it lacks \['b'\] and has \['c'\]"):
        copy_tensors({"a": torch.zeros(2), "c": torch.zeros(1)}, target, what="file")
    with pytest.raises(FormatError, match=r"b should be .* \(3,\), got torch.float32 \(4,\)"):
        copy_tensors({"a": torch.zeros(2), "b": torch.zeros(4)}, target, what="file")
    with pytest.raises(FormatError, match=r"torch\.float64"):
        copy_tensors({"a": torch.zeros(2), "b": torch.zeros(3).double()}, target, what="file")
