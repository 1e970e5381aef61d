"""What all ranks of a group do or none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import distributed

from treadle.codegen.emit import text_digest
from treadle.planner.documents.scalars import Decisions
from treadle.planner.errors import InputError, MissingBackendError

T = TypeVar("T")


def agreed(work: Callable[[], T], group: Any = None) -> T:
    """What `work` returns, once it has on every rank. When it failed on one, an error on all of them, which names the
    rank: one that went on alone would wait for the others forever. Raises MissingBackendError where that was the
    reason, else InputError."""
    result, problem = None, None
    try:
        result = work()
    except Exception as error:
        problem = isinstance(error, MissingBackendError), str(error) or type(error).__name__
    problems: list[tuple[bool, str] | None] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(problems, problem, group=group)
    for rank, each in enumerate(problems):
        if each is not None:
            raise (MissingBackendError if each[0] else InputError)(f"rank {rank}: {each[1]}")
    return result  # type: ignore[return-value]


def agreed_on(checked: Callable[[], T], decisions: Decisions) -> T:
    """What `checked` returns, once it has on every rank. Raises its error on all of them alike, and InputError where
    ranks have other plans than rank 0."""
    result = agreed(checked)
    require_same(decisions, "plan")
    return result


def require_same(value: object, what: str) -> None:
    """Raises InputError on all ranks alike, where `value` is another one than on rank 0; it is called `what`."""
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, text_digest(repr(value)))
    if other := [rank for rank, each in enumerate(found) if each != found[0]]:
        raise InputError(f"rank {other[0]} found another {what} than rank 0, expected the same")
