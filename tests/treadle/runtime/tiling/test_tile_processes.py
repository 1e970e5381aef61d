"""Plans of arrays on real processes: as on virtual workers, also where one is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.treadle.runtime.tiling.hand_made import HandMade
from tests.treadle.runtime.tiling.test_interpreter import random_program
from treadle.planner.errors import CheckFailed
from treadle.runtime.tiling.checkpoints import SavedRun, TileCheckpoint, begin, complete, digest_of, save_tiles
from treadle.runtime.tiling.interpreter import program_of, run
from treadle.runtime.tiling.tasks import Tile, TileKey
from treadle.runtime.tiling.tiles import shape_of
from treadle.runtime.tiling.workers import run_processes


def killed_once(tile, *, marker):
    """Negate a tile; the first process that comes here dies of it."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        os.kill(os.getpid(), signal.SIGKILL)
    except FileExistsError:
        return -tile


def dying_plan(marker: Path):
    plan, x = HandMade((2,)), np.arange(12.0).reshape(4, 3)
    plan.value("x", x, ["S0"])
    plan.add("y", "map", "square", ["x"], (4, 3), ["S1"])
    plan.add("z", "map", f"{__name__}:killed_once", ["y"], (4, 3), ["S0"], params={"marker": str(marker)})
    plan.add("s", "fold", "sum", ["z"], (3,), ["S0"], axes=(0,))
    return plan.plan("y", "s"), x


def save_as_of(decisions, checkpoint, *, done):
    """A checkpoint after `done` operators, in which all arrays are zero."""
    program = program_of(decisions, {})
    held = {TileKey(name): program.tiles(name) for name in list(program.arrays)[:done]}
    fresh = begin(checkpoint, done)
    for worker in range(2):
        tiles = {key: Tile(tiles[worker], np.zeros(shape_of(tiles[worker]))) for key, tiles in held.items()}
        save_tiles(fresh, worker, tiles)
    rows = [(*key, tiles) for key, tiles in held.items()]
    complete(checkpoint, fresh, SavedRun(digest_of(decisions, {}), done, [], rows, {}))


@pytest.mark.slow
def test_processes_compute_and_move_what_virtual_workers_do():
    plan = HandMade((3,))
    have = random_program(plan, np.random.default_rng(5), (7, 5), copies=True)
    decisions = plan.plan(*have)
    alone, together = run(decisions), run_processes(decisions)
    for name in have:
        assert np.array_equal(alone.outputs[name], together.outputs[name]), name
    assert together.moved == alone.moved
    assert together.maps == alone.maps
    assert sum(together.received_bytes) == together.bytes
    assert together.received_bytes == alone.received_bytes


@pytest.mark.slow
def test_a_killed_worker_ends_the_run_in_one_line(tmp_path):
    decisions, _ = dying_plan(tmp_path / "marker")
    with pytest.raises(CheckFailed, match=r"rank [01] was killed by signal 9 .*; the other ranks were stopped"):
        run_processes(decisions)


@pytest.mark.slow
def test_a_killed_worker_is_made_good_from_the_checkpoint(tmp_path):
    decisions, x = dying_plan(tmp_path / "marker")
    found = run_processes(decisions, checkpoint=TileCheckpoint(tmp_path / "saved"))
    assert np.array_equal(found.outputs["s"], -(x**2).sum(0))
    assert found.moved == run(decisions).moved
    assert not (tmp_path / "saved").exists()


@pytest.mark.slow
def test_a_second_run_goes_on_from_the_checkpoint_of_the_first(tmp_path):
    decisions, x = dying_plan(tmp_path / "marker")
    saved = TileCheckpoint(tmp_path / "saved")
    save_as_of(decisions, saved, done=2)
    (tmp_path / "marker").touch()
    found = run_processes(decisions, checkpoint=saved)
    assert np.array_equal(found.outputs["s"], 0 * x.sum(0))  # y was saved as zeros


def test_a_checkpoint_of_another_run_is_not_taken(tmp_path):
    decisions, _ = dying_plan(tmp_path)
    assert digest_of(decisions, {}) != digest_of(decisions, {"x": np.zeros(1)})
