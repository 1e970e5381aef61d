"""When a residual counts as one that diverges: where a run goes wrong, not where a compressor leaves what it may."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count

import pytest
import torch

from treadle.kernels.compression import Feedback, codec
from treadle.kernels.compression.divergence import EVERY, Divergence, most_of
from treadle.kernels.compression.feedback import seed_of
from treadle.planner.machine.compressors import compressor

SIZE = 400


def warned(name: str, rate: float, steps: int = 300) -> bool:
    """Whether descent on half the square of the weights and noise, with `name` and its residual, logs a warning."""
    draw = torch.Generator().manual_seed(1)
    weights, feedback, used = torch.randn(SIZE, generator=draw), Feedback(), codec(name, SIZE)
    payload, records = torch.empty(used.wire_bytes, dtype=torch.uint8), []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log = logging.getLogger("treadle.compression")
    log.addHandler(handler)
    try:
        for step in range(steps):
            sent = torch.zeros(SIZE)
            feedback.encode(("weights", 0), used, weights + torch.randn(SIZE, generator=draw), payload, step)
            used.decode_add(payload, sent, seed_of(("weights", 0), step))
            weights -= rate * sent
    finally:
        log.removeHandler(handler)
    return bool(records)


@pytest.mark.parametrize(
    ("name", "rate"),
    [("randomk:0.05", 1.0), ("topk:0.05", 1.0), ("efsignsgd", 3.0), ("onebit", 3.0), ("int8", 3.0), ("qsgd", 3.0)],
)
def test_a_rate_that_is_too_high_is_named_and_a_fitting_one_is_not(name: str, rate: float) -> None:
    assert not warned(name, rate=0.02)
    assert warned(name, rate, steps=120)


def first(norms: Callable[[int], tuple[float, float]], most: float = 199.0) -> int | None:
    """The measurement, of 1,000, at which gradient and residual of these norms count as diverging."""
    watch = Divergence(most)
    return next((place for place in range(1, 1001) if watch.diverges(*norms(place))), None)


def test_residuals_may_fill_fluctuate_and_follow_the_gradient() -> None:
    assert first(lambda at: (1.0, 0.19 * at)) is None
    assert first(lambda at: (at, 0.1 * at**2)) is None
    assert first(lambda at: (1.0, at**0.5)) is None
    assert first(lambda at: (2.0 ** (at // 200), 50 * 2.0 ** (at // 200))) is None
    assert first(lambda at: (100.0, 1000.0) if at == 500 else (1.0, 10.0)) is None
    assert first(lambda at: (0.0, 0.0)) is None


def test_residuals_that_grow_geometrically_diverge_at_any_time() -> None:
    assert (first(lambda at: (1.5**at, 5 * 1.5**at)) or 1000) < 10
    assert 500 < (first(lambda at: (1.2 ** max(0, at - 500), 10 * 1.2 ** max(0, at - 500))) or 1000) < 515


def test_what_no_contraction_leaves_diverges_however_slowly_it_grows() -> None:
    """A compressor that never sends some elements: their residual grows by a gradient in each step."""
    reached = first(lambda at: (1.0, at * EVERY))
    assert reached is not None
    assert (reached - 2) * EVERY <= 199 < reached * EVERY


def test_what_is_not_finite_is_no_measurement() -> None:
    place = count()
    assert first(lambda at: (float("inf"), 1e9) if next(place) % 2 else (1.0, 10.0)) is None


def test_the_bound_is_that_of_the_share_that_is_sent() -> None:
    assert most_of(compressor("randomk:0.01"), 0.0) == pytest.approx(2 * 0.99**0.5 / 0.01)
    assert most_of(compressor("dgc:0.01"), 0.9) == pytest.approx(20 * 0.99**0.5 / 0.01)
    assert most_of(compressor("topk:1"), 0.0) == 1
