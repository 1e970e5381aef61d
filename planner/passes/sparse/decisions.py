"""What the sparse pass decides: a scheme for each gradient, what others would take, and the sizes of hash memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from treadle.planner.documents.scalars import Count, Decisions, Name, Positive, Record
from treadle.planner.passes.sparse.problem import SparseProblem
from treadle.planner.passes.sparse.schemes import BY_NAME, DENSE

Seed = Annotated[int, Meta(ge=0, lt=2**32)]
Sums = Literal["worker", "same"]
"""Gradients are added up in the order of participants, or in any order that is the same on all of them."""


class SchemeCost(Record, frozen=True, kw_only=True):
    """What exchanging one gradient by a scheme takes."""

    scheme: Name
    time_ns: Count
    link_ns: Count
    """What of that is spent on links between nodes."""
    bytes: Count
    """Sent or received between nodes by the busiest participant, whichever is more, added up over rounds."""


class HashSlots(Record, frozen=True, kw_only=True):
    """Slots of each part: those that hash functions name, and those that are taken one after the other beyond them."""

    slots: Positive
    serial: Positive


class GradientPlan(Record, frozen=True, kw_only=True):
    """The plan of one gradient."""

    name: Name
    scheme: Name
    costs: tuple[SchemeCost, ...]
    """Every scheme, in the order of the list."""
    least_ns: Count
    """No scheme takes less."""
    favours: Literal["hierarchy", "balanced", "tie"]
    """Which of the two schemes that can be optimal has fewer bytes here: incremental over a hierarchy, or balanced
    parts."""
    memory: HashSlots | None = None
    """For schemes with hashed parts."""


class SparseDecisions(Decisions, frozen=True, kw_only=True, tag_field="pass", tag="sparse"):
    """`gradients` are those of `problem`, in its order. Times are in ns."""

    problem: SparseProblem
    gradients: tuple[GradientPlan, ...]
    seeds: tuple[Seed, ...]
    """Seeds of the hash function that deals units out to parts, then of those that place them within one."""
    sums: Sums
    time_ns: Count
    """The exchange of all gradients."""
    dense_ns: Count
    """The same with every gradient dense."""
    measured: bool = False
    """Times that were measured chose the schemes, not their prices; the provenance has them."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        for path, found, expected in self.problem.problems():
            yield path.replace("$", "$.decisions.problem", 1), found, expected
        for place, plan in enumerate(self.gradients):
            path, priced = f"$.decisions.gradients[{place}]", [cost.scheme for cost in plan.costs]
            for number, name in enumerate(priced):
                if name not in BY_NAME:
                    yield f"{path}.costs[{number}].scheme", repr(name), f"one of {', '.join(BY_NAME)}"
            if plan.scheme not in BY_NAME:
                yield f"{path}.scheme", repr(plan.scheme), f"one of {', '.join(BY_NAME)}"
            elif plan.scheme not in priced:
                yield f"{path}.scheme", plan.scheme, "a scheme with a price"
            if DENSE.name not in priced:
                yield f"{path}.costs", "none of dense", "those of every scheme"
        if len(self.seeds) < 2:
            yield "$.decisions.seeds", f"{len(self.seeds)} seeds", "at least 2"
