"""A call of a planned step gives its inputs, or one line that names the first argument that differs."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from treadle.planner.documents.values import Called
from treadle.planner.errors import InputError
from treadle.runtime.called import inputs_of, load_called, places
from treadle.runtime.values import take_apart


@dataclass
class Extra:
    weight: Tensor
    scale: float


X, Y, Z = torch.zeros(2), torch.zeros(3), torch.zeros(4)
BATCH = {"image": [X, (Y, 1)], "kind": "a"}


def captured() -> Called:
    found: list[Tensor] = []

    def tree(value: Any) -> Any:
        return take_apart(value, found, lambda place, kind: pytest.fail(f"{place}: {kind}"))

    return Called(
        args=(tree(BATCH),),
        kwargs={"extra": tree(Extra(Z, 2.0)), "cache": False},
        parameters=("batch", "extra", "cache"),
    )


def given(*args: Any, **kwargs: Any) -> list[Tensor]:
    return inputs_of(captured(), 3, args, kwargs, "net")


def test_inputs_are_named_by_their_places() -> None:
    assert places(captured(), 3) == ["batch['image'][0]", "batch['image'][1][0]", "extra.weight"]
    assert places(None, 2) == ["input 0", "input 1"]


def test_arguments_may_come_in_any_order_by_place_or_by_keyword() -> None:
    extra = Extra(Z, 2.0)
    for args, kwargs in (
        ((BATCH,), {"extra": extra, "cache": False}),
        ((BATCH,), {"cache": False, "extra": extra}),
        ((), {"cache": False, "extra": extra, "batch": BATCH}),
        ((BATCH, extra, False), {}),
    ):
        assert [*map(id, given(*args, **kwargs))] == [id(X), id(Y), id(Z)]


def test_inputs_in_their_order_may_come_by_keyword_too() -> None:
    called = Called(args=({"tensor": 0}, {"tensor": 1}), parameters=("x", "y"))
    assert called.in_order
    for args, kwargs in (((X, Y), {}), ((X,), {"y": Y}), ((), {"y": Y, "x": X})):
        assert inputs_of(called, 2, args, kwargs, "net") == [X, Y]
    with pytest.raises(InputError, match="found x twice, by its place and by keyword"):
        inputs_of(called, 2, (X,), {"x": X}, "net")
    with pytest.raises(InputError, match="found z, expected x, y as when the step was captured"):
        inputs_of(called, 2, (X,), {"z": X}, "net")
    assert not Called(args=({"tensor": 1}, {"tensor": 0}), parameters=("x", "y")).in_order
    assert not Called(args=({"tensor": 0}, None)).in_order


EXTRA = Extra(Z, 2.0)
DIFFERENT: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {"extra": EXTRA, "cache": False}, "found no batch, expected it"),
    ((BATCH,), {"extra": EXTRA}, "found no cache, expected it"),
    ((BATCH,), {"extra": EXTRA, "cache": True}, "found cache: True, expected False"),
    ((BATCH,), {"extra": EXTRA, "cache": 0}, "found cache: 0, expected False"),
    ((BATCH,), {"extra": EXTRA, "cache": False, "more": X}, "found more, expected batch, extra, cache"),
    ((BATCH,), {"batch": BATCH, "extra": EXTRA, "cache": False}, "found batch twice"),
    ((BATCH, EXTRA, False, X), {}, "found input 3, expected batch, extra, cache"),
    (([X],), {"extra": EXTRA, "cache": False}, "found batch: a list, expected a dict"),
    (({**BATCH, "kind": "b"},), {"extra": EXTRA, "cache": False}, r"found batch\['kind'\]: 'b', expected 'a'"),
    (({"kind": "a"},), {"extra": EXTRA, "cache": False}, r"found no batch\['image'\]"),
    (({**BATCH, "labels": X},), {"extra": EXTRA, "cache": False}, r"found batch\['labels'\], which was not there"),
    (({**BATCH, "image": [X]},), {"extra": EXTRA, "cache": False}, r"found batch\['image'\]: 1 items, expected 2"),
    (
        ({**BATCH, "image": [X, [Y, 1]]},),
        {"extra": EXTRA, "cache": False},
        r"found batch\['image'\]\[1\]: a list, expected a tuple",
    ),
    ((BATCH,), {"extra": Extra(Z, 2), "cache": False}, r"found extra.scale: 2, expected 2.0"),
    ((BATCH,), {"extra": Extra(None, 2.0), "cache": False}, "found extra.weight: None, expected a tensor"),
    ((BATCH,), {"extra": {"weight": Z}, "cache": False}, "found extra: a dict, expected a .*test_called:Extra"),
]


@pytest.mark.parametrize(("args", "kwargs", "text"), DIFFERENT)
def test_another_call_is_refused_by_the_place_that_differs(
    args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    with pytest.raises(InputError, match=text) as raised:
        given(*args, **kwargs)
    assert "\n" not in str(raised.value)


class Kind(enum.IntEnum):
    ONE = 1


def test_subclasses_of_numbers_are_compared_by_value() -> None:
    called = Called(args=(0.5, 1, {"float": "inf"}, "a", None), parameters=("a", "b", "c", "d", "e"))
    values = (np.float64(0.5), Kind.ONE, np.float64("inf"), enum.StrEnum("Word", {"A": "a"}).A, None)
    assert inputs_of(called, 0, values, {}, "net") == []
    for place, other in ((0, np.float64(0.25)), (1, True), (1, 1.0), (2, 1.0), (4, X)):
        with pytest.raises(InputError, match=f"found {'abcde'[place]}: "):
            inputs_of(called, 0, (*values[:place], other, *values[place + 1 :]), {}, "net")


def test_a_step_of_plain_inputs_takes_no_keywords() -> None:
    assert inputs_of(None, 1, (X,), {}, "net") == [X]
    with pytest.raises(InputError, match="found the keyword 'x', expected 1 inputs by their place"):
        inputs_of(None, 1, (), {"x": X}, "net")


@pytest.mark.parametrize(
    "constant",
    [
        [],
        {"args": [{"tensor": 0}], "more": 1},
        {"args": [{"tensor": 0}, {"tensor": 0}]},
        {"args": [{"tensor": 1}]},
        {"args": [{"tensor": 0}], "kwargs": {"a b": 1}},
    ],
)
def test_a_foreign_constant_is_checked(constant: Any) -> None:
    with pytest.raises(InputError):
        load_called(constant, 1, "step.py")
