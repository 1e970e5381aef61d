"""Algorithms of collectives by name, as executable programs: the planner's templates on identical ranks.

A planned algorithm becomes a program by `treadle.codegen.collective.lower.lower`; a ProgramFactory covers both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, cast

from msgspec.structs import replace

from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import BlockStep, CollectiveProgram, RankProgram, Threadblock
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.collective import Collective
from treadle.planner.documents.collective import Protocol as WireProtocol
from treadle.planner.documents.hardware import Device, Hardware, Network, Switch
from treadle.planner.documents.nearest import meant
from treadle.planner.documents.sketch import InternodeSketch, Sketch
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.templates import all_pairs, binomial, double_tree, recursive_doubling, two_level
from treadle.planner.passes.collective.templates.template import RoundHop, Variant, best_draft


class ProgramFactory(Protocol):
    """Makes the program of a collective ("allreduce", "reducescatter", ...) for `ranks`. Its chunks are numbered over
    the whole tensor; `channels` copies of the algorithm carry a share of each chunk."""

    def __call__(
        self, collective: str, ranks: int, *, channels: int, root: int | None, protocol: str
    ) -> CollectiveProgram: ...


def named(name: str, per_node: int | None = None) -> ProgramFactory:
    """ring, all-pairs, binomial, double-tree, recursive-doubling or two-level, of nodes of `per_node` ranks. Raises
    InputError for another name."""
    if name not in TEMPLATES:
        raise InputError(f"found algorithm {name!r}, {meant(name, sorted(TEMPLATES))}")

    def make(collective: str, ranks: int, *, channels: int, root: int | None, protocol: str) -> CollectiveProgram:
        if ranks == 1:
            return _alone(collective, protocol)
        request = _request(collective, ranks, per_node or ranks, root)
        template = all_pairs.synthesize if collective == "alltoall" and name == "ring" else TEMPLATES[name]
        draft = template(request, Effort())
        return lower(decisions_of(draft, channels, cast(WireProtocol, protocol)))

    return make


def planned(program: CollectiveProgram) -> ProgramFactory:
    """The algorithm of a plan, for the collective that it was planned for. Raises InputError for another one."""

    def make(collective: str, ranks: int, *, channels: int, root: int | None, protocol: str) -> CollectiveProgram:
        found = (program.collective, len(program.ranks), program.root)
        if found != (collective, ranks, root):
            raise InputError(
                f"found a plan for {found[0]} of {found[1]} ranks, expected one for {collective} of {ranks}"
            )
        if program.inplace:
            raise InputError("found a plan for calls in place, expected one out of place", where=program.name)
        return program

    return make


def chosen(algorithms: dict[str, ProgramFactory], otherwise: ProgramFactory) -> ProgramFactory:
    """One algorithm for each collective, by its name."""

    def make(collective: str, ranks: int, *, channels: int, root: int | None, protocol: str) -> CollectiveProgram:
        return algorithms.get(collective, otherwise)(collective, ranks, channels=channels, root=root, protocol=protocol)

    return make


def _ring(request: Request, effort: Effort) -> Draft:
    """One ring in which rank r sends to r + 1."""
    problem = request.problem(1)

    def spread(turned: bool) -> Iterator[RoundHop]:
        # A sum goes round before its chunk does, both in one direction.
        step = -1 if turned else 1
        for number, chunk in enumerate(problem.chunks):
            for hop in range(problem.ranks - 1):
                src = (chunk.owner + step * hop) % problem.ranks
                yield RoundHop(hop, number, src, (src + step) % problem.ranks)

    return best_draft("ring", [Variant("", problem, spread)])


TEMPLATES: dict[str, Callable[[Request, Effort], Draft]] = {
    "ring": _ring,
    "all-pairs": all_pairs.synthesize,
    "binomial": binomial.synthesize,
    "double-tree": double_tree.synthesize,
    "recursive-doubling": recursive_doubling.synthesize,
    "two-level": two_level.synthesize,
}


def _request(collective: str, ranks: int, per_node: int, root: int | None) -> Request:
    if ranks % per_node:
        raise InputError(f"found {ranks} ranks in nodes of {per_node}, expected whole nodes")
    nodes = ranks // per_node
    hardware = Hardware(
        version=1,
        name="alike",
        nodes=nodes,
        devices=(Device(model="rank", kind="gpu", count=per_node),),
        switches=(
            (Switch(name="all", kind="all", members=tuple(range(per_node)), alpha_us=1, beta_us_per_MB=10),)
            if per_node > 1
            else ()
        ),
        network=Network(kind="network", alpha_us=2, beta_us_per_MB=40) if nodes > 1 else None,
    )
    mesh = store.load(resources.locate("sketches", "mesh"), Sketch)
    if nodes > 1:
        mesh = replace(mesh, internode_sketch=InternodeSketch(strategy="relay", internode_conn="fully-connected"))
    return Request(cast(Collective, collective), hardware, mesh, ranks * 2**20, root or 0)


def _alone(collective: str, protocol: str) -> CollectiveProgram:
    """One rank copies its input."""
    steps = (BlockStep("cpy", ("i", 0), ("o", 0)),)
    rank = RankProgram(1, 1, 0, (Threadblock(None, None, 0, steps),))
    root = 0 if collective in ("broadcast", "reduce") else None
    return CollectiveProgram(f"treadle_{collective}_1", collective, (rank,), 1, 1, protocol, root=root)
