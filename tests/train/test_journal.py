import errno
import json
import logging
import os

from lbq.train.journal import Journal, read_journal


def events(path):
    return [(record["event"], record["step"]) for record in read_journal(path)]


def test_records_are_read_back_in_order_with_their_time(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal({"event": "train", "step": 1, "loss": 0.25})
    journal({"event": "train", "step": 2, "loss": 0.125})
    records = list(read_journal(path))
    assert [record["loss"] for record in records] == [0.25, 0.125]
    assert all(record["time"] > 1.7e9 for record in records)


def test_a_number_that_json_does_not_know_is_written_as_a_word(tmp_path):
    path = tmp_path / "journal.jsonl"
    Journal(path)({"event": "skip", "step": 1, "loss": float("nan"), "norm": float("inf")})
    record = next(read_journal(path))
    assert (record["loss"], record["norm"]) == ("nan", "inf")


def test_a_torn_line_costs_only_itself(tmp_path):
    path = tmp_path / "journal.jsonl"
    Journal(path)({"event": "train", "step": 1})
    with path.open("a") as file:
        file.write('{"event": "train", "st')
    Journal(path)({"event": "train", "step": 3})
    assert events(path) == [("train", 1), ("train", 3)]


def test_steps_that_were_repeated_after_a_crash_are_told_once(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for record in [("train", 1), ("train", 2), ("train", 3), ("resume", 1), ("train", 2)]:
        journal(dict(zip(("event", "step"), record, strict=True)))
    assert events(path) == [("train", 1), ("resume", 1), ("train", 2)]


def test_a_full_disk_delays_lines_and_complains_once(tmp_path, monkeypatch, caplog):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    real = os.write

    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with caplog.at_level(logging.ERROR):
        monkeypatch.setattr(os, "write", full)
        journal({"event": "train", "step": 1})
        journal({"event": "train", "step": 2})
        monkeypatch.setattr(os, "write", real)
    journal({"event": "train", "step": 3})
    assert events(path) == [("train", 1), ("train", 2), ("train", 3)]
    assert len(caplog.records) == 1
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_run_without_a_journal_has_no_records(tmp_path):
    assert list(read_journal(tmp_path / "journal.jsonl")) == []
