"""The table of swap baselines: no peer beats the proven bound, and peers that do not fit are marked."""

from __future__ import annotations

from fractions import Fraction

import pytest

from benchmarks.swap.baselines import ALLOCATORS, PEERS, compared
from examples.models.gpt2 import TINY, step
from tests.codegen.swap.swap_plans import timed
from treadle.capture.graph import capture
from treadle.capture.optimizer import with_optimizer
from treadle.planner.passes.swap.search.options import SwapOptions

OPTIONS = SwapOptions(method="genetic", generations=1, population=4)


@pytest.mark.parametrize("share", [Fraction(9, 10), Fraction(1, 20)])
def test_no_peer_beats_the_bound(share: Fraction) -> None:
    trace = timed(with_optimizer(capture(lambda: step(TINY, 4, 32), "gpt", "train"), "sgd"))
    row = compared(trace, share, OPTIONS)
    shares = {name: row[name] for name in (*PEERS, *(f"treadle {allocator}" for allocator in ALLOCATORS))}
    fitting = {name: float(found) for name, found in shares.items() if not found.startswith("N/A")}
    if share < Fraction(1, 2):
        assert not fitting
        return
    assert len(fitting) > 3
    assert all(0 < found <= float(row["bound"]) + 0.1 for found in fitting.values())
