"""On hosts of a lab, a rank that is killed or cut off ends all others within seconds, with its name."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from treadle.lab.layout import layout
from treadle.lab.lifecycle import the_lab
from treadle.lab.run import run
from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import MissingBackendError
from treadle.probe.resolve import load_hardware

ROUNDS, LONGEST = 8, 5.0


class Printed(NamedTuple):
    lines: list[Any]
    errors: list[str]


def in_lab(
    hardware: Hardware, worker: str, words: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Printed:
    """What the workers print on all hosts: the JSON of each line, and lines of errors."""
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    printed: list[str] = []
    errors: list[str] = []
    try:
        with the_lab(layout(hardware, 100)) as lab:
            command = [sys.executable, "-m", f"tests.treadle.runtime.collective.{worker}", *words]
            run(lab, command, lambda name, is_error, line: (errors if is_error else printed).append(line.decode()))
    except MissingBackendError as error:
        pytest.skip(f"no lab on this machine: {error}")
    return Printed([json.loads(line) for line in printed], errors)


@pytest.mark.slow
def test_a_rank_killed_at_any_of_eight_moments_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = in_lab(load_hardware("hosts-2x2"), "wire.lab_worker", [str(ROUNDS)], tmp_path, monkeypatch)
    said: dict[int, dict[int, tuple[str, float]]] = defaultdict(dict)
    for number, rank, text, when in printed.lines:
        said[number][rank] = text, when
    assert sorted(said) == list(range(ROUNDS))
    for ranks in said.values():
        assert sorted(ranks) == [0, 1, 2, 3], printed.errors
        (victim,) = (rank for rank, (text, _) in ranks.items() if text == "killed")
        for rank, (text, when) in ranks.items():
            if rank != victim:
                assert f"rank {victim} " in text.split(": ", 1)[1], text
                assert "step" in text
                assert when - ranks[victim][1] < LONGEST


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "elements"), [(0, 3_000_001), (3, 30_001)])
def test_a_host_that_is_cut_off_is_named_by_all_others(
    victim: int, elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbor has sent to it what nobody acknowledges, others only wait; long messages end in the middle."""
    printed = in_lab(
        load_hardware("slow-nic"), "wire.silent_worker", [str(victim), str(elements)], tmp_path, monkeypatch
    )
    said = {rank: (text, seconds) for rank, text, seconds in printed.lines}
    assert sorted(said) == [0, 1, 2, 3], printed.errors
    for rank in {0, 1, 2, 3} - {victim}:
        text, seconds = said[rank]
        assert f"rank {victim} " in text.split(": ", 1)[1], text
        assert seconds < LONGEST + 1
