"""How much the benchmarks of the index load and execute: `python -m benchmarks.index.NAME [--ci|--large] [--json]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

from benchmarks.common import Table, show


class Size(NamedTuple):
    """Keys that are loaded, operations, and how often each index has its turn."""

    bulk: int
    operations: int
    turns: int


DEFAULT = Size(1_000_000, 20_000_000, 3)
SIZES = {
    "--tiny": Size(2_000, 6_000, 1),
    "--ci": Size(100_000, 2_000_000, 3),
    "--large": Size(10_000_000, 100_000_000, 3),  # the paper has twice the operations, which 24 GiB do not hold
}


def main(tables: Callable[[Size], Iterable[Table]]) -> None:
    """Print tables of the size that the command line names."""
    words = [word for word in sys.argv[1:] if word != "--json"]
    if len(words) > 1 or not {*words} <= {*SIZES}:
        raise SystemExit(f"found {' '.join(words)!r}, expected one of {', '.join(SIZES)}")
    show(tables(SIZES[words[0]] if words else DEFAULT), "--json" in sys.argv)
