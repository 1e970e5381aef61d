"""Routes and orders in one model: the optimum of a tiny collective, TACCL's problem without its relaxation.

Every chunk c spreads from its sources (phase a) or is summed up at its root (phase r); an allreduce does r, then a.

    sent[f,c,s,d] in {0,1}   phase f moves c over link s -> d
    send[f,c,s,d] in ns      when
    full[f,c,r] in ns        c, or all of its sum that passes r, is at r
    first[m,n] in {0,1}      of two moves m, n that share a link, a port or a sum: m comes first
    time in ns

    minimise time
    X1  time >= full[f,c,r]
    X2  sent[m] = 1  ->  full[f,c,d] >= send[m] + lat(s,d)                 m = (f, c, s, d)
    X3  sent[m] = 1  ->  send[m] >= full[f,c,s]                            s no source of a spread
    X4  sum_s sent[a,c,s,r] = 1 at targets, <= 1 elsewhere, none into sources
    X5  sent[a,c,r,d] <= sum_s sent[a,c,s,r]                               r no source
    X6  sum_d sent[r,c,s,d] = 1 for every rank but the root, none out of it
    X7  sent[a,c,root,d] = 1  ->  send >= full[r,c,root]                   allreduce
    X8  first[m,n] + first[n,m] >= sent[m] + sent[n] - 1;  first[m,n] = 1  ->  send[n] >= send[m] + busy(m)
    X9  time >= sum of busy(m) * sent[m] over each link and port           redundant, for the bound

Only one partial sum of a chunk leaves each rank: an earlier one could as well wait for the last. So the optimum of X1
to X9 is that of the collective, but for an allreduce, whose sums need not meet at one rank, and for links that batch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations

from treadle.planner.errors import InfeasibleError, InputError, LimitError
from treadle.planner.passes.collective import milp
from treadle.planner.passes.collective.algorithm import Transfer
from treadle.planner.passes.collective.bound import is_searchable
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.scheduling import Resource
from treadle.planner.passes.collective.synthesis import Draft, Request
from treadle.planner.passes.collective.topology import Edge
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.solver import Model, Status, Var

MAX_MOVES = 200
"""Possible moves above which a search over all orders is hopeless."""

Key = tuple[str, int, int, int]


def synthesize(request: Request, effort: Effort) -> Draft:
    """The best algorithm of a tiny collective, proved where the solver ends; never worse than that of `milp`.

    Raises InputError where there are too many possible moves, else what `milp` raises.
    """
    problem = request.problem()
    count = len(possible_moves(problem))
    if count > MAX_MOVES:
        raise InputError(
            f"found {count} possible moves, expected at most {MAX_MOVES} for the exact method; take another method",
            where="--method",
        )
    known = _known(request, effort)
    built = exact_model(problem, None if known is None else known.makespan_ns)
    if known is not None:
        _hint(built, known)
    solution = effort.solve(built.model, effort.limits.routing)
    bound = None
    if solution.bound is not None and is_searchable(problem):
        bound = Bound(int(solution.bound), Argument("search"), "these pieces")
    if known is not None and (not solution.found or int(solution.objective or 0) >= known.makespan_ns):
        status = f"exact search {'optimal' if solution.status is Status.OPTIMAL else 'feasible'}"
        return Draft(
            problem,
            known.transfers,
            f"{known.method}; searched exactly",
            status,
            bound,
            routing_ns=known.routing_ns,
            fixed=True,
        )
    if not solution.found:
        raise LimitError("no algorithm was found within the limits; allow more time or take another method")
    status = "optimal" if solution.status is Status.OPTIMAL else "feasible"
    sent = sorted(
        (int(solution.values[send]), src, dst, chunk, phase)
        for (phase, chunk, src, dst), (present, send) in built.moves.items()
        if solution.values[present]
    )
    numbers: dict[Edge, int] = defaultdict(int)
    transfers = []
    for start, src, dst, chunk, phase in sent:
        link = problem.links[src, dst]
        arrive = start + link.alpha_ns + link.beta_ns
        transfers.append(Transfer(chunk, src, dst, start, arrive, numbers[src, dst], phase == "r"))
        numbers[src, dst] += 1
    how, status = "exact search over routes and orders", f"exact search {status}"
    return Draft(problem, tuple(transfers), how, status, bound, fixed=True)


def _known(request: Request, effort: Effort) -> Draft | None:
    try:
        return milp.synthesize(request, effort)
    except (InfeasibleError, LimitError):
        return None


@dataclass(frozen=True)
class ExactModel:
    """X1 to X9; the variables (sent, send) of every move, and those of every pair that takes turns."""

    model: Model
    time: Var
    moves: dict[Key, tuple[Var, Var]]
    first: dict[tuple[Key, Key], Var]
    full: dict[tuple[str, int, int], Var]


def possible_moves(problem: Problem) -> list[Key]:
    """(phase, chunk, src, dst): spreads run over the routed links, sums over their inverses."""
    keys: list[Key] = []
    for chunk, piece in enumerate(problem.chunks):
        if piece.targets <= piece.sources:
            continue
        for src, dst in problem.topology.routing.links:
            if dst in piece.sources:
                continue
            if problem.half != "forward":
                keys.append(("r", chunk, dst, src))
            if problem.half != "inverted":
                keys.append(("a", chunk, src, dst))
    return sorted(keys)


def exact_model(problem: Problem, known_ns: int | None = None) -> ExactModel:
    """Write the model; an algorithm of `known_ns` is known already."""
    model = Model("exact")
    links = problem.links
    lat = {edge: link.alpha_ns + link.beta_ns for edge, link in links.items()}
    busy = lat if problem.latency == "serial" else {edge: link.beta_ns for edge, link in links.items()}
    keys = possible_moves(problem)
    horizon = sum(lat[src, dst] for _, _, src, dst in keys) if known_ns is None else known_ns
    time = model.int_var(0, horizon, "time")
    moves = {key: (model.bool_var(), model.int_var(0, horizon)) for key in keys}
    full = {
        (f, c, r): model.int_var(0, horizon) for f, c in sorted({key[:2] for key in keys}) for r in range(problem.ranks)
    }
    into: dict[tuple[str, int, int], list[Key]] = defaultdict(list)
    out: dict[tuple[str, int, int], list[Key]] = defaultdict(list)
    for key in keys:
        phase, chunk, src, dst = key
        into[phase, chunk, dst].append(key)
        out[phase, chunk, src].append(key)

    for key, (sent, send) in moves.items():
        phase, chunk, src, dst = key
        model.add_linear([(full[phase, chunk, dst], 1), (send, -1)], lat[src, dst], enforced_by=sent)  # X2
        if phase == "r" or src not in problem.chunks[chunk].sources:
            model.add_linear([(send, 1), (full[phase, chunk, src], -1)], 0, enforced_by=sent)  # X3
        elif problem.half == "both":
            model.add_linear([(send, 1), (full["r", chunk, src], -1)], 0, enforced_by=sent)  # X7
    for place, var in full.items():
        phase, chunk, rank = place
        piece = problem.chunks[chunk]
        model.add_linear([(time, 1), (var, -1)], 0)  # X1
        arriving, leaving = [moves[key][0] for key in into[place]], [moves[key][0] for key in out[place]]
        if rank in piece.sources:
            continue
        if phase == "r":
            model.add_linear([(one, 1) for one in leaving], 1, 1)  # X6
            continue
        model.add_linear([(one, 1) for one in arriving], int(rank in piece.targets), 1)  # X4
        for one in leaving:
            model.add_linear([*((other, 1) for other in arriving), (one, -1)], 0)  # X5

    shared: dict[Resource, list[Key]] = defaultdict(list)
    for key in keys:
        phase, chunk, src, dst = key
        shared["link", src, dst].append(key)
        if phase == "r":
            shared["sum", chunk, dst].append(key)
    for number, port in enumerate(problem.ports):
        members = set(port.links)
        shared["port", number, 0] = [key for key in keys if key[2:] in members]
    first: dict[tuple[Key, Key], Var] = {}
    for resource, sharers in sorted(shared.items()):
        own = problem.ports[resource[1]].beta_ns if resource[0] == "port" else None
        hold = lat if resource[0] == "sum" else busy if own is None else dict.fromkeys(busy, own)
        if resource[0] != "sum":
            total = [(moves[key][0], -hold[key[2], key[3]]) for key in sharers]
            model.add_linear([(time, 1), *total], 0)  # X9
        for one_key, other_key in combinations(sharers, 2):
            exclusive = one_key[0] == "a" == other_key[0] and one_key[1::2] == other_key[1::2]
            if exclusive or (resource[0] == "port" and one_key[2:] == other_key[2:]):
                continue
            for m, n in ((one_key, other_key), (other_key, one_key)):
                if (m, n) not in first:
                    first[m, n] = model.bool_var()
                model.add_linear([(moves[n][1], 1), (moves[m][1], -1)], hold[m[2], m[3]], enforced_by=first[m, n])  # X8
            turns = [(first[one_key, other_key], 1), (first[other_key, one_key], 1)]
            model.add_linear([*turns, (moves[one_key][0], -1), (moves[other_key][0], -1)], -1)
    model.minimize([(time, 1)])
    return ExactModel(model, time, moves, first, full)


def _hint(built: ExactModel, known: Draft) -> None:
    at = {("r" if m.reduce else "a", m.chunk, m.src, m.dst): m for m in known.transfers}
    built.model.hint(built.time, known.makespan_ns)
    for key, (sent, send) in built.moves.items():
        built.model.hint(sent, int(key in at))
        built.model.hint(send, at[key].send_ns if key in at else 0)
    for (one, other), var in built.first.items():
        built.model.hint(var, int(one in at and other in at and at[one].send_ns < at[other].send_ns))
    for place, var in built.full.items():
        arrivals = [m.arrive_ns for (f, c, _, dst), m in at.items() if (f, c, dst) == place]
        built.model.hint(var, max(arrivals, default=0))
