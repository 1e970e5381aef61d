"""Imbalance, losses, spills and sizes follow their formulas."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest

from benchmarks.sparse.balance import cut_points, formula, hashed, imbalance, lost, size_row, spilled
from benchmarks.sparse.traces import NMT, drifting


@pytest.mark.parametrize("parts", [16, 128])
def test_hashed_parts_are_as_even_as_the_theorem_says(parts: int) -> None:
    """As many as BERT has non-zero elements; all lie in the first sixteenth of their range."""
    found, expected = hashed(np.arange(243_800), parts), formula(243_800, parts)
    assert 0.5 * (expected - 1) < found - 1 < 1.2 * (expected - 1)
    assert expected == pytest.approx({16: 1.0191, 128: 1.0714}[parts], abs=1e-4)


def test_cut_points_fit_the_indices_that_they_were_cut_for_only() -> None:
    batches = drifting(NMT, 4, seed=0)
    first = next(batches)
    cuts = cut_points(first, 16)
    assert imbalance(np.searchsorted(cuts, first, side="right"), 16) < 1.01
    assert all(imbalance(np.searchsorted(cuts, rows, side="right"), 16) > 1.1 for rows in batches)


@pytest.mark.parametrize(("load", "percent"), [(0.5, 21.31), (0.2, 9.37), (0.05, 2.46)])
def test_a_single_hash_loses_what_the_formula_says(load: float, percent: float) -> None:
    assert 100 * (1 - (1 - exp(-load)) / load) == pytest.approx(percent, abs=0.01)
    assert 100 * lost(np.arange(200_000), round(200_000 / load)) == pytest.approx(percent, rel=0.03)


@pytest.mark.parametrize(("share", "percent"), [(2, (21.3, 9.05, 4.22, 2.05)), (3, (15.0, 4.5, 1.5, 0.48))])
def test_more_functions_leave_fewer_indices_over(share: int, percent: tuple[float, ...]) -> None:
    found = spilled(np.arange(200_000), share * 200_000)
    assert [100 * each for each in found] == pytest.approx(percent, rel=0.06)


def test_hash_bitmaps_save_at_95_percent_and_coo_to_50() -> None:
    half, most = size_row(0.5, 1 << 16, 16), size_row(0.95, 1 << 16, 16)
    assert half["COO"] == pytest.approx(1, abs=0.001)
    assert half["plain bitmaps"] == pytest.approx(1)
    assert most["hash bitmaps"] == pytest.approx(0.98125, abs=0.001)
    assert most["save"] == "hash bitmaps"
