"""Requests to the methods of synthesis, and the drafts that they return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle.planner.documents.collective import Collective, Demand
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.tuned import Tuned
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, SwitchStep, Transfer
from treadle.planner.passes.collective.pricing import Price
from treadle.planner.passes.collective.problem import Problem, build_problem
from treadle.planner.search.bound import Bound


@dataclass(frozen=True)
class Request:
    """`size_bytes` is the input buffer of one rank (None: the sketch's size); `demands` are those of an irregular
    collective. With `order` rank order[i] of the hardware is i in every problem, in `root` and `demands` too."""

    collective: Collective
    hardware: Hardware
    sketch: Sketch
    size_bytes: int | None = None
    root: int = 0
    demands: tuple[Demand, ...] | None = None
    order: tuple[int, ...] | None = None

    def problem(
        self, chunkup: int | None = None, roots: Sequence[int] | None = None, *, restricted: bool = False
    ) -> Problem:
        """What is asked, in the pieces that a method wants; `restricted` with the sketch's restrictions of routes.
        Raises InputError as `build_problem`."""
        return build_problem(
            self.collective,
            self.hardware,
            self.sketch,
            self.size_bytes,
            self.root,
            chunkup,
            roots=roots,
            demands=self.demands,
            restricted=restricted,
            order=self.order,
        )


def request_of(decisions: CollectiveDecisions, hardware: Hardware, sketch: Sketch) -> Request:
    """What a plan was asked for, of these inputs."""
    size, root = decisions.input_bytes, decisions.root or 0
    return Request(decisions.collective, hardware, sketch, size, root, decisions.demands)


@dataclass(frozen=True)
class Draft:
    """A timed algorithm, not yet checked: the problem a method chose (its pieces and roots) and its transfers.

    `method` names what was done, `status` what was proved. `bound` is a bound that the method proved, if any. `fixed`
    states that the pieces and the messages of several chunks are those that the sketch asks for, so that a bound over
    the routes and orders of these pieces has the same choices; bounds of other drafts cover all pieces.
    """

    problem: Problem
    transfers: tuple[Transfer, ...]
    method: str
    status: str
    bound: Bound | None = None
    floor: Bound | None = None
    """The bound over all pieces, routes and orders, if it is known already."""
    routing_ns: int | None = None
    ordering_ns: int | None = None
    fixed: bool = False
    price: Price | None = None
    """The price of its program, if it is known already."""
    tuned: tuple[Tuned, ...] = ()
    """What was measured of the programs that the price is one of, if any was."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else provenance should say."""
    switched: tuple[SwitchStep, ...] = ()
    """In place of transfers: what switches of the problem do."""

    @property
    def makespan_ns(self) -> int:
        if self.switched:
            return max(step.end_ns for step in self.switched)
        return max((move.arrive_ns for move in self.transfers), default=0)
