import sys

import pytest

from lbq.errors import MissingExtraError
from lbq.train.tensorboard import TensorBoardCallback

TRAIN = {"event": "train", "step": 5, "loss": 0.25, "words": "no chart"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_number_of_a_record_becomes_a_point_of_a_chart(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    charts = TensorBoardCallback(tmp_path)
    charts(TRAIN)
    charts({"event": "evaluation", "step": 7, "accuracy": 0.5})
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    assert sorted(found.Tags()["scalars"]) == ["evaluation/accuracy", "train/loss"]
    point = found.Scalars("train/loss")[0]
    assert (point.step, point.value) == (5, 0.25)


def test_without_the_package_the_line_that_installs_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'lbq\[train\]'"):
        TensorBoardCallback(tmp_path)
