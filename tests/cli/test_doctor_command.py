import json
from types import SimpleNamespace

from lbq.cli import doctor_command
from lbq.cli.main import main


def by_name(cache):
    return {finding.what: finding for finding in doctor_command.examine(cache)}


def test_everything_is_looked_at(tmp_path):
    found = by_name(tmp_path)
    assert {"versions", "GPUs", "threads", "native kernels", "native engine", "data cache"} <= set(
        found
    )
    assert {f"extra {name}" for name in ("datasets", "pillow", "tensorboard")} <= set(found)
    assert "torch" in found["versions"].found


def test_what_is_missing_comes_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_command.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor_command.native_scan, "isa", lambda: None)
    monkeypatch.setattr(doctor_command.native_scan, "load_error", lambda: "is not built")
    monkeypatch.setattr(doctor_command.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor_command.torch, "get_num_threads", lambda: 0)
    found = by_name(tmp_path)
    ill = {what for what, finding in found.items() if not finding.is_well}
    assert {"native kernels", "C++ compiler", "threads", "extra datasets"} <= ill
    assert all(found[what].advice for what in ill)
    assert found["extra tensorboard"].advice.startswith(
        "pip install 'datasets>=4' pillow tensorboard for"
    )
    assert "--threads" in found["threads"].advice


def test_a_cache_that_does_not_exist_yet_is_judged_by_its_disk(tmp_path):
    finding = by_name(tmp_path / "not" / "yet")["data cache"]
    assert "GB free" in finding.found
    assert not (tmp_path / "not").exists()
    assert finding.is_well


def test_a_full_disk_is_told_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(
        doctor_command.shutil, "disk_usage", lambda path: SimpleNamespace(free=0.9e9)
    )
    finding = by_name(tmp_path)["data cache"]
    assert "0.9 GB free" in finding.found
    assert not finding.is_well
    assert "free some space" in finding.advice


def test_the_command_prints_a_table_or_data(capsys, tmp_path):
    assert main(["doctor", "--cache", str(tmp_path)]) == 0
    assert "native kernels" in capsys.readouterr().out
    assert main(["doctor", "--cache", str(tmp_path), "--json"]) == 0
    assert {row["what"] for row in json.loads(capsys.readouterr().out)} >= {"GPUs", "threads"}


def test_a_module_that_no_package_owns_is_found_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "somebodys_folder").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    found = doctor_command._extra("somebodys_folder", "data", "nothing")
    assert (found.found, found.is_well) == ("installed, version unknown", True)
