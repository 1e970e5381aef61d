"""The choice: the fastest measured configuration within the memory, or the best predicted one where none was measured.

The model only decides what is measured; a measurement decides what is taken (MAPLE, "Selecting MAPLE parameters").
"""

from __future__ import annotations

import math
from typing import NamedTuple

from treadle.planner.documents.scalars import many
from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.index.problem import PAIR_BYTES, IndexCandidate, IndexProblem
from treadle.planner.search.top import Outcome, Predicted, by_prediction

RATIO_STEPS = 10_000
"""Parts of 1 in which a memory ratio that would suffice is stated."""


class IndexChoice(NamedTuple):
    chosen: IndexCandidate
    second: IndexCandidate | None
    over_memory: int


def choice_of(problem: IndexProblem) -> IndexChoice:
    """The fastest two that are allowed; of equal ones the best predicted. Raises InfeasibleError where none runs here,
    or all measured ones are over the memory."""
    order = [problem.candidates[place] for place in by_prediction(predictions(problem))]
    timed = [each for each in order if each.measured is not None] if problem.top else order
    if not timed:
        raise InfeasibleError(f"none of {many(len(order), 'configuration')} runs here: {order[0].failed}")
    allowed = sorted((each for each in timed if not over_memory(problem, each)), key=taken_ns)
    if not allowed:
        raise _too_large(problem, timed)
    return IndexChoice(allowed[0], allowed[1] if len(allowed) > 1 else None, len(timed) - len(allowed))


def taken_ns(candidate: IndexCandidate) -> int:
    """The trace subset as measured, else as predicted."""
    return math.ceil(candidate.predicted_ns) if candidate.measured is None else candidate.measured.time_ns


def over_memory(problem: IndexProblem, candidate: IndexCandidate) -> bool:
    """Whether it was measured to take more bytes than the ratio of the problem allows."""
    if problem.max_memory_ratio is None or candidate.measured is None:
        return False
    return memory_ratio(problem, candidate.measured.bytes) > problem.max_memory_ratio


def memory_ratio(problem: IndexProblem, size: int) -> float:
    """Bytes of an index for each byte of the keys and payloads at the end, at least one pair; rounded correctly, so
    that it equals a decimal that it is."""
    return size / (PAIR_BYTES * max(1, problem.keys_at_end))


def predictions(problem: IndexProblem) -> list[Predicted]:
    """All candidates by name, in their order."""
    return [Predicted(each.name, each.predicted_ns) for each in problem.candidates]


def outcomes(problem: IndexProblem) -> dict[int, Outcome]:
    """What was found of those that were tried, by the places of the candidates."""
    return {
        place: Outcome(None if each.measured is None else each.measured.time_ns, _excluded(problem, each))
        for place, each in enumerate(problem.candidates)
        if each.tried
    }


def _excluded(problem: IndexProblem, candidate: IndexCandidate) -> str:
    if problem.max_memory_ratio is None or candidate.measured is None or not over_memory(problem, candidate):
        return candidate.failed or ""
    ratio = memory_ratio(problem, candidate.measured.bytes)
    return f"{ratio:.4g}x of its keys and payloads, {problem.max_memory_ratio:g}x allowed"


def _too_large(problem: IndexProblem, timed: list[IndexCandidate]) -> InfeasibleError:
    """The reason, with the least ratio that would do."""
    sizes = [each.measured.bytes for each in timed if each.measured is not None]
    small = timed[sizes.index(min(sizes))]
    ratio = least_ratio(min(sizes), problem.keys_at_end)
    return InfeasibleError(
        f"none of {many(len(timed), 'measured configuration')} takes at most {problem.max_memory_ratio:g}x of its keys "
        f"and payloads; a ratio of {ratio} would do, with {small.name}"
    )


def least_ratio(size: int, keys: int) -> float:
    """The least ratio in steps of 1/10000 that allows `size` bytes for `keys` keys."""
    return -(-size * RATIO_STEPS // (PAIR_BYTES * keys)) / RATIO_STEPS
