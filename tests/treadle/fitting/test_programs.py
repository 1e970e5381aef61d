"""Batches of other shapes and kinds: the budget holds, and training never ends in an error."""

from __future__ import annotations

import gc
import logging
import time
import warnings

import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.treadle.fitting.models import BATCH, Deep, batch_of, loss_of
from treadle.fitting import programs
from treadle.fitting.fitted import FittedModule
from treadle.fitting.programs import PlainForm, PlannedForm
from treadle.runtime.meter import Meter


@pytest.fixture
def fitted() -> FittedModule:
    return treadle.fit(Deep(), batch_of(), budget="0.6x", loss=loss_of)


def peak_of(fitted: FittedModule, batch: tuple[Tensor, ...]) -> int:
    with Meter(fitted.model, batch) as meter:
        fitted(*batch).backward()
    fitted.zero_grad()
    return meter.peak_bytes


def last(fitted: FittedModule) -> PlainForm | PlannedForm:
    return next(reversed(fitted.programs.known.values()))


def test_a_smaller_batch_that_fits_runs_as_it_is(fitted: FittedModule, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "treadle.fit"):
        fitted(*batch_of(BATCH // 4)).backward()
        assert last(fitted) == PlainForm(fits=True)
        assert (
            f"a batch of x float32 [{BATCH // 4}, 16], y float32 [{BATCH // 4}, 16]: plain PyTorch needs" in caplog.text
        )
        caplog.clear()
        fitted(*batch_of(BATCH // 4)).backward()
        assert not [record for record in caplog.records if record.name.startswith("treadle")]
        fitted(*batch_of(BATCH // 8)).backward()
        assert len([record for record in caplog.records if record.name.startswith("treadle")]) == 1
        assert "is within one that runs as it is" in caplog.text


def test_a_larger_batch_gets_a_plan_at_once(fitted: FittedModule, caplog: pytest.LogCaptureFixture) -> None:
    batch = batch_of(BATCH * 5 // 4)
    plain = Deep()
    with caplog.at_level(logging.INFO, "treadle.fit"):
        fitted(*batch)
    assert "has a plan of its own: peak" in caplog.text
    torch.manual_seed(1)
    loss_of(plain, *batch).backward()
    fitted.zero_grad()
    torch.manual_seed(1)
    fitted(*batch).backward()
    for a, b in zip(plain.parameters(), fitted.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    fitted.zero_grad()
    assert peak_of(fitted, batch) <= fitted.programs.settings.budget


def test_planning_adds_nothing_to_what_a_meter_counts(fitted: FittedModule) -> None:
    batch = batch_of(BATCH // 4)
    first = peak_of(fitted, batch)
    assert first == peak_of(fitted, batch)


def test_a_batch_that_no_plan_fits_takes_the_smallest_one(
    fitted: FittedModule, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "treadle.fit"):
        fitted(*batch_of(BATCH * 8)).backward()
    assert "exceeds the budget: budget" in caplog.text
    assert "below the least feasible" in caplog.text or "is infeasible" in caplog.text
    assert isinstance(last(fitted), PlannedForm)


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), OSError(28, "No space left on device"), KeyError("x")])
def test_an_error_while_planning_is_one_line(
    fitted: FittedModule, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(programs, "measured", fail)
    batch = batch_of(BATCH + 1)
    with caplog.at_level(logging.INFO, "treadle.fit"):
        fitted(*batch).backward()
        fitted(*batch).backward()
    assert caplog.text.count("has no plan and runs as it is") == 1
    assert last(fitted) == PlainForm(fits=False)
    with caplog.at_level(logging.INFO, "treadle.fit"):
        fitted(*batch_of(BATCH - 1)).backward()
    assert "within one that runs as it is" not in caplog.text


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.deep = Deep()

    def forward(self, x: Tensor, scale: object = 1.0) -> Tensor:
        return self.deep(x) * (scale if isinstance(scale, float) else 3.0)


def test_an_argument_that_no_capture_holds_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    model = Scaled()
    x = batch_of()[0]
    fitted = treadle.fit(model, x, budget="0.6x")
    for _ in range(2):
        fitted(x, object()).sum().backward()
    assert caplog.text.count("found scale with a value of type object, expected") == 1


def test_an_empty_batch_runs_as_it_is(fitted: FittedModule, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "treadle.fit"):
        for _ in range(2):
            fitted(*batch_of(0)).backward()
    (record,) = caplog.records
    assert "a batch of x float32 [0, 16], y float32 [0, 16] is empty, and runs as it is" in record.getMessage()
    assert record.levelno == logging.INFO


def test_autocast_frozen_parameters_and_modes_are_other_forms(fitted: FittedModule) -> None:
    small = batch_of(64)
    fitted.programs.known.clear()
    with torch.autocast("cpu", torch.bfloat16):
        fitted(*small).backward()
    fitted.layers[0].requires_grad_(False)
    fitted(*small).backward()
    fitted.dropout.eval()
    fitted(*small).backward()
    fitted.double()
    fitted(*(tensor.double() for tensor in small)).backward()
    assert len(fitted.programs.known) == 4


def test_a_call_by_keyword_takes_the_plan_of_one_by_place(fitted: FittedModule) -> None:
    x, y = batch_of()
    results = []
    for args, kwargs in (((x, y), {}), ((x,), {"y": y}), ((), {"y": y, "x": x})):
        torch.manual_seed(1)
        results.append(fitted(*args, **kwargs))
    assert len(fitted.programs.known) == 1
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    by_name = treadle.fit(Deep(), {"x": x}, budget="0.6x")
    by_name(x).sum().backward()
    assert len(by_name.programs.known) == 1
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        by_name(x, x=x)


def test_gradients_that_the_plan_does_not_count_are_reported_once(
    fitted: FittedModule, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        fitted(*batch_of()).backward()
    assert caplog.text.count("hold_gradients=True") == 1


def test_the_number_of_programs_is_bounded(
    fitted: FittedModule, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "MOST_PROGRAMS", 3)
    for rows in range(8, 0, -1):
        fitted(*batch_of(rows)).backward()
    assert len(fitted.programs.known) == 3
    assert caplog.text.count("pad batches to a few lengths") == 1


@pytest.mark.slow
def test_a_better_plan_is_searched_for_in_the_background(
    fitted: FittedModule, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "QUICK_SECONDS", 0.02)
    batch = batch_of(BATCH * 5 // 4)
    torch.manual_seed(3)
    with caplog.at_level(logging.INFO, "treadle.fit"):
        fitted(*batch)
        found = last(fitted)
        assert isinstance(found, PlannedForm)
        found.settled = False
        fitted(*batch)
        assert found.search is not None
        before = found.plan.decisions.objective_ns
        found.search.process.wait(timeout=120)
        assert not found.search.failure
        fitted(*batch).backward()
    assert found.search is None
    assert found.settled
    assert found.plan.decisions.objective_ns <= before


def test_a_background_search_ends_with_its_module() -> None:
    fitted = treadle.fit(Deep(), batch_of(), budget="0.6x", loss=loss_of)
    found = last(fitted)
    found.settled = False
    fitted(*batch_of())
    process, complaints = found.search.process, found.search.complaints
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        del found, fitted
        gc.collect()
        assert process.poll() is not None
        assert complaints.closed
        del process, complaints
    assert not [warning for warning in seen if issubclass(warning.category, ResourceWarning)]


@pytest.mark.slow
def test_a_background_search_that_is_killed_leaves_the_plan(
    fitted: FittedModule, caplog: pytest.LogCaptureFixture
) -> None:
    batch = batch_of(BATCH * 5 // 4)
    with caplog.at_level(logging.INFO, "treadle.fit"):
        fitted(*batch)
        found = last(fitted)
        found.settled = False
        fitted(*batch)
        found.search.process.kill()
        while not found.search.ended:
            time.sleep(0.01)
        fitted(*batch).backward()
    assert "no better plan for a batch of" in caplog.text
    assert found.settled
