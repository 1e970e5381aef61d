"""A compression plan in words: what is compressed, and why nothing is."""

from __future__ import annotations

from typing import NamedTuple

from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.planner.passes.compression.problem import CompressionProblem


class Compressed(NamedTuple):
    """What a plan compresses: gradients, their elements, groups by compressor."""

    gradients: int
    elements: int
    groups: dict[str, int]


def compressed(decisions: CompressionDecisions) -> Compressed:
    """Gradients and elements in groups that are compressed, and the number of these by compressor."""
    gradients = elements = 0
    groups: dict[str, int] = {}
    for group in decisions.groups:
        if group.compressor is not None:
            gradients += group.last - group.first + 1
            elements += decisions.problem.elements(group.first, group.last)
            groups[group.compressor] = groups.get(group.compressor, 0) + 1
    return Compressed(gradients, elements, groups)


def exposed_ns(problem: CompressionProblem, time_ns: int) -> int:
    """What the exchange adds to the operators of an iteration that takes `time_ns`."""
    return time_ns - problem.forward_ns - problem.backward_ns


def reason(decisions: CompressionDecisions) -> str:
    """Why a plan compresses nothing."""
    problem = decisions.problem
    exposed = exposed_ns(problem, decisions.time_ns)
    if problem.ranks == 1:
        return "a single rank exchanges no gradients"
    if not problem.compressors:
        return "the problem has no compressor"
    if not exposed:
        return "the exchange of the gradients as they are is hidden behind the backward pass"
    encoding = {cost.name: 0 for cost in problem.compressors}
    for name in encoding:
        costs = [cost for cost in problem.compressors if cost.name == name]
        encoding[name] = sum(
            min(cost.encode.at(each.elements) + cost.decode_ns(each.elements, 1) for cost in costs)
            for each in problem.gradients
        )
    name = min(encoding, key=lambda each: (encoding[each], each))
    return (
        f"links cost less than encoding: the exchange as it is adds {format_time(exposed)} to the operators, and "
        f"encoding and decoding every gradient once with {name} takes {format_time(encoding[name])}"
    )


def kept(decisions: CompressionDecisions) -> str:
    """What becomes of what payloads lose, as the end of a sentence; empty where no compressor keeps it."""
    without = [name for name, each in decisions.algorithms.items() if each is None or not each.feedback]
    if len(without) == len(decisions.algorithms):
        return ""
    return ", which error feedback adds to the next" + (f", except for {' and '.join(without)}" if without else "")
