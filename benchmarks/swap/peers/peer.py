"""What the peers share: what they look at in a problem, and what comes of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from treadle.planner.documents.trace import Trace
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.problem import SwapProblem


class Outcome(NamedTuple):
    """`decisions` are None where the machine's memory does not suffice; with `needed_bytes` of device memory, scratch
    and reserve included, the peer's rule would fit. The figure is the least but for odswap, where it is a lower bound.
    """

    decisions: SwapDecisions | None
    needed_bytes: int


class Labels(NamedTuple):
    """What a problem does not say of its operators: those of the backward pass, and the convolutions."""

    backward: frozenset[int]
    convolutions: frozenset[int]


class Saved(NamedTuple):
    """An activation that the forward pass makes and the backward pass reads. Operators by number, ascending."""

    tensor: int
    forward: tuple[int, ...]
    """Its maker and its forward users."""
    backward: tuple[int, ...]
    later: bool
    """Something reads it that belongs to neither pass."""


def labels_of(problem: SwapProblem, trace: Trace) -> Labels:
    """Read off the trace that the problem was extracted from."""
    ops = {op.id: op for op in trace.ops}
    found = [ops[op.id] for op in problem.ops]
    return Labels(
        frozenset(at for at, op in enumerate(found) if op.phase == "backward"),
        frozenset(at for at, op in enumerate(found) if re.match(r"conv(olution|\dd)", op.target.split(".")[1])),
    )


def saved_activations(problem: SwapProblem, labels: Labels) -> list[Saved]:
    """What autograd saves: results of forward operators that backward operators read, in the order of their making.
    What the step returns and what has no bytes is left out; what the backward pass writes into as well."""
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
