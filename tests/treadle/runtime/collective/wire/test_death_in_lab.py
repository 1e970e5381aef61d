"""On hosts of a lab, a rank killed at a random moment ends all others within seconds, with its name."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest

from treadle.lab.layout import layout
from treadle.lab.lifecycle import the_lab
from treadle.lab.run import run
from treadle.planner.errors import MissingBackendError
from treadle.probe.resolve import load_hardware

ROUNDS, LONGEST = 20, 5.0


@pytest.mark.slow
def test_a_rank_killed_at_twenty_moments_is_named_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    printed: list[str] = []
    errors: list[str] = []
    where = layout(load_hardware("hosts-2x2"), 100)
    try:
        with the_lab(where) as lab:
            command = [sys.executable, "-m", "tests.treadle.runtime.collective.wire.lab_worker", str(ROUNDS)]
            run(lab, command, lambda name, is_error, line: (errors if is_error else printed).append(line.decode()))
    except MissingBackendError as error:
        pytest.skip(f"no lab on this machine: {error}")
    said: dict[int, dict[int, tuple[str, float]]] = defaultdict(dict)
    for line in printed:
        number, rank, text, when = json.loads(line)
        said[number][rank] = text, when
    assert sorted(said) == list(range(ROUNDS))
    for ranks in said.values():
        assert sorted(ranks) == [0, 1, 2, 3], errors
        (victim,) = (rank for rank, (text, _) in ranks.items() if text == "killed")
        for rank, (text, when) in ranks.items():
            if rank != victim:
                assert f"rank {victim} " in text.split(": ", 1)[1], text
                assert "step" in text
                assert when - ranks[victim][1] < LONGEST
