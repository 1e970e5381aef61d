"""The exchange of the accuracy runs, and when a training counts as done."""

from __future__ import annotations

import pytest
import torch

from benchmarks.common import Table
from benchmarks.compression.accuracy import (
    GROUPS,
    RANKS,
    SMOOTHED,
    Exchange,
    Setting,
    Training,
    curves,
    grouped,
    warnings_to,
)
from benchmarks.compression.curves import page
from treadle.kernels.compression.feedback import log


@pytest.mark.parametrize(("name", "error"), [("fp16", 1e-3), ("int8", 1e-2), ("topk:1", 1e-6), ("powersgd:64", 1e-4)])
def test_all_ranks_get_the_mean_up_to_what_is_lost(name, error):
    draw = torch.Generator().manual_seed(1)
    values = [torch.randn(900, generator=draw) for _ in range(RANKS)]
    exchange = Exchange(name, [900], 0.9)
    mean = torch.stack(values).mean(0)
    assert (exchange.mean(0, values, 0) - mean).norm() <= error * mean.norm()
    assert exchange.norm() <= error * RANKS * mean.norm()


def test_what_a_payload_loses_comes_later():
    """Of a gradient that stays the same all is sent in the long run."""
    values = [torch.arange(1.0, 101.0)] * RANKS
    exchange = Exchange("topk:0.1", [100], 0.9)
    total = sum(exchange.mean(0, values, step) for step in range(200))
    assert (total / 200 - values[0]).norm() <= 0.05 * values[0].norm()


def test_groups_are_consecutive_and_about_as_large():
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in (10, 20, 30, 5, 25, 10)]
    groups = grouped(parameters)
    assert len(groups) == GROUPS
    assert [id(each) for group in groups for each in group] == [id(each) for each in parameters]
    assert max(sum(each.numel() for each in group) for group in groups) <= 60


def test_a_loss_is_reached_by_the_mean_of_the_last_steps():
    falling = [3.0] * SMOOTHED + [1.0] * SMOOTHED
    found = Training("plain", Setting(), falling, [0.0] * len(falling), [])
    assert found.reached(1.0) == 2 * SMOOTHED
    assert found.reached(2.0) == SMOOTHED + SMOOTHED // 2
    assert found.reached(0.5) is None


def test_the_report_has_losses_and_residuals_of_every_training():
    plain = Training("plain", Setting(), [3.0, 2.5] * SMOOTHED, [0.0] * 2 * SMOOTHED, [])
    slower = Training("topk:0.01", Setting(0.1, 0.0), [2.0] * 3 * SMOOTHED, [1.0, 2.0, 3.0] * SMOOTHED, [])
    assert curves(plain).losses == [2.75] * (SMOOTHED + 1)
    html = page([(Table("A model", [{"compressor": "plain", "steps": None}]), [curves(plain), curves(slower)])])
    for text in ("A model", "<svg", "norm of the residuals", "topk:0.01, rate x 0.1, no momentum", "<td>-</td>"):
        assert text in html


def test_warnings_are_kept_while_a_model_trains():
    found: list[str] = []
    with warnings_to(found):
        log.warning("a residual diverges")
    log.warning("later")
    assert found == ["a residual diverges"]
