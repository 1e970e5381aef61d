"""Random checkpoints, a second without a sanitizer; `python -m benchmarks.checkpoint.load` has the rest."""

from __future__ import annotations

import pytest

from benchmarks.checkpoint.load import LOAD


@pytest.mark.slow
def test_random_checkpoints_are_what_their_owners_had() -> None:
    done = LOAD.found("none", 1)
    assert done["rounds"] > 0
    assert min(done["compared"], done["drained"]) > 0
