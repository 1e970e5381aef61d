"""Trees of values in a trace: whatever does not stand for a value is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from treadle.planner.documents.values import DEPTH, Called, call_renamed, called_problems, tensors_in, value_problems

CALL = Called(
    args=({"tensor": "x"}, 2.5),
    kwargs={"batch": {"dict": [["labels", {"tensor": "y"}], [3, None]]}, "flag": True},
    parameters=("first", "scale", "batch"),
)


def problems(called: Called) -> list[tuple[str, str, str]]:
    return list(called_problems("$.called", called, ("x", "y")))


def test_a_sound_call_has_no_problems() -> None:
    assert problems(CALL) == []
    assert list(tensors_in([*CALL.args, *CALL.kwargs.values()])) == ["x", "y"]


DEEP: Any = {"tensor": "x"}
for _ in range(DEPTH + 1):
    DEEP = [DEEP]

MISFITS: dict[str, Any] = {
    "unknown tensor": {"tensor": "z"},
    "number of a tensor": {"tensor": 0},
    "list as tensor": {"tensor": ["x"]},
    "two fields": {"tensor": "x", "float": "nan"},
    "unknown kind": {"call": "os.system"},
    "unknown number": {"float": "1e400"},
    "tuple of nothing": {"tuple": {"tensor": "x"}},
    "pairs that are none": {"dict": [["key"]]},
    "a list as key": {"dict": [[["key"], 1]]},
    "too deep": DEEP,
    "code as class": {"object": ["os:system('x')", []]},
    "class without module": {"object": ["Popen", []]},
    "class in two lines": {"object": ["a:b\n", []]},
    "fields that are none": {"object": ["a:B", [1]]},
    "number as field": {"object": ["a:B", [[1, 2]]]},
    "object of nothing": {"object": "a:B"},
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_stands_for_nothing_is_named(name: str) -> None:
    assert list(value_problems("$.returned", MISFITS[name], ("x", "y"), "outputs"))
    (path, _, _), *_ = problems(replace(CALL, kwargs={**CALL.kwargs, "more": MISFITS[name]}))
    assert path.startswith("$.called.kwargs.more")


@pytest.mark.parametrize(
    "changes",
    [
        {"args": ({"tensor": "x"}, {"tensor": "x"})},
        {"args": (1, 2)},
        {"kwargs": {"batch": {"tensor": "y"}, "a b": 1}},
        {"kwargs": {"batch": {"tensor": "y"}, "first": 1}},
        {"parameters": ("first", "import os")},
        {"parameters": ("first", "first")},
    ],
)
def test_a_call_gives_each_argument_and_each_input_once(changes: dict[str, Any]) -> None:
    assert problems(replace(CALL, **changes))


LEAVES = st.none() | st.booleans() | st.integers() | st.text() | st.builds(lambda key: {"tensor": key}, st.text())
ANYTHING = st.recursive(
    LEAVES | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["tuple", "dict", "object"]), inner),
)


@given(ANYTHING)
def test_any_plain_value_is_sound_or_named(tree: Any) -> None:
    """The checker itself never fails, and what it passes can be walked."""
    if not list(value_problems("$", tree, {"x"}, "outputs")):
        assert set(tensors_in(tree)) <= {"x"}


def test_renaming_sorts_keywords() -> None:
    renamed = call_renamed(replace(CALL, kwargs=dict(reversed(CALL.kwargs.items()))), {"x": 0, "y": 1})
    assert list(renamed.kwargs) == ["batch", "flag"]
    assert list(tensors_in([*renamed.args, *renamed.kwargs.values()])) == [0, 1]
