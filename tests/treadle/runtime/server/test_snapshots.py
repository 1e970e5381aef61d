"""Snapshots: two are kept, the newest good one is resumed, and a full disk ends nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.treadle.runtime.server.served import ELEMENTS, job_of
from treadle.planner.errors import InputError
from treadle.planner.passes.server.keys import ServerKey
from treadle.runtime.server import snapshots as module
from treadle.runtime.server.served_job import ServedJob
from treadle.runtime.server.snapshots import JobState, Snapshots


def state_of(step: int, job: ServedJob) -> JobState:
    weights = np.arange(ELEMENTS, dtype=np.float32) + step
    states = tuple(weights * (2 + number) for number in range(job.states))
    return JobState(step, weights, states, np.full(len(job.chunk_elements), step, np.uint64))


def kept(folder: Path, steps: tuple[int, ...] = (5, 10, 15), **changed: Any) -> tuple[Snapshots, list[str]]:
    said: list[str] = []
    job = job_of(**changed)
    found = Snapshots(folder, job, said.append)
    for step in steps:
        found.write(state_of(step, job))
    return found, said


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_the_two_newest_are_kept_and_the_newest_is_resumed(tmp_path: Path) -> None:
    found, _ = kept(tmp_path, optimizer="adam")
    assert names(tmp_path) == ["small.0-000000000010.snapshot", "small.0-000000000015.snapshot"]
    resumed = found.resume(None)
    assert resumed is not None
    state, path = resumed
    assert (state.version, path.name) == (15, "small.0-000000000015.snapshot")
    expected = state_of(15, found.job)
    assert np.array_equal(state.weights, expected.weights)
    assert np.array_equal(state.states, expected.states)
    assert np.array_equal(state.updates, expected.updates)


def test_a_shard_keeps_its_own_chunks_alone(tmp_path: Path) -> None:
    found, _ = kept(tmp_path, mode="ncs", servers=2)
    resumed = found.resume(None)
    assert resumed is not None
    own = found.job.elements_of(found.job.own_slots >= 0)
    assert 0 < own.sum() < ELEMENTS
    assert np.array_equal(resumed[0].weights, np.where(own, state_of(15, found.job).weights, 0))


@pytest.mark.parametrize("place", [0, 10, 100, 900, None])
def test_a_damaged_one_is_skipped_with_a_line(tmp_path: Path, place: int | None) -> None:
    found, said = kept(tmp_path)
    newest = tmp_path / "small.0-000000000015.snapshot"
    data = bytearray(newest.read_bytes())
    if place is None:
        del data[2000:]
    else:
        data[place] ^= 0xFF
    newest.write_bytes(data)
    resumed = found.resume(None)
    assert resumed is not None
    assert resumed[0].version == 10
    (line,) = said
    assert "skipped, now small.0-000000000015.snapshot.damaged: it is damaged: its digest differs" in line
    found.write(state_of(20, found.job))
    assert names(tmp_path) == [
        "small.0-000000000010.snapshot",
        "small.0-000000000015.snapshot.damaged",
        "small.0-000000000020.snapshot",
    ]


def test_with_nothing_but_damaged_ones_the_server_does_not_begin_anew(tmp_path: Path) -> None:
    found, _ = kept(tmp_path, (5,))
    (tmp_path / "small.0-000000000005.snapshot").write_bytes(b"")
    with pytest.raises(InputError, match="every snapshot of small is damaged; give another folder to begin anew"):
        found.resume(None)


def test_a_step_is_chosen_and_later_ones_are_set_aside(tmp_path: Path) -> None:
    found, said = kept(tmp_path)
    resumed = found.resume(12)
    assert resumed is not None
    assert resumed[0].version == 10
    assert names(tmp_path) == ["small.0-000000000010.snapshot", "small.0-000000000015.snapshot.later"]
    assert len(said) == 1
    with pytest.raises(InputError, match=r"--resume 3: found snapshots of steps 10 in "):
        found.resume(3)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"optimizer": "adam"}, "optimizer"),
        ({"keys": (ServerKey(name="head", elements=800), ServerKey(name="stem", elements=1))}, "model"),
        ({"chunk_bytes": 2048}, "model"),
    ],
    ids=("optimizer", "keys", "chunks"),
)
def test_one_of_another_job_is_refused(tmp_path: Path, changed: dict[str, Any], what: str) -> None:
    kept(tmp_path, (5,))
    with pytest.raises(InputError, match=f"a snapshot of another job: its {what} differs"):
        Snapshots(tmp_path, job_of(**changed), print).resume(None)


def test_a_full_disk_is_said_and_the_older_snapshots_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = kept(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "_write_all", full)
    assert found.write(state_of(20, found.job)) is None
    assert said == [f"snapshot of step 20 of small is not written to {tmp_path}: the disk is full"]
    assert names(tmp_path) == ["small.0-000000000010.snapshot", "small.0-000000000015.snapshot"]
    assert found.newest == 15


def test_what_a_killed_server_left_half_written_goes(tmp_path: Path) -> None:
    (tmp_path / ".small.0-000000000015.writing").write_bytes(b"half")
    found, _ = kept(tmp_path, ())
    assert found.resume(None) is None
    assert names(tmp_path) == []
