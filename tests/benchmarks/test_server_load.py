"""Random jobs of 8 workers on native servers, some seconds without a sanitizer; `make bench-server` has the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.server.load import LOAD


@pytest.mark.slow
def test_random_jobs_come_to_the_values_of_a_plain_reference() -> None:
    done = LOAD.found("none", 3)
    assert done["jobs"] >= done["rounds"] > 0
    assert done["compared"] > 0
    assert done["deaths"] > 0


@pytest.mark.slow
def test_a_wrong_sum_ends_the_load(tmp_path: Path) -> None:
    """The same load with a kernel that doubles every gradient but the first."""
    kernels = "treadle_server_kernels.h"
    broken = tmp_path / "broken"
    broken.mkdir()
    source = next(path for path in LOAD.sources if (path / kernels).exists())
    text = (source / kernels).read_text()
    assert "sum[i] + value(i)" in text
    (broken / kernels).write_text(text.replace("sum[i] + value(i)", "sum[i] + 2 * value(i)"))
    with pytest.raises(SystemExit, match=r"exit code 1: round \d+, a job with .*expected"):
        replace(LOAD, sources=(broken, *LOAD.sources)).found("none", 3)
