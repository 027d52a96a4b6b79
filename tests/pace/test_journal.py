"""Journal and payload files: what is found again after a kill at every possible place."""

import json
import os
from pathlib import Path

import pytest

from pace.journal import Journal, PayloadFiles
from pace.state import StateError


def restored(folder):
    return Journal(folder).restore()


def test_a_new_journal_is_empty(tmp_path):
    assert restored(tmp_path / "new") == (None, [])


def test_events_come_back_in_order_across_restarts(tmp_path):
    for i in range(3):
        journal = Journal(tmp_path)
        assert journal.restore() == (None, [{"i": k} for k in range(i)])
        journal.append({"i": i})


@pytest.mark.parametrize("n_bytes", [1, 5, 20])
def test_a_half_written_last_event_never_happened(tmp_path, n_bytes):
    journal = Journal(tmp_path)
    journal.append({"text": "a\nb"})
    journal.append({"text": "c"})
    with (tmp_path / "journal.jsonl").open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - n_bytes)
    journal = Journal(tmp_path)
    assert journal.restore() == (None, [{"text": "a\nb"}])
    journal.append({"text": "d"})
    assert restored(tmp_path)[1] == [{"text": "a\nb"}, {"text": "d"}]


def test_a_snapshot_takes_the_place_of_the_events(tmp_path):
    journal = Journal(tmp_path)
    journal.append({"i": 0})
    journal.snapshot({"sum": 0})
    assert journal.n_events == 0 and (tmp_path / "journal.jsonl").stat().st_size == 0
    journal.append({"i": 1})
    assert restored(tmp_path) == ({"sum": 0}, [{"i": 1}])


def test_a_kill_between_the_snapshot_and_emptying_the_journal_replays_nothing_twice(tmp_path):
    journal = Journal(tmp_path)
    for i in range(3):
        journal.append({"i": i})
    events = (tmp_path / "journal.jsonl").read_bytes()
    journal.snapshot({"sum": 3})
    (tmp_path / "journal.jsonl").write_bytes(events)
    journal = Journal(tmp_path)
    assert journal.restore() == ({"sum": 3}, [])
    journal.append({"i": 3})
    assert restored(tmp_path) == ({"sum": 3}, [{"i": 3}])


def test_a_half_written_snapshot_is_not_read(tmp_path):
    journal = Journal(tmp_path)
    journal.append({"i": 0})
    (tmp_path / "snapshot.partial").write_bytes(b'{"number": 1, "sta')
    assert restored(tmp_path) == (None, [{"i": 0}])


def test_a_missing_event_is_an_error(tmp_path):
    journal = Journal(tmp_path)
    for i in range(3):
        journal.append({"i": i})
    lines = (tmp_path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_bytes(lines[0] + lines[2])
    with pytest.raises(StateError, match="event 3 follows event 1"):
        restored(tmp_path)


def test_nothing_is_appended_behind_an_event_that_could_not_be_written(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.append({"i": 0})
    monkeypatch.setattr(journal, "_events", Path("/dev/full"))
    with pytest.raises(OSError):
        journal.append({"i": 1})
    with pytest.raises(RuntimeError, match="could not be written"):
        journal.append({"i": 2})
    assert restored(tmp_path) == (None, [{"i": 0}])


def test_what_json_cannot_hold_is_refused_before_it_is_written(tmp_path):
    journal = Journal(tmp_path)
    with pytest.raises(ValueError):
        journal.append({"x": float("nan")})
    journal.append({"x": 1})
    assert restored(tmp_path)[1] == [{"x": 1}]


def test_a_cleared_journal_starts_anew(tmp_path):
    journal = Journal(tmp_path)
    journal.append({"i": 0})
    journal.snapshot({})
    journal.append({"i": 1})
    journal.clear()
    assert restored(tmp_path) == (None, [])
    journal.append({"i": 2})
    assert json.loads((tmp_path / "journal.jsonl").read_bytes())["number"] == 1


NAMES = ["0:17.0", "a/b", "../up", "a.bin", "a.partial", "ä %41"]


def test_payloads_of_any_name_are_kept_apart(tmp_path):
    files = PayloadFiles(tmp_path / "p")
    for i, name in enumerate(NAMES):
        files.write(name, bytes([i]) * 3)
    twin = PayloadFiles(tmp_path / "p")
    assert twin.ids == set(NAMES)
    assert [twin.read(name) for name in NAMES] == [bytes([i]) * 3 for i in range(len(NAMES))]
    assert os.listdir(tmp_path) == ["p"]


def test_only_wanted_payloads_stay(tmp_path):
    files = PayloadFiles(tmp_path)
    for name in NAMES:
        files.write(name, b"x")
    files.keep_only({"a/b", "never written"})
    assert files.ids == {"a/b"} == PayloadFiles(tmp_path).ids
    with pytest.raises(FileNotFoundError):
        files.read("0:17.0")


def test_a_half_written_payload_is_not_there(tmp_path):
    (tmp_path / "x.partial").write_bytes(b"ha")
    assert PayloadFiles(tmp_path).ids == set() and not os.listdir(tmp_path)


@pytest.mark.parametrize("links", [True, False])
def test_a_copied_payload_does_not_follow_the_original(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    files = PayloadFiles(tmp_path / "a")
    files.write("g:1", b"old")
    (tmp_path / "b").mkdir()
    files.copy_to(tmp_path / "b", "g:1")
    files.write("g:1", b"new")
    files.keep_only(set())
    assert PayloadFiles(tmp_path / "b").read("g:1") == b"old"
