"""What the peers share: labels of a problem, saved activations, and the outcome."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from treadle.planner.documents.trace import Trace
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.problem import SwapProblem


class Outcome(NamedTuple):
    """`decisions` are None if the machine's memory is insufficient. The peer's rule fits into `needed_bytes` of device
    memory, scratch and reserve included: the least such figure, but for odswap a lower bound."""

    decisions: SwapDecisions | None
    needed_bytes: int


class Labels(NamedTuple):
    """Facts about operators that a problem lacks: those of the backward pass, and the convolutions."""

    backward: frozenset[int]
    convolutions: frozenset[int]


class Saved(NamedTuple):
    """An activation that the forward pass makes and the backward pass reads. Operators by number, ascending."""

    tensor: int
    forward: tuple[int, ...]
    """Its maker and its forward users."""
    backward: tuple[int, ...]
    later: bool
    """Whether an operator of neither pass reads it."""


def labels_of(problem: SwapProblem, trace: Trace) -> Labels:
    """Read off the trace that the problem was extracted from."""
    ops = {op.id: op for op in trace.ops}
    found = [ops[op.id] for op in problem.ops]
    return Labels(
        frozenset(at for at, op in enumerate(found) if op.phase == "backward"),
        frozenset(at for at, op in enumerate(found) if re.match(r"conv(olution|\dd)", op.target.split(".")[1])),
    )


def saved_activations(problem: SwapProblem, labels: Labels) -> list[Saved]:
    """What autograd saves: results of forward operators that backward operators read, in the order of those operators,
    without results of the step, tensors of 0 bytes, and tensors that the backward pass writes."""
    users: Mapping[int, list[int]] = {tensor: [] for tensor in range(len(problem.tensors))}
    for at, op in enumerate(problem.ops):
        for tensor in op.inputs:
            users[tensor].append(at)
    first = min(labels.backward, default=len(problem.ops))
    found = []
    for at, op in enumerate(problem.ops[:first]):
        for tensor in op.outputs:
            record = problem.tensors[tensor]
            read = tuple(user for user in users[tensor] if user in labels.backward)
            if read and record.bytes and not record.kept:
                before = tuple(user for user in users[tensor] if user < first)
                later = any(user >= first and user not in labels.backward for user in users[tensor])
                found.append(Saved(tensor, (at, *before), read, later))
    return found
