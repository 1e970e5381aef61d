"""Objects come back by the names of their classes, without a line of the classes' own code."""

from __future__ import annotations

import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest

from treadle.planner.errors import InputError
from treadle.runtime.objects import class_name, fields_of, is_found, made

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True, slots=True)
class Small:
    value: int


@dataclass
class Alarm:
    """Its code must not run."""

    value: int

    def __post_init__(self) -> None:
        raise AssertionError("ran")

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError("ran")


@pytest.mark.parametrize("value", [Pair(1, 2), Small(3), OrderedDict(a=1)])
def test_equal_objects_are_made(value: object) -> None:
    again = made(class_name(type(value)), fields_of(value))
    assert (type(again), again) == (type(value), value)


def test_the_code_of_a_class_does_not_run() -> None:
    assert made(class_name(Alarm), {"value": 1}).value == 1


@pytest.mark.parametrize(
    "name",
    [
        "subprocess:Popen",
        "os:system",
        "builtins:dict",
        "builtins:eval",
        "json:JSONDecoder",
        f"{__name__}:pytest",
        f"{__name__}:Missing",
        f"{__name__}:Small.value",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="found no named tuple, dataclass or ordered dict"):
        made(name, {})


def test_no_module_is_imported_for_a_name() -> None:
    sys.modules.pop("this", None)
    with pytest.raises(InputError, match="found no imported module 'this'"):
        made("this:Zen", {})
    assert "this" not in sys.modules


@pytest.mark.parametrize("fields", [{}, {"left": 1}, {"left": 1, "right": 2, "more": 3}])
def test_other_fields_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InputError, match="found other fields"):
        made(class_name(Pair), fields)


def test_a_class_inside_a_function_is_not_found() -> None:
    @dataclass
    class Inner:
        value: int

    assert not is_found(Inner)
    assert is_found(Small)
