"""In-switch collectives (NCCL's NVLS): one switch that joins all ranks adds up, multicasts, or both.

An allreduce of n bytes over N ranks: each rank reads the sum of its 1/N through the switch and multicasts it. A
reduction brings p bytes out of every port and into one, a multicast brings them out of one and into every port: so
n (1 + 1/N) pass each port in each direction, where without the switch 2 n (N - 1) / N do.

The ranks work at once, each at an equal share of the ports. In pieces, the sums of a piece are multicast while those
of the next are read: together they fill the ports in both directions. A reducescatter or reduce is the first half
alone, an allgather or broadcast the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from treadle.planner.documents.collective import max_chunkup
from treadle.planner.documents.hardware import InNetwork
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import SwitchCost, SwitchStep
from treadle.planner.passes.collective.collectives import IN_SWITCH
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.synthesis import Draft, Request

PIECES = (1, 2, 4, 8, 16, 32, 64)
LEAST_PIECE = 512
"""Bytes below which a part is not cut."""


def synthesize(request: Request, effort: Effort) -> Draft:
    """The number of pieces that ends soonest, the fewest of equals. Raises InputError as `steps_of`."""
    drafts = []
    for count in PIECES:
        problem = request.problem(count)
        steps = steps_of(problem)
        words = f"nvls: {count} pieces" if count > 1 else "nvls"
        drafts.append(Draft(problem, (), words, "in the switch, closed form", switched=steps))
        several = len(IN_SWITCH[request.collective]) > 1
        finer = problem.chunk_bytes >= 2 * LEAST_PIECE and 2 * count <= max_chunkup(problem.collective, problem.ranks)
        if not (several and finer):
            break
    return min(drafts, key=lambda draft: draft.makespan_ns)


def steps_of(problem: Problem) -> tuple[SwitchStep, ...]:
    """The steps for the pieces of `problem`, at its costs. Raises InputError where no switch does for all ranks what
    the collective asks for."""
    return tuple(_steps(problem, _switch(problem)))


def _switch(problem: Problem) -> SwitchCost:
    asked = IN_SWITCH.get(problem.collective, ())
    if not asked:
        raise InputError(
            f"found {problem.collective}, a switch can only help {', '.join(sorted(IN_SWITCH))}", where="method nvls"
        )
    for switch in problem.switches:
        if len(switch.members) == problem.ranks and {*asked} <= {*switch.in_network}:
            return switch
    raise InputError(
        f"found no switch that joins all ranks and has in_network {', '.join(asked)}, which {problem.collective} needs",
        where="method nvls",
    )


def _steps(problem: Problem, switch: SwitchCost) -> Iterator[SwitchStep]:
    """Each rank's part in `chunkup` pieces, in the order of their starts."""
    ops = IN_SWITCH[problem.collective]
    rooted = len(problem.chunks) == problem.chunkup
    owners = [problem.root] if rooted else range(problem.ranks)
    whole = len(owners) * switch.beta_ns
    """How long a piece of all ranks takes at full rate, in one direction."""
    if len(ops) == 1:
        for piece in range(problem.chunkup):
            yield from _at_once(problem, switch, ops[0], owners, piece, piece * whole, whole)
        return
    both = whole + switch.beta_ns
    last = problem.chunkup - 1
    for piece in range(problem.chunkup):
        start = piece and whole + (piece - 1) * both
        took = both if piece else whole
        yield from _at_once(problem, switch, "reduce", owners, piece, start, took)
        spread = both if piece < last else whole
        yield from _at_once(problem, switch, "multicast", owners, piece, start + took + switch.alpha_ns, spread)


def _at_once(
    problem: Problem, switch: SwitchCost, op: InNetwork, owners: Iterable[int], piece: int, start: int, took: int
) -> Iterator[SwitchStep]:
    end = start + took + switch.alpha_ns
    for owner in owners:
        yield SwitchStep(_chunk(problem, owner, piece), owner, op, switch.name, start, end)


def _chunk(problem: Problem, owner: int, piece: int) -> int:
    return piece if len(problem.chunks) == problem.chunkup else owner * problem.chunkup + piece
