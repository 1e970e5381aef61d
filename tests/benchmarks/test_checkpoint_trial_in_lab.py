"""A training between hosts of a lab that loses one goes on from the memory of another, with the same losses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd-server")]

# a process of its own, since ranks are forks of it
SHORTER = """\
import json
from benchmarks.checkpoint import trials
from benchmarks.checkpoint.faults import FAULTS
from treadle.planner.errors import MissingBackendError

trials.STEPS, trials.FIRST, trials.LAST = 16, 5, 9
try:
    print(json.dumps([table.rows for table in trials.trials([FAULTS[1]], [0])]))
except MissingBackendError as error:
    print(json.dumps(str(error)))
"""


def test_a_training_that_loses_a_host_goes_on_from_memory_with_equal_losses(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SHORTER],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(root)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if isinstance(found, str):
        pytest.skip(found)
    (row,), phases = found
    assert (row["fault"], row["wrong"], row["equal"], row["from"]) == ("a host is lost", "", 1, "memory 1")
    assert row["steps repeated, most"] <= 2
    assert 0 < row["s seen"] < row["s step"]
    assert [each["phase"] for each in phases] == [
        "detect and plan",
        "replace",
        "fetch",
        "agree",
        "restart",
        "first step",
    ]
    assert sum(each["s"] for each in phases) == pytest.approx(row["s step"])
