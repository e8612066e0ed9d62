from pathlib import Path

from lbq_paper.charts import ablation, pareto, save_charts, saved_by_level
from lbq_paper.layers import save_figure
from lbq_paper.results import open_results
from lbq_paper.tables import results_page

ROOT = Path(__file__).parents[2]
COUNTS = {
    "num_images": 10,
    "ann_macs": 1000,
    "fp_macs": 100,
    "unary_acs": 10_000,
    "bit_sparse_acs": 6_000,
    "plane_formations": 100,
}


def test_the_committed_page_is_what_the_records_generate():
    page = (ROOT / "docs" / "results.md").read_text()
    assert page == results_page(open_results(ROOT / "results")), (
        "write it again: python -m lbq_paper results > docs/results.md"
    )


def test_so_is_the_committed_figure(tmp_path):
    save_figure("4", tmp_path, open_results(ROOT / "results"), "pocket")
    name = "figure4-pocket.svg"
    assert (tmp_path / name).read_text() == (ROOT / "docs" / "figures" / name).read_text(), (
        "draw it again: python -m lbq_paper figure 4 --out docs/figures"
    )


def test_so_are_the_charts(tmp_path):
    for path in save_charts(tmp_path, open_results(ROOT / "results")):
        assert path.read_text() == (ROOT / "docs" / "figures" / path.name).read_text(), (
            "draw them again: python -m lbq_paper figure results --out docs/figures"
        )


def test_charts_are_the_numbers_of_the_tables():
    results = open_results(ROOT / "results")
    page = results_page(results)
    ahead = ablation(results)["here, pocket size"]["ANN"]
    assert f"| {ahead.value:+.2f} +- {ahead.deviation:.2f} (n=" in page
    for level, saved in saved_by_level(results)["here, pocket size"].items():
        found = f"| LBQ ({level}) | saved, % |"
        line = next(line for line in page.splitlines() if line.startswith(found))
        assert f"| {saved.value:.2f} +- {saved.deviation:.2f} (n=" in line
    names = {name for points in pareto(results).values() for name, _, _ in points}
    assert names >= {"N=1", "N=20", "T=1", "V1", "Binary LIF", "ANN"}


def test_how_the_page_was_made_is_told_to_those_who_edit_it_only():
    page = (ROOT / "docs" / "results.md").read_text()
    comment, seen = page.split("-->", 1)
    assert comment.startswith("<!-- Generated from the records in results/; do not edit.")
    assert "python -m lbq_paper" not in seen
    assert "do not edit" not in seen


def test_columns_of_which_nothing_was_run_are_left_out(record, tmp_path):
    assert "full size |" not in (ROOT / "docs" / "results.md").read_text()
    record("ablation/V1/fixed", 0, 0.8)
    page = results_page(open_results(tmp_path))
    assert "| method | paper | - LBQ | pocket |" in page


def test_without_records_everything_is_not_run(tmp_path):
    page = results_page(open_results(tmp_path))
    assert "0 of 68 experiments" in page
    assert "n=" not in page
    assert "Where these numbers come from" not in page


def test_records_fill_the_page(record, layers, tmp_path):
    for seed, (lbq, v3) in enumerate([(0.83, 0.82), (0.84, 0.82)]):
        for entry, share in (("LBQ", lbq), ("V3", v3)):
            known = {"counts": COUNTS, "layers": layers(0.2), "minutes": 30.0, "commit": "abc"}
            record(f"ablation/{entry}/learnable", seed, share, **known)
    record("open/no reset", 0, 0.7)
    record("open/no reset", 1, 0.72, numerics="0" * 64)
    page = results_page(open_results(tmp_path))
    assert "6 of 68 experiments" in page
    difference = "| LBQ/learnable | V3/learnable | accuracy, % | +0.15 | +1.50 +- 0.71 (n=2) |"
    assert f"{difference} inconclusive |" in page  # three runs more than networks
    assert "| ReLSG-ET beats Box-ET |  |  | 1 | 1 |" in page
    assert "N = 5, percent: 40.00 +- 0.00 (n=2) here, 40.52 in the paper" in " ".join(page.split())
    assert "| no reset | 71.00 +- 1.41 (n=2) | LBQ, step from 1.0 | -12.50 +- 0.71 (n=2) |" in page
    assert "| hours of training | 2.0 |" in page
    assert "abc (4); unknown (2)" in page


def test_the_page_does_not_depend_on_the_code_that_runs_now(record, tmp_path):
    path = record("ablation/V1/fixed", 0, 0.8)
    before = results_page(open_results(tmp_path))
    body = path.read_text()
    older = body.replace(body.split('"numerics_sha256": "')[1][:64], "f" * 64)
    path.write_text(older)
    after = results_page(open_results(tmp_path))
    assert [line for line in before.splitlines() if "digest" not in line] == [
        line for line in after.splitlines() if "digest" not in line
    ]
