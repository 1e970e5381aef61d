"""A model that is called `model(**batch)` and returns an object trains under a swap plan as it is."""

from __future__ import annotations

import pytest
import torch

import treadle
from examples.models import masked_lm
from examples.models.masked_lm import MaskedLMOutput
from tests.treadle.runtime.swap import steps
from tests.treadle.runtime.swap.steps import model_of, plan_of, trace_of
from treadle.planner.errors import InputError
from treadle.runtime.swap.swapped import SwappedStep

NAME = "masked_lm"


def swapped() -> SwappedStep:
    return treadle.swapped(model_of(NAME), plan_of(NAME, None), trace_of(NAME, None), backend="cpu")


def test_iterations_are_those_of_the_plain_model() -> None:
    step, plain = swapped(), model_of(NAME)
    for seed in range(2):
        torch.manual_seed(seed)
        _, batch = masked_lm.tiny()
        ours = step(**dict(reversed(batch.items())))
        plain.zero_grad()
        theirs = plain(**batch)
        theirs.loss.backward()
        assert type(ours) is MaskedLMOutput
        assert torch.equal(ours.loss, theirs.loss)
        assert torch.equal(ours["logits"], theirs[1])
        for (name, a), b in zip(step.model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, msg=name)


def test_arguments_come_by_place_or_by_keyword() -> None:
    _, batch = masked_lm.tiny()
    assert torch.equal(swapped()(batch["tokens"], batch["labels"]).loss, swapped()(**batch).loss)
    x, labels = steps.batch("tiny", 0)
    losses = []
    for args, kwargs in (((x, labels), {}), ((x,), {"labels": labels}), ((), {"labels": labels, "x": x})):
        step = treadle.swapped(model_of("tiny"), plan_of("tiny", "adam"), trace_of("tiny", "adam"), backend="cpu")
        torch.manual_seed(1)
        losses.append(step(*args, **kwargs))
    assert losses[0] == losses[1] == losses[2]


def test_a_call_of_another_form_is_refused_by_its_place() -> None:
    step, (_, batch) = swapped(), masked_lm.tiny()
    tokens = {**batch["tokens"], "mask": torch.zeros(4, 8)}
    with pytest.raises(InputError, match=r"found tokens\['mask'\] of float32 \[4, 8\], expected float32 \[4, 16\]"):
        step(tokens=tokens, labels=batch["labels"])
    with pytest.raises(InputError, match="found no labels"):
        step(tokens=batch["tokens"])
    assert torch.isfinite(step(**batch).loss)
