"""Whatever a step may be called with or return comes apart into tensors and a tree, and together again."""

from __future__ import annotations

import gc
import json
import weakref
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from examples.models.masked_lm import MaskedLMOutput
from treadle.planner.documents.values import Called, called_problems, value_problems
from treadle.runtime.called import inputs_of
from treadle.runtime.values import differentiated, loss_in, put_together, take_apart

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Record:
    first: Any
    second: Any


def refuse(place: str, kind: str) -> Any:
    raise AssertionError(f"{place}: {kind}")


TENSORS = st.builds(lambda value: torch.tensor(float(value)), st.integers(0, 9))
KEYS = st.text(max_size=4) | st.integers(-3, 3) | st.booleans() | st.none()
VALUES = st.recursive(
    TENSORS | st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner.filter(lambda value: value is not None), max_size=3).map(
            OrderedDict
        )
        | st.builds(Pair, inner, inner)
        | st.builds(Record, inner, inner)
        | st.builds(MaskedLMOutput, TENSORS, st.none() | TENSORS)
    ),
    max_leaves=8,
)


def alike(a: Any, b: Any) -> bool:
    """Equal with equal types, the same tensors, and NaN like NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a is b
    if isinstance(a, Record):
        return alike((a.first, a.second), (b.first, b.second))
    if isinstance(a, dict):
        return [*map(repr, a)] == [*map(repr, b)] and all(map(alike, a.values(), b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return repr(a) == repr(b)


@given(VALUES)
def test_apart_through_a_file_and_together(value: Any) -> None:
    tensors: list[Tensor] = []
    tree = json.loads(json.dumps(take_apart(value, tensors, refuse)))
    assert not list(value_problems("$", tree, range(len(tensors)), "inputs"))
    assert alike(put_together(tree, tensors), value)


@given(VALUES)
def test_a_call_like_the_captured_one_gives_its_inputs(value: Any) -> None:
    tensors: list[Tensor] = []
    called = Called(kwargs={"batch": take_apart(value, tensors, refuse)}, parameters=("batch",))
    assert not list(called_problems("$", called, range(len(tensors))))
    for args, kwargs in (((), {"batch": value}), ((value,), {})):
        found = inputs_of(called, len(tensors), args, kwargs, "step")
        assert [*map(id, found)] == [*map(id, tensors)]


def test_fields_that_are_none_are_no_items() -> None:
    tensors: list[Tensor] = []
    made = put_together(take_apart(MaskedLMOutput(torch.ones(())), tensors, refuse), tensors)
    assert made.logits is None
    assert (list(made), made[0] is made.loss is made["loss"]) == (["loss"], True)


@pytest.mark.parametrize("wrap", [dict, OrderedDict, lambda fields: MaskedLMOutput(**fields)])
def test_the_backward_pass_starts_from_the_loss(wrap: Any) -> None:
    loss, logits = torch.ones((), requires_grad=True), torch.ones(3, requires_grad=True)
    result = wrap({"loss": loss, "logits": logits})
    assert loss_in(result) is loss
    assert [*map(id, differentiated(result))] == [id(loss)]


def test_without_a_loss_it_starts_from_all_outputs() -> None:
    """A loss of several elements, or one without a gradient, is an output like others."""
    loss, logits = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    assert len(differentiated({"loss": loss, "logits": logits})) == 2
    assert [*map(id, differentiated({"loss": torch.ones(()), "logits": logits}))] == [id(logits)]
    assert loss_in((loss, logits)) is None


def test_tensors_are_let_go_of_without_a_garbage_collection() -> None:
    value = {"x": [torch.zeros(3)]}
    kept = weakref.ref(value["x"][0])
    gc.disable()
    try:
        take_apart(value, [], lambda place, kind: None)
        del value
        assert kept() is None
    finally:
        gc.enable()
