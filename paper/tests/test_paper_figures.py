import pytest
from PIL import Image

from lbq.errors import ParameterError
from lbq_paper.charts import save_charts
from lbq_paper.layers import save_figure
from lbq_paper.results import open_results

COUNTS = {"num_images": 10}


def size_of(path):
    with Image.open(path) as image:
        return image.size


def test_figure_3_is_drawn_without_records(tmp_path):
    paths = save_figure("3", tmp_path / "new" / "folder", open_results(tmp_path), "pocket")
    assert [path.suffix for path in paths] == [".svg", ".pdf", ".png"]
    assert all(path.stat().st_size > 2_000 for path in paths)
    assert size_of(paths[2])[0] > 800


def test_figure_4_shows_what_was_run(record, layers, tmp_path):
    record("ablation/V1/fixed", 0, 0.8, layers=layers(1.0), counts=COUNTS)
    narrow = save_figure("4", tmp_path / "one", open_results(tmp_path), "pocket")
    for entry in ("ablation/V2/fixed", "ablation/V3/learnable", "ablation/LBQ/learnable"):
        record(entry, 0, 0.8, layers=layers(0.2), counts=COUNTS)
    whole = save_figure("4", tmp_path / "four", open_results(tmp_path), "pocket")
    assert [path.name for path in whole] == [f"figure4-pocket.{k}" for k in ("svg", "pdf", "png")]
    one, four = (size_of(paths[2]) for paths in (narrow, whole))
    assert one[0] == four[0]
    assert four[1] > 1.5 * one[1]  # panels (a) to (f) in two rows


def test_figure_4_without_records_says_how_to_get_them(tmp_path):
    with pytest.raises(ParameterError, match=r"none was run at full size.*--size full --table 5"):
        save_figure("4", tmp_path, open_results(tmp_path), "full")


def test_charts_without_records_say_how_to_get_them(tmp_path):
    with pytest.raises(ParameterError, match=r"not run at pocket size.*--size pocket --table 5"):
        save_charts(tmp_path, open_results(tmp_path))
