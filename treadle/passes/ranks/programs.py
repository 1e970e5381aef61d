"""Patterns that gloo lacks, run as programs of ours by the runtime for CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, distributed

from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.ranks.programs import program_of
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.sources import find_input
from treadle.planner.errors import InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.runtime.collective.messages import on_wire
from treadle.runtime.collective.wire.native import RankWire
from treadle.runtime.ranks.orders import GlooLibrary, OrderedLibrary
from treadle.runtime.sockets import connect

RINGS = ("ring", "nccl-ring")


class ProgramLibrary(NamedTuple):
    """An allreduce as a program, in MSCCL's XML. Messages have the latency of the network and no other."""

    text: str

    def joined(self, name: str, ranks: Sequence[int], place: int, stack: ExitStack) -> Callable[[Tensor], object]:
        def gather(value: Any) -> list[Any]:
            values: list[Any] = [None] * len(ranks)
            distributed.all_gather_object(values, value)
            return [values[rank] for rank in ranks]

        wire = RankWire(place, connect(place, len(ranks), gather))
        stack.callback(wire.close)
        call = on_wire(xml.parse(self.text, "program"), wire, inplace=True)
        return lambda tensor: call(tensor, out=tensor)


def library_of(plan: Plan[RanksDecisions], file: Path) -> OrderedLibrary:
    """What runs the algorithm of the plan at `file`: gloo, or a program of ours. Raises InputError where the
    collective plan that it orders hosts for is not there or not of allreduce."""
    problem = plan.decisions.problem
    if problem.algorithm in RINGS:
        return GlooLibrary()
    return ProgramLibrary(xml.emit(_ordered(plan, file) if problem.algorithm == "plan" else program_of(problem)))


def _ordered(plan: Plan[RanksDecisions], file: Path) -> CollectiveProgram:
    """The program of the collective plan that the hosts are ordered for."""
    reference = plan.inputs.get("plan")
    if reference is None:
        raise InputError(
            "found no collective plan among the inputs, expected the one that has the hops", where=str(file)
        )
    name = find_input("plan", Plan, reference, file)
    given = require_pass(store.load(name, Plan), CollectiveDecisions, name)
    if store.digest(given) != reference.digest:
        raise InputError("found another plan than the one that hosts were ordered for; order them again", where=name)
    if given.decisions.collective != "allreduce":
        raise InputError(f"found {given.decisions.collective}, only allreduces are run", where=name)
    return lower(given.decisions, inplace=True)
