"""What another number of copies, or storage of another rate, would do: `copies=1..4`, `storage=1GB..16GB`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from msgspec.structs import replace

from treadle.planner.documents.quantities import Spread, parse_bytes, parse_named, parse_number, parse_values
from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.checkpoint.decided import decided
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.planning import CheckpointOptions, plan_checkpoint
from treadle.planner.passes.checkpoint.problem import Persistent
from treadle.planner.search.clock import Clock

MOST_VALUES = 16
EXAMPLE = "copies=1..4 or storage=1GB..16GB"


class CheckpointQuestion(NamedTuple):
    """Numbers of copies, or rates of storage in bytes per second."""

    name: Literal["copies", "storage"]
    values: tuple[int, ...]


class CheckpointAnswer(NamedTuple):
    """What one of them leads to."""

    value: int
    decisions: CheckpointDecisions


def question_of(text: str, where: str = "--what-if") -> CheckpointQuestion:
    """`copies=1..4` in whole numbers, `storage=1GB..16GB` in steps of twice as much. Raises InputError for anything
    else."""
    ((name, given),) = parse_named([text], EXAMPLE, where=where).items()
    if name == "copies":
        numbers = Spread(
            lambda low, high, step: [*range(int(low), int(high) + 1)], 2, 2, MOST_VALUES, "for all of them"
        )
        return CheckpointQuestion(
            "copies", parse_values(given, lambda word: parse_number(word, where=where), numbers, where=where)
        )
    if name == "storage":
        rates = Spread.by_factor(2, MOST_VALUES)
        return CheckpointQuestion(
            "storage", parse_values(given, lambda word: parse_bytes(word, least=1, where=where), rates, where=where)
        )
    raise InputError(f"found {name!r}, expected {EXAMPLE}", where=where)


def answers_to(
    question: CheckpointQuestion,
    found: CheckpointDecisions,
    options: CheckpointOptions,
    interval_ns: int,
    clock: Clock,
    on_refused: Callable[[str], None],
) -> tuple[CheckpointAnswer, ...]:
    """An answer for each value, in their order; those that are left when the time has passed are not answered.

    interval_ns: between checkpoints on storage, if the problem of `found` has none. on_refused: called with a line for
    a value without a plan.
    """
    answers = list[CheckpointAnswer]()
    for value in question.values:
        if answers and clock.over():
            break
        try:
            answers.append(CheckpointAnswer(value, _answer(question, value, found, options, interval_ns, clock)))
        except (InputError, InfeasibleError) as error:
            on_refused(f"no plan with {question.name}={value}: {error}")
    return tuple(answers)


def _answer(
    question: CheckpointQuestion,
    value: int,
    found: CheckpointDecisions,
    options: CheckpointOptions,
    interval_ns: int,
    clock: Clock,
) -> CheckpointDecisions:
    problem = found.problem
    if question.name == "copies":
        return plan_checkpoint(replace(problem, copies=value), options=options, clock=clock).decisions
    storage = problem.persistent or Persistent(rate=value, interval_ns=interval_ns)
    other = replace(problem, persistent=replace(storage, rate=value))
    return decided(other, found.placement, found.holders, found.variant, options.every)
