"""Snapshots of a job's state on one server: written atomically, the two newest kept, the newest good one resumed.

A file is a line of JSON, then weights, states and numbers of updates of this server's chunks as little endian numbers,
then the SHA-256 of all of it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from treadle.planner.documents.files import replace_file
from treadle.planner.errors import InputError
from treadle.runtime.server.served_job import ServedJob
from treadle.runtime.wire.control_stream import raw

KEPT = 2
PIECE_BYTES = 1 << 24
MOST_HEAD = 1 << 28
DIGEST_BYTES = hashlib.sha256().digest_size
VERSION = 1


@dataclass(frozen=True, eq=False)
class JobState:
    """Weights, and states of the optimizer, of all elements in the order of keys; how often each chunk was updated."""

    version: int
    weights: NDArray[np.float32]
    states: tuple[NDArray[np.float32], ...]
    updates: NDArray[np.uint64]


class SnapshotHead(msgspec.Struct, frozen=True, kw_only=True):
    """Which state follows: it fits a server with the same chunks of the same model and the same optimizer."""

    treadle_snapshot: int = VERSION
    namespace: str
    server: int
    step: int
    optimizer: str
    model: str
    """Digest of keys and chunks."""
    elements: int
    states: int
    chunks: int


class Snapshots:
    """The snapshots of one job in `folder`, which is made. `say` prints a line."""

    def __init__(self, folder: Path, job: ServedJob, say: Callable[[str], None]) -> None:
        """Raises InputError for a folder where no file can be made."""
        self.folder, self.job, self._say = folder, job, say
        self._own = job.own_slots >= 0
        self._elements = None if self._own.all() else job.elements_of(self._own)
        self._model = _digest_of(job)
        self.newest: int | None = None
        """The step of the newest good one."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for stale in folder.glob(f".{self._stem()}-*.writing"):
                stale.unlink()
            self._check_room()
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror or error}", where=str(folder)) from error

    def write(self, state: JobState) -> Path | None:
        """The file of the state, complete on disk; None, with a line, where the disk is full or fails."""
        path = self.file(state.version)
        fresh = self.folder / f".{path.stem}.writing"
        try:
            try:
                with open(fresh, "wb", buffering=0) as stream:
                    digest = hashlib.sha256()
                    for piece in self._pieces(state):
                        digest.update(piece)
                        _write_all(stream, piece)
                    _write_all(stream, memoryview(digest.digest()))
                replace_file(fresh, path)
            finally:
                fresh.unlink(missing_ok=True)
        except OSError as error:
            reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
            self._say(
                f"snapshot of step {state.version} of {self.job.namespace} is not written to {self.folder}: {reason}"
            )
            return None
        self.newest = state.version
        for _, old in self._files()[KEPT:]:
            with suppress(OSError):
                old.unlink()
        return path

    def file(self, step: int) -> Path:
        return self.folder / f"{self._stem()}-{step:012d}.snapshot"

    def resume(self, most_step: int | None) -> tuple[JobState, Path] | None:
        """The newest good one, of at most this step if any is given; None without any. Those that are damaged or later
        get another ending, with a line for each. Raises InputError for one of another model, or where no good one has a
        step so low."""
        files = self._files()
        for step, path in files:
            if most_step is not None and step > most_step:
                continue
            try:
                state = self._read(path)
            except (OSError, ValueError) as error:
                self._set_aside(path, "damaged", (error.strerror if isinstance(error, OSError) else None) or str(error))
                continue
            for later, other in files:
                if later > step and other.exists():
                    self._set_aside(other, "later", f"it is later than step {step}")
            self.newest = step
            return state, path
        if most_step is not None:
            steps = ", ".join(str(step) for step, _ in files) or "none"
            raise InputError(f"found snapshots of steps {steps} in {self.folder}", where=f"--resume {most_step}")
        if files:
            raise InputError(
                f"every snapshot of {self.job.namespace} is damaged; give another folder to begin anew",
                where=str(self.folder),
            )
        return None

    def _set_aside(self, path: Path, ending: str, reason: str) -> None:
        aside = path.with_name(f"{path.name}.{ending}")
        try:
            path.rename(aside)
        except OSError as error:
            raise InputError(f"cannot be renamed: {error.strerror}", where=str(path)) from error
        self._say(f"{path}: skipped, now {aside.name}: {reason}")

    def _head(self, step: int) -> SnapshotHead:
        job = self.job
        return SnapshotHead(
            namespace=job.namespace,
            server=job.server,
            step=step,
            optimizer=job.decisions.problem.optimizer,
            model=self._model,
            elements=int(job.chunk_elements[self._own].sum()),
            states=job.states,
            chunks=int(self._own.sum()),
        )

    def _pieces(self, state: JobState) -> Iterable[memoryview]:
        yield memoryview(msgspec.json.encode(self._head(state.version)) + b"\n")
        for values in (state.weights, *state.states):
            yield from _cut(values if self._elements is None else values[self._elements])
        yield from _cut(state.updates[self._own])

    def _read(self, path: Path) -> JobState:
        """Raises ValueError for a damaged file, InputError for one of another job."""
        _require_whole(path)
        with open(path, "rb") as stream:
            head = msgspec.json.decode(stream.readline(MOST_HEAD), type=SnapshotHead)
            expected = self._head(head.step)
            for name in expected.__struct_fields__:
                if getattr(head, name) != getattr(expected, name):
                    reason = f"a snapshot of another job: its {name} differs; give another folder to begin anew"
                    raise InputError(reason, where=str(path))
            floats = [np.fromfile(stream, np.float32, head.elements) for _ in range(1 + head.states)]
            updates = np.fromfile(stream, np.uint64, head.chunks)
        weights, *states = (self._spread(each) for each in floats)
        counts = np.zeros(len(self.job.chunk_elements), np.uint64)
        counts[self._own] = updates
        return JobState(head.step, weights, tuple(states), counts)

    def _spread(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if self._elements is None:
            return values
        whole = np.zeros(self.job.elements, np.float32)
        whole[self._elements] = values
        return whole

    def _stem(self) -> str:
        return f"{self.job.namespace}.{self.job.server}"

    def _files(self) -> list[tuple[int, Path]]:
        """Steps and files, the newest first."""
        form = re.compile(re.escape(self._stem()) + r"-(\d{12,})\.snapshot")
        found = [(match, path) for path in self.folder.iterdir() if (match := form.fullmatch(path.name))]
        return sorted(((int(match[1]), path) for match, path in found), reverse=True)

    def _check_room(self) -> None:
        probe = self.folder / f".{self._stem()}-probe.writing"
        probe.touch()
        probe.unlink()


def _digest_of(job: ServedJob) -> str:
    """Keys, chunks, and which of them are on this server."""
    model = hashlib.sha256()
    for key in job.decisions.problem.keys:
        model.update(msgspec.json.encode((key.name, key.elements, key.dtype)))
    for part in (job.chunk_keys, job.chunk_elements, job.own_slots >= 0):
        model.update(part.tobytes())
    return model.hexdigest()


def _require_whole(path: Path) -> None:
    """Raises ValueError for a file that does not end in the digest of the rest."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        rest = os.fstat(stream.fileno()).st_size - DIGEST_BYTES
        while rest > 0 and (piece := stream.read(min(rest, PIECE_BYTES))):
            digest.update(piece)
            rest -= len(piece)
        if stream.read() != digest.digest():
            raise ValueError("it is damaged: its digest differs")


def _cut(values: NDArray[Any]) -> Iterable[memoryview]:
    data = raw(values)
    for start in range(0, data.nbytes, PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


def _write_all(stream: BinaryIO | Any, data: memoryview) -> None:
    while data.nbytes:
        data = data[stream.write(data) :]
