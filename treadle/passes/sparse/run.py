"""`treadle run` of sparse plans."""

from __future__ import annotations

from pathlib import Path

from treadle.passes.interface import RunOptions
from treadle.planner.errors import InputError


def run_sparse(folder: Path, options: RunOptions) -> None:
    """Raises InputError: nothing executes sparse plans yet."""
    raise InputError("sparse plans cannot run yet", where=str(folder))
