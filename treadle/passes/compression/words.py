"""A compression plan in words: what is compressed, what is sent, and why nothing is compressed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from treadle.planner.documents.compression_costs import CompressorCost
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.compression.decisions import CompressionDecisions, CompressionRival, GradientGroup
from treadle.planner.passes.compression.payload import payload_bytes
from treadle.planner.passes.compression.problem import DTYPE_BYTES, CompressionProblem

ROOTED = ("reduce", "gather", "broadcast")
"""Collectives in which the root sends more or less than others."""


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


def percent(share: float) -> str:
    """A share with one decimal, which is 0.0% and 100.0% for nothing and all only."""
    text = f"{share:.1%}"
    if text == "100.0%" and share < 1:
        return ">99.9%"
    return "<0.1%" if text == "0.0%" and share else text


def name_of(rival: CompressionRival) -> str:
    """The name of a rival, with a word where its method did not end on its own."""
    return f"{rival.name} (cut short)" if rival.cut else rival.name


def sent(decisions: CompressionDecisions) -> str:
    """The bytes that a rank sends, which are the most that it may send where the busiest rank differs between steps."""
    rooted = any(step.partition("@")[0] in ROOTED for group in decisions.groups for step in group.steps)
    return f"{'at most ' if rooted else ''}{format_bytes(decisions.sent_bytes)}"


def compressors_of(groups: Mapping[str, int]) -> str:
    """The compressors with their numbers of groups."""
    return ", ".join(f"{name} for {many(count, 'group')}" for name, count in sorted(groups.items()))


def exposed_ns(problem: CompressionProblem, time_ns: int) -> int:
    """What the exchange adds to the operators of an iteration that takes `time_ns`."""
    return time_ns - problem.forward_ns - problem.backward_ns


def reason(plan: Plan[CompressionDecisions]) -> str:
    """Why a plan compresses nothing."""
    decisions, problem = plan.decisions, plan.decisions.problem
    exposed = exposed_ns(problem, decisions.time_ns)
    if problem.ranks == 1:
        return "a single rank exchanges no gradients"
    if not problem.compressors:
        return "the problem has no compressor"
    if tuned := plan.provenance.tuned:
        return f"of {many(len(tuned[0].measured), 'plan')} that were measured this one takes least time"
    if problem.compressions == 0:
        return "the problem allows no encoding (compressions: 0)"
    if not exposed:
        return "the exchange of the gradients as they are is hidden behind the backward pass"
    dense = DTYPE_BYTES * sum(each.elements for each in problem.gradients)
    payload, name = min((_payload_bytes(problem, each), each) for each in problem.names)
    if payload >= dense:
        sizes = f"{format_bytes(payload)} of {format_bytes(dense)}"
        return f"no payload is smaller than the gradients: {name} makes {sizes}"
    if plan.provenance.limit_fired or plan.provenance.interrupted:
        return "the search was cut short before it found a plan that compresses and takes less time"
    adds = f"the exchange as it is adds {format_time(exposed)} to the operators"
    encoding, name = min((_coding_ns(problem, each), each) for each in problem.names)
    if encoding >= exposed:
        once = f"encoding and decoding every gradient once with {name} takes {format_time(encoding)}"
        return f"links cost less than encoding: {adds}, and {once}"
    rivals = [each for each in decisions.rivals if _compresses(each.groups) and each.time_ns >= decisions.time_ns]
    if not rivals:
        return f"nothing that was tried with a compressor takes less time: {adds}"
    best = min(rivals, key=lambda each: each.time_ns)
    return (
        f"compression saves no time: {adds}, that of {name_of(best)} {format_time(exposed_ns(problem, best.time_ns))}"
    )


def _compresses(groups: tuple[GradientGroup, ...]) -> bool:
    return any(group.compressor is not None for group in groups)


def _payload_bytes(problem: CompressionProblem, name: str) -> int:
    """Bytes of all gradients, each encoded alone."""
    costs: dict[str, CompressorCost] = {cost.place: cost for cost in problem.compressors if cost.name == name}
    return sum(payload_bytes(costs, name, each.elements) for each in problem.gradients)


def _coding_ns(problem: CompressionProblem, name: str) -> int:
    """ns to encode and decode every gradient once, each at the quicker place."""
    costs = [cost for cost in problem.compressors if cost.name == name]
    return sum(
        min(cost.encode.at(each.elements) + cost.decode_ns(each.elements, 1) for cost in costs)
        for each in problem.gradients
    )


def kept(decisions: CompressionDecisions) -> str:
    """What becomes of what payloads lose, as the end of a sentence; empty where no compressor keeps it."""
    without = [name for name, each in decisions.algorithms.items() if each is None or not each.feedback]
    if len(without) == len(decisions.algorithms):
        return ""
    return ", which error feedback adds to the next" + (f", except for {' and '.join(without)}" if without else "")
