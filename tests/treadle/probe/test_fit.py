"""Link fitting against closed forms: TACCL's constants come back exactly, noise stays inside the intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.errors import InputError
from treadle.probe.fit import fit_link
from treadle.probe.timing import SendTiming


def exact(alpha: float, beta: float, chunks: int, megabytes: float) -> list[SendTiming]:
    sequential = chunks * (alpha + beta * megabytes)
    bulk = alpha + chunks * beta * megabytes
    return [SendTiming(chunks, megabytes, True, (sequential,)), SendTiming(chunks, megabytes, False, (bulk,))]


def test_the_infiniband_constants_of_taccl_come_back_from_one_pair_of_times():
    timings = [SendTiming(8, 1 / 32, True, (40.1,)), SendTiming(8, 1 / 32, False, (28.2,))]
    fit = fit_link(timings)
    assert fit.alpha_us == pytest.approx(1.7, rel=1e-9)
    assert fit.beta_us_per_MB == pytest.approx(106, rel=1e-9)
    assert fit.residual < 1e-9
    assert exact(1.7, 106, 8, 1 / 32)[0].times_us[0] == pytest.approx(40.1)
    assert exact(1.7, 106, 8, 1 / 32)[1].times_us[0] == pytest.approx(28.2)


@given(
    st.floats(0.01, 1e4),
    st.floats(0.01, 1e4),
    st.integers(2, 32),
    st.lists(st.floats(1e-3, 64), min_size=1, max_size=4),
)
def test_times_that_follow_the_model_are_recovered(alpha, beta, chunks, sizes):
    fit = fit_link([timing for size in sizes for timing in exact(alpha, beta, chunks, size)], resamples=2)
    assert fit.alpha_us == pytest.approx(alpha, rel=1e-3)
    assert fit.beta_us_per_MB == pytest.approx(beta, rel=1e-3)


def test_an_outlier_repeat_does_not_move_the_fit():
    timings = [
        SendTiming(timing.chunks, timing.megabytes, timing.sequential, (*timing.times_us * 4, 1e6))
        for size in (1 / 32, 1)
        for timing in exact(1.7, 106, 8, size)
    ]
    fit = fit_link(timings)
    assert fit.alpha_us == pytest.approx(1.7)
    assert fit.beta_us_per_MB == pytest.approx(106)


def test_the_interval_holds_the_truth_under_noise_and_is_the_same_each_time():
    random = np.random.default_rng(1)
    timings = [
        SendTiming(t.chunks, t.megabytes, t.sequential, tuple(t.times_us[0] * random.normal(1, 0.05, size=15)))
        for size in (1 / 32, 1 / 4, 1)
        for t in exact(10, 100, 8, size)
    ]
    fit = fit_link(timings)
    assert fit.alpha_interval[0] <= 10 <= fit.alpha_interval[1]
    assert fit.beta_interval[0] <= 100 <= fit.beta_interval[1]
    assert 0 < fit.residual < 0.1
    assert fit == fit_link(timings)


def test_costs_are_never_negative():
    fit = fit_link([SendTiming(8, 1.0, True, (100.0,)), SendTiming(8, 1.0, False, (140.0,))])
    assert fit.alpha_us == 0
    assert fit.beta_us_per_MB > 0
    assert fit.residual > 0.01


@pytest.mark.parametrize(
    "timings",
    [
        [],
        [SendTiming(8, 1.0, True, (100.0,))],
        [SendTiming(1, 1.0, True, (100.0,)), SendTiming(1, 1.0, False, (100.0,))],
        [SendTiming(8, 1.0, True, ()), SendTiming(8, 1.0, False, (1.0,))],
        [SendTiming(8, 1.0, True, (0.0,)), SendTiming(8, 1.0, False, (1.0,))],
    ],
)
def test_settings_that_say_nothing_are_refused(timings):
    with pytest.raises(InputError, match="expected"):
        fit_link(timings)
