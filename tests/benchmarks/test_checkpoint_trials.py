"""What the trials of checkpoints compare: curves bit by bit, and faults that are what they say."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from random import Random

from benchmarks.checkpoint.curves import difference, iteration_ns, read
from benchmarks.checkpoint.faults import FAULTS, MEMORY_NAME, flip
from benchmarks.checkpoint.moments import Moments
from benchmarks.checkpoint.phases import parts
from benchmarks.checkpoint.trials import PHASES

WHOLE = "from 0 begin 1\n0 0x1.8p+1 10\n1 0x1.4p+1 20\n2 0x1.0p+1 30\n"


def written(folder: Path, text: str) -> Path:
    (folder / "curve").write_text(text)
    return folder / "curve"


def test_a_curve_that_goes_on_from_an_earlier_step_is_equal_where_every_repeated_loss_is(tmp_path: Path) -> None:
    whole = read(written(tmp_path, WHOLE))
    again = read(
        written(
            tmp_path, "from 0 begin 1\n0 0x1.8p+1 10\n1 0x1.4p+1 20\nfrom 1 memory 25\n1 0x1.4p+1 30\n2 0x1.0p+1 40\n"
        )
    )
    assert difference([whole], [again]) == ""
    assert again.starts[-1] == (1, "memory", 25)
    assert again.last_step == 2


def test_one_bit_of_a_loss_or_a_missing_step_is_a_difference(tmp_path: Path) -> None:
    whole = read(written(tmp_path, WHOLE))
    other = read(written(tmp_path, WHOLE.replace("0x1.4p+1", "0x1.4000000000001p+1")))
    assert difference([whole], [other]).startswith("rank 0 step 1:")
    short = read(written(tmp_path, WHOLE.rpartition("2 ")[0]))
    assert difference([whole], [short]) == "rank 0: step 2 is missing"


def test_a_line_that_a_killed_rank_has_begun_does_not_count(tmp_path: Path) -> None:
    assert read(written(tmp_path, WHOLE + "3 0x1.")).last_step == 2
    assert read(tmp_path / "none").last_step == -1


def test_an_iteration_is_the_median_between_two_steps(tmp_path: Path) -> None:
    assert iteration_ns(read(written(tmp_path, WHOLE + "3 0x1p+1 70\n4 0x1p+1 80\n")), warm=0) == 10


def test_a_flipped_bit_is_one_bit_of_each_version_of_the_state_that_is_meant() -> None:
    files = [os.memfd_create(MEMORY_NAME) for _ in range(2)]
    try:
        for file in files:
            os.write(file, bytes([255]) * 100 + bytes(28) + bytes([255]) * 100 + bytes(28))
        flip(os.getpid(), state=1, dice=Random(3))
        own, other = (bytes(mmap.mmap(file, 0, access=mmap.ACCESS_READ)) for file in files)
    finally:
        for file in files:
            os.close(file)
    assert own == bytes([255]) * 100 + bytes(28) + bytes([255]) * 100 + bytes(28)
    for half in (other[:128], other[128:]):
        assert sum(byte.bit_count() for byte in half) == 799


def test_a_line_of_an_agent_counts_once_it_is_whole_and_after_the_fault(tmp_path: Path) -> None:
    moments = Moments(tmp_path)
    log = tmp_path / "agent1.log"
    log.write_text("epoch 1: all machines are whole\nepoch 2: no agent of machine 2; all go")
    moments.look()
    assert len(moments.times("whole", 0)) == 1
    assert moments.times("seen", 0) == []
    fault = time.monotonic_ns()
    with log.open("a") as more:
        more.write(" on from version 7\nversion 7 of machine 2 is fetched from machine 3\n")
    moments.look()
    assert len(moments.times("seen", fault)) == len(moments.times("fetched", fault)) == 1
    assert moments.times("whole", fault) == []


def test_every_fault_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 11


def test_phases_of_a_recovery_follow_each_other_and_add_up_to_its_first_step() -> None:
    moments = dict(zip(PHASES, (2.5, 3.0, 3.25, 3.5, 3.25, 4.0, 4.25), strict=True))
    assert parts(moments) == {
        "detect and plan": 2.5,
        "replace": 0.5,
        "fetch": 0.25,
        "agree": 0.25,
        "restart": 0.5,
        "first step": 0.25,
    }
    assert parts({**moments, "replaced": 2.0, "fetched": 2.5})["replace"] == 0  # type: ignore[index]
    assert parts({**moments, "seen": None}) is None
