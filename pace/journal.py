"""What a killed process has to find again on disk: an event journal with snapshots, and payload files.

Invariants: an event whose `append` has returned is restored, once and in order, whenever the process is killed; a
half-written event, snapshot or payload is never read. Events are numbered, and a snapshot names the last one it
contains: a kill between writing it and emptying the journal replays nothing twice.

Files survive the process, not the machine: the journal isn't forced to the disk (a checkpoint is, by its owner).
In: plain data for JSON, and bytes. Out: the same. Source: design (pipeline contract).
"""

import json
import os
import shutil
from pathlib import Path
from urllib.parse import quote, unquote

from pace.state import State, StateError

_PAYLOAD, _PARTIAL = ".bin", ".partial"


class Journal:
    """Events since the last snapshot, in a folder that one process at a time writes to.

    `restore` comes before the first `append`. After a failed `append` the owner is ahead of the disk, so every further
    one raises RuntimeError: the owner must be restored.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._events, self._snapshot = folder / "journal.jsonl", folder / "snapshot.json"
        self._events.touch()
        self._last = 0  # number of the last event
        self._behind = False
        self.n_events = 0  # since the snapshot

    def clear(self) -> None:
        """Forgets everything."""
        os.truncate(self._events, 0)
        self._snapshot.unlink(missing_ok=True)
        self._last = self.n_events = 0

    def append(self, event: State) -> None:
        """Adds one event."""
        if self._behind:
            raise RuntimeError(f"an earlier event could not be written to {self._events}")
        line = json.dumps({"number": self._last + 1, "event": event}, allow_nan=False, separators=(",", ":"))
        self._behind = True
        with self._events.open("ab") as file:
            file.write(line.encode() + b"\n")
        self._behind = False
        self._last += 1
        self.n_events += 1

    def snapshot(self, state: State) -> None:
        """Makes `state` the one to restore, in place of all events so far."""
        write_file(self._snapshot, json.dumps({"number": self._last, "state": state}, allow_nan=False).encode())
        os.truncate(self._events, 0)
        self.n_events = 0

    def restore(self) -> tuple[State | None, list[State]]:
        """The last snapshot, and the events after it. Raises StateError when an event in between is missing."""
        state: State | None = None
        self._last = 0
        if self._snapshot.exists():
            saved = json.loads(self._snapshot.read_bytes())
            state, self._last = saved["state"], int(saved["number"])
        content = self._events.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        os.truncate(self._events, len(whole))  # the next event must not continue one that was cut off
        events: list[State] = []
        for line in whole.splitlines():
            numbered = json.loads(line)
            if numbered["number"] <= self._last and not events:
                continue
            if numbered["number"] != self._last + 1:
                raise StateError(f"{self._events}: event {numbered['number']} follows event {self._last}")
            self._last += 1
            events.append(numbered["event"])
        self.n_events = len(events)
        return state, events


class PayloadFiles:
    """One file of opaque bytes per group. `ids` are the groups that have one."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for partial in folder.glob(f"*{_PARTIAL}"):
            partial.unlink()
        self._folder = folder
        self.ids = {unquote(path.name.removesuffix(_PAYLOAD)) for path in folder.glob(f"*{_PAYLOAD}")}

    def write(self, group_id: str, payload: bytes) -> None:
        """Stores the payload, in place of an earlier one."""
        write_file(self._path(group_id), payload)
        self.ids.add(group_id)

    def read(self, group_id: str) -> bytes:
        """The payload. Raises FileNotFoundError if there is none."""
        return self._path(group_id).read_bytes()

    def keep_only(self, wanted: set[str]) -> None:
        """Deletes the payloads of all other groups."""
        for group_id in self.ids - wanted:
            self._path(group_id).unlink(missing_ok=True)
        self.ids &= wanted

    def copy_to(self, folder: Path, group_id: str) -> None:
        """Copies one payload into the folder of another `PayloadFiles`, as a link where the file system has them.

        A link is as good as a copy: a payload file is never written to again, only replaced.
        """
        source, target = self._path(group_id), folder / self._path(group_id).name
        partial = target.with_suffix(_PARTIAL)
        partial.unlink(missing_ok=True)
        try:
            os.link(source, partial)
        except OSError:
            shutil.copyfile(source, partial)
        os.replace(partial, target)

    def _path(self, group_id: str) -> Path:
        return self._folder / f"{quote(group_id, safe='')}{_PAYLOAD}"


def write_file(path: Path, content: bytes) -> None:
    """Writes a file so that its name never shows anything but the whole content, old or new."""
    partial = path.with_suffix(_PARTIAL)
    partial.write_bytes(content)
    os.replace(partial, path)


def sync_folder(folder: Path) -> None:
    """Forces every file of a folder, and their names, to the disk."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
