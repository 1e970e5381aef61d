"""Schedules on several processes: right results under random pauses; deaths, hangs and Ctrl-C leave nothing behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil
import pytest

from tests.planner.passes.fusion.by_hand import pipeline, sgd
from treadle.codegen.fusion.lower import Lowered, lower
from treadle.planner.errors import CheckFailed, InputError, LimitError
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Bindings
from treadle.runtime.fusion import processes
from treadle.runtime.fusion.build import Compiled, build
from treadle.runtime.fusion.compare import compare
from treadle.runtime.fusion.rendezvous import Rendezvous, RendezvousAddress
from treadle.runtime.fusion.runs import Runs
from treadle.runtime.fusion.tensors import Tensors

LOST = "if (!Slots::FLAGGED) signal_system(&lane.receiver->filled.value, lane.sent);"
"""Signals to a rank that a message has arrived."""


@dataclass(frozen=True)
class Made:
    lowered: Lowered
    compiled: Compiled


@dataclass(frozen=True)
class Altered:
    """A schedule with one header changed."""

    lowered: Lowered
    texts: dict[str, str]

    def __getattr__(self, name: str) -> object:
        return getattr(self.lowered, name)


@pytest.fixture(scope="module")
def made() -> Made:
    lowered = lower(sgd("fused"), Bindings({"N": 1001}, 4), slot_bytes=256)
    return Made(lowered, build(lowered, "process", quickly=True))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = _open()
    yield
    assert _open() == before
    assert not _children()


def _open() -> tuple[int, set[str]]:
    """Files of this process that are shared memory, and what has a name."""
    links = [os.readlink(f"/proc/self/fd/{file}") for file in os.listdir("/proc/self/fd") if _lasts(file)]
    return sum("memfd:treadle" in link for link in links), {x for x in os.listdir("/dev/shm") if "treadle" in x}


def _children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            found += [child] if "spawn_main" in " ".join(child.cmdline()) else []
    return found


def _lasts(file: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{file}") and os.path.exists(f"/proc/self/fd/{file}")


def test_chunks_need_not_be_aligned_where_the_compiler_does_all_it_can() -> None:
    text = 'N = dims("N")\ng = Tensor("g", f16, [N], Local)\ns = AllReduce("+", g)\nprogram = Execute("ar", [g], [s])\n'
    lowered = lower(parse(text, "ar"), Bindings({"N": 5000}, 4))
    outcome = compare(build(lowered, "process", counts=True), lowered)
    assert (outcome.good, outcome.bits) == (True, True)


def test_every_bit_is_right_in_every_run_under_random_pauses(made: Made) -> None:
    compared = compare(made.compiled, made.lowered, Runs(repeats=8, order=3, timeout=20))
    assert compared.good, compared.problems
    assert compared.bits
    assert len(compared.report.seconds) == 8


def test_groups_of_processes_send_to_the_next_group() -> None:
    lowered = lower(pipeline("rs cp ag"), Bindings({"B": 1, "S": 5, "H": 3}, 2, 2))
    compared = compare(build(lowered, "process", quickly=True), lowered, Runs(repeats=3, order=5))
    assert compared.good, compared.problems
    assert compared.bits


def test_a_killed_rank_is_named(made: Made) -> None:
    tensors = Tensors(made.compiled.buffers, 4, shared=True)
    killer = threading.Thread(target=_to_one_child, args=(signal.SIGKILL,))
    killer.start()
    with pytest.raises(CheckFailed, match=r"rank \d was killed by signal 9"):
        processes.run(made.compiled, tensors, Runs(repeats=20_000))
    killer.join()
    tensors.close()


def test_ctrl_c_ends_all_processes(made: Made) -> None:
    tensors = Tensors(made.compiled.buffers, 4, shared=True)
    presser = threading.Thread(target=_to_one_child, args=(None,))
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        processes.run(made.compiled, tensors, Runs(repeats=20_000))
    presser.join()
    tensors.close()


def _to_one_child(number: signal.Signals | None) -> None:
    """Signal a child that has worked for a moment, or press Ctrl-C."""
    end = time.monotonic() + 20
    while len(_children()) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.5)
    if number is None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _children()[2].send_signal(number)


def test_a_lost_signal_is_found_and_told() -> None:
    lowered = lower(sgd("fused"), Bindings({"N": 10}, 2))
    header = lowered.texts["treadle_collective.h"]
    assert LOST in header
    altered = Altered(lowered, {**lowered.texts, "treadle_collective.h": header.replace(LOST, "")})
    compiled = build(altered, "process", quickly=True)  # type: ignore[arg-type]
    tensors = Tensors(compiled.buffers, 2, shared=True)
    with pytest.raises(CheckFailed, match="the schedule does not end") as error:
        processes.run(compiled, tensors, Runs(timeout=0.2))
    assert any("waits for a message of rank" in line for line in error.value.findings)
    tensors.close()


def test_libraries_for_fibers_are_refused(made: Made) -> None:
    with pytest.raises(InputError, match="found a library for fibers, expected one for process"):
        processes.run(replace(made.compiled, target="fibers"), Tensors(made.compiled.buffers, 4))


def test_nobody_waits_for_ever_for_a_rank_0_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.runtime.fusion.rendezvous.PATIENCE_SECONDS", 0.05)
    with pytest.raises(LimitError, match="rank 0 did not start"):
        Rendezvous(RendezvousAddress(), 1, 2)
