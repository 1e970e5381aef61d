"""Fitted curves against times whose constants are known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.planner.documents.compression_costs import Curve, interpolated
from treadle.planner.errors import InputError
from treadle.probe.curve_fit import fit_curve

SIZES = [256 << step for step in range(17)]


def test_floor_and_line_of_a_plateau_come_back() -> None:
    """0.25 ms up to 4 MB, then linear: what Cupcake, section 5.2 reports of compressors."""
    fit = fit_curve({size: max(250_000, 50_000 + 0.2 * size) for size in SIZES})
    (knee, floor), (last, top) = fit.points
    assert (knee, floor, last) == (1_000_000, 250_000, SIZES[-1])
    assert top == pytest.approx(50_000 + 0.2 * SIZES[-1], rel=1e-6)
    assert fit.error < 1e-5
    assert interpolated(fit.points, 300) == 250_000
    assert interpolated(fit.points, 1 << 26) == pytest.approx(50_000 + 0.2 * (1 << 26), rel=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.integers(1_000, 10**6), st.floats(0.0, 2.0), st.floats(0.01, 20.0))
def test_any_plateau_is_found(floor: int, share: float, slope: float) -> None:
    fit = fit_curve({size: max(floor, share * floor + slope * size) for size in SIZES})
    assert max(abs(row.residual) for row in fit.rows) < 0.02


def test_a_constant_and_a_single_size_are_one_point() -> None:
    assert fit_curve(dict.fromkeys(SIZES, 1000.0)).points == ((SIZES[-1], 1000),)
    assert fit_curve({4096: 7.4}).points == ((4096, 7),)


def test_two_sizes_are_a_line() -> None:
    assert fit_curve({1024: 5_000.0, 262_144: 90_000.0}).points == ((1024, 5_000), (262_144, 90_000))
    assert interpolated(fit_curve({1: 10.0, 2: 20.0, 3: 30.0}).points, 6) == 60


def test_a_bend_below_the_plateau_and_one_above_are_kept() -> None:
    times = {size: min(1_000 + 2.0 * size, 20_000) for size in SIZES}
    times |= {size: 20_000 + 1.5 * (size - 100_000) for size in SIZES if size > 100_000}
    fit = fit_curve(times)
    assert max(abs(row.residual) for row in fit.rows) < 0.02
    assert len(fit.points) < 8


def test_noise_makes_no_bends_and_the_curve_never_falls() -> None:
    noise = random.Random(1)
    for _ in range(5):
        fit = fit_curve({size: max(20_000, 0.5 * size) * noise.gauss(1, 0.02) for size in SIZES})
        assert len(fit.points) <= 3
        assert fit.error < 0.05
        assert not list(Curve(points=fit.points).problems_at("$"))
    falling = fit_curve({size: 1e6 / (1 + place) for place, size in enumerate(SIZES)})
    assert len(falling.points) == 1
    assert falling.error > 0.3


@pytest.mark.parametrize("times", [{}, {256: 0.0}, {256: 5.0, 512: -1.0}])
def test_what_is_no_time_is_refused(times: dict[int, float]) -> None:
    with pytest.raises(InputError, match="positive time"):
        fit_curve(times)
