"""A model that is called `model(**batch)` and returns an object trains under its plan as it is."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

import treadle
from examples.models import masked_lm
from examples.models.masked_lm import MaskedLMOutput
from tests.codegen.plans import decisions_keeping, plan_with
from tests.planner.plans import memory_plan
from treadle.capture.costs import with_roofline
from treadle.capture.live import capture_model
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.planning import MemoryOptions
from treadle.runtime.meter import Meter


def make() -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(1)
    model, batch = masked_lm.tiny(dropout=0.25)
    return model, {**batch, "want_hidden": True}


@cache
def planned_step() -> tuple[Plan, Trace]:
    model, batch = make()
    hardware = store.load(resources.locate("profiles", "cpu-2x2"), Hardware)
    trace = with_roofline(capture_model(model, (), batch, name="masked_lm"), hardware)
    return memory_plan(trace, Fraction(9, 10), options=MemoryOptions(gap=0.1)), trace


def planned_and_plain() -> tuple[Any, nn.Module, dict[str, Any]]:
    model, batch = make()
    return treadle.apply(copy.deepcopy(model), *planned_step()), model, batch


def test_training_is_that_of_the_plain_model() -> None:
    planned, plain, batch = planned_and_plain()
    for number in range(2):
        results, gradients = [], []
        for called in (planned, plain):
            torch.manual_seed(number)
            results.append(called(**batch))
            results[-1].loss.backward()
            gradients.append([parameter.grad for parameter in called.parameters()])
        ours, theirs = results
        assert type(ours) is MaskedLMOutput
        assert torch.equal(ours.loss, theirs["loss"])
        assert torch.equal(ours[1], theirs.logits)
        assert all(map(torch.equal, ours.hidden, theirs.hidden))
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("total", [lambda out: out.logits.sum(), lambda out: out.loss + out.hidden[-1].pow(2).mean()])
def test_a_gradient_of_another_output_than_the_loss_is_an_error(total: Any) -> None:
    """The plan has none for it, and training without it would be another training."""
    planned, _, batch = planned_and_plain()
    with pytest.raises(InputError, match="an output next to `loss`, expected one from `loss` alone"):
        total(planned(**batch)).backward()


def test_the_peak_is_within_the_budget() -> None:
    planned, _, batch = planned_and_plain()
    budget = planned_step()[0].decisions.problem.budget_bytes
    with Meter(planned, batch["tokens"], batch["labels"]) as meter:
        result = planned(**batch)
        result.loss.backward()
    assert meter.peak_bytes <= budget


def test_the_wrapped_model_takes_the_same_call_and_copies_do() -> None:
    planned, plain, batch = planned_and_plain()
    file = io.BytesIO()
    torch.save(planned, file)
    file.seek(0)
    for copied in (copy.deepcopy(planned), torch.load(file, weights_only=False)):
        torch.manual_seed(0)
        ours = copied(batch["tokens"], batch["labels"], want_hidden=True)
        torch.manual_seed(0)
        assert torch.equal(ours.loss, plain(**batch).loss)
    with torch.no_grad():
        assert planned.model.eval()(tokens=batch["tokens"]).loss is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"labels": torch.zeros(4, 8, dtype=torch.int64)}, r"found labels of int64 \[4, 8\], expected int64 \[4, 16\]"),
        ({"labels": None}, "found labels: None, expected a tensor"),
        ({"want_hidden": False}, "found want_hidden: False, expected True"),
        (
            {"tokens": {"ids": torch.zeros(4, 16), "mask": torch.zeros(4, 16)}},
            r"found tokens\['ids'\] of float32 \[4, 16\], expected int64",
        ),
        ({"tokens": {"ids": torch.zeros(4, 16)}}, r"found no tokens\['mask'\]"),
    ],
)
def test_a_call_of_another_form_is_refused_by_its_place(changes: dict[str, Any], text: str) -> None:
    planned, _, batch = planned_and_plain()
    with pytest.raises(InputError, match=text):
        planned(**{**batch, **changes})


def test_an_input_changed_before_the_backward_pass_is_named() -> None:
    planned, _, batch = planned_and_plain()
    result = planned(**batch)
    batch["tokens"]["mask"].zero_()
    with pytest.raises(InputError, match=r"tokens\['mask'\] changed in place"):
        result.loss.backward()


class Difference(nn.Module):
    """Not symmetric, so that arguments in each other's places show."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0, 1, 4))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (self.weight * left).tanh() - right


def error(model: nn.Module, right: Tensor, left: Tensor) -> Tensor:
    """Takes the model's arguments in another order."""
    return model(left, right).square().mean()


@pytest.mark.parametrize("loss", [None, error])
@pytest.mark.parametrize("places", range(3))
def test_arguments_come_by_place_or_by_keyword_however_they_were_captured(places: int, loss: Any) -> None:
    arguments = {"right": torch.randn(3, 4), "left": torch.randn(3, 4)}
    order = ("left", "right") if loss is None else ("right", "left")
    args, kwargs = split(arguments, order[:places])
    model = Difference()
    trace = capture_model(model, args, kwargs, loss=loss)
    timed = replace(trace, ops=tuple(replace(op, time_ns=1, implementations=()) for op in trace.ops))
    planned = treadle.apply(model, plan_with(decisions_keeping(timed, ())), timed)
    expected = (loss(model, **arguments) if loss else model(**arguments)).sum()
    for names in ([], order[:1], order):
        args, kwargs = split(arguments, names)
        assert torch.equal(planned(*args, **kwargs).sum(), expected)


def split(arguments: dict[str, Tensor], by_place: Sequence[str]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Arguments by place in this order, and the others by keyword."""
    kwargs = {name: value for name, value in arguments.items() if name not in by_place}
    return [arguments[name] for name in by_place], kwargs
