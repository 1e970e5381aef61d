"""Stage 1: routes, with bandwidth relaxed (TACCL, section 5.5.1, equations 5.1 to 5.15).

Every chunk c gets a tree from each of its sources, a forest, over its allowed links; links and ports are only charged
in sum, nothing is ordered yet. Routes that are run backwards (reductions) are charged what the reversed links cost.

    sent[c,s,r] in {0,1}    c moves over link s -> r
    start[c,r] in ns        c is available at r; 0 at its sources
    used[s,r] in {0,1}      a switched link carries anything
    time in ns              T1

    minimise, one after the other: time; then the number of used links (uc-min) or its negative (uc-max) over all
    switches; then the sum of start[c,r] over all targets. Each step keeps the optimum of the ones before (5.11 as a
    lexicographic solve, so no weight gamma has to be chosen).

    A1   minimise time                                                              5.1
    A2   time >= start[c,r]                             r a target of c             5.2
    A3   start[c,source] = 0                                                        5.3
    A4   send[c,s,r] = start[c,s]: without contention a copy leaves at once         5.4, send eliminated
    A5   sent[c,s,r] = 1  ->  start[c,r] >= start[c,s] + lat(s,r)                   5.5, the other half never binds
    A6   sum_s sent[c,s,r] = 1                          r a target, no source
    A7   sum_s sent[c,s,r] <= 1                         any other r
    A8   sent[c,r,d] <= sum_s sent[c,s,r]               r no source: nothing comes from nowhere
    A9   sent[c,s,r] <= sum_d sent[c,r,d]               r not a target: no dead ends
    A10  sent[c,s,r] <= used[s,r] <= sum_c sent[c,s,r]  switched links              5.9, 5.10
    A11  time >= sum_c lat(s,r) * sent[c,s,r]           every link                  5.6, beta only when pipelined
    A12  time >= sum_c,(s,r) in port lat(s,r) * sent[c,s,r]   every port            5.7, 5.8, by rank and switch;
                                                        an uplink's own beta in place of lat
    A13  sum over links n1 -> n2 of sent[c] >= 1        c of node n1 with a target on n2, where such links exist  5.15
    A14  tied transfers and starts share one variable   union-find, no equality rows  5.12 to 5.14
    A15  time >= start[c,s] + sum_r lat(s,r) * sent[c,s,r]   routes run backwards: sums of one chunk take turns at s

TACCL does not print A6 to A9; without them sending nothing in zero time is optimal. A15 is not TACCL's either: without
it a reduction may have all its contributions at one rank at one time. TACCL's own reduction, on the trees of the
mirrored collective, is the model without A15.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.collective.algorithm import LinkCost, Port
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.topology import Edge
from treadle.planner.solver import Model, Solution, Status, Var

Key = tuple[int, int, int]


@dataclass(frozen=True)
class Routing:
    """By chunk: its links, sorted. `time_ns` is T1 and proved when `optimal`; `bound_ns` is proved in any case.
    `settled`: the two further objectives were solved to optimality, too."""

    trees: tuple[tuple[Edge, ...], ...]
    time_ns: int
    bound_ns: int
    optimal: bool
    settled: bool


class Classes:
    """Union-find over hashable items."""

    def __init__(self) -> None:
        self.parent: dict[Hashable, Hashable] = {}

    def find(self, item: Hashable) -> Hashable:
        root = item
        while self.parent.setdefault(root, root) != root:
            root = self.parent[root]
        while self.parent[item] != root:
            self.parent[item], item = root, self.parent[item]
        return root

    def join(self, one: Hashable, other: Hashable) -> None:
        self.parent[self.find(other)] = self.find(one)


def tied_transfers(problem: Problem) -> dict[Key, int]:
    """(chunk, src, dst) -> class number, for every transfer that may be chosen (A14).

    A class with a member that is not allowed is left out altogether.
    """
    keys = {(c, s, r) for c, edges in enumerate(problem.allowed) for s, r in edges}
    classes = Classes()
    dead: list[Key] = []
    for tie in problem.ties:
        images = set()
        for c, s, r in sorted(keys):
            if tie.block[s] == tie.block[r]:
                image = (tie.chunks[c], tie.ranks[s], tie.ranks[r])
                images.add(image)
                if image in keys:
                    classes.join((c, s, r), image)
                else:
                    dead.append((c, s, r))
        dead += [key for key in sorted(keys) if tie.block[key[1]] == tie.block[key[2]] and key not in images]
    gone = {classes.find(key) for key in dead}
    numbers: dict[Hashable, int] = {}
    result = {}
    for key in sorted(keys):
        root = classes.find(key)
        if root not in gone:
            result[key] = numbers.setdefault(root, len(numbers))
    return result


def tied_starts(problem: Problem) -> dict[tuple[int, int], int]:
    """(chunk, rank) -> class number of its start variable, for every rank but the sources (A14)."""
    classes = Classes()
    for tie in problem.ties:
        for c in range(len(problem.chunks)):
            for rank in range(problem.ranks):
                classes.join((c, rank), (tie.chunks[c], tie.ranks[rank]))
    numbers: dict[Hashable, int] = {}
    result = {}
    for c, chunk in enumerate(problem.chunks):
        for rank in sorted({rank for edge in problem.allowed[c] for rank in edge} - chunk.sources):
            result[c, rank] = numbers.setdefault(classes.find((c, rank)), len(numbers))
    return result


@dataclass(frozen=True)
class RoutingModel:
    """The model of A1 to A14 and its variables."""

    model: Model
    time: Var
    sent: dict[Key, Var]
    start: dict[tuple[int, int], Var]
    used: dict[Edge, Var]


def costs(problem: Problem, backwards: bool) -> tuple[dict[Edge, LinkCost], tuple[Port, ...]]:
    """Links and ports in the routed direction, with the costs of the links that the transfers will use."""
    if not backwards:
        return problem.topology.routing.links, problem.topology.routing.ports
    plan = problem.topology.plan
    links = {(src, dst): plan.links[dst, src] for src, dst in problem.topology.routing.links}
    ports = (replace(p, links=tuple((src, dst) for dst, src in p.links if (src, dst) in links)) for p in plan.ports)
    return links, tuple(ports)


def routing_model(
    problem: Problem, *, backwards: bool | None = None, turns: bool = False, reception: bool = True
) -> RoutingModel:
    """Write the constraints; the objective is time. `reception` False leaves out A6 to A9, as TACCL prints it.

    `backwards` (default: for reducescatter and reduce) charges the reversed links; `turns` adds A15.
    """
    links, ports = costs(problem, problem.half == "inverted" if backwards is None else backwards)
    lat = {edge: link.alpha_ns + link.beta_ns for edge, link in links.items()}
    busy = lat if problem.latency == "serial" else {edge: link.beta_ns for edge, link in links.items()}
    longest = max(lat.values(), default=1) * max(1, problem.ranks - 1)
    model = Model("routing")
    time = model.int_var(0, longest * (len(problem.chunks) + 1) * 2, "time")
    transfers, starts = tied_transfers(problem), tied_starts(problem)
    by_class = {number: model.bool_var() for number in sorted(set(transfers.values()))}
    sent = {key: by_class[number] for key, number in transfers.items()}
    start_by_class = {number: model.int_var(0, longest) for number in sorted(set(starts.values()))}
    start = {key: start_by_class[number] for key, number in starts.items()}
    rows = _Rows(model)

    into: dict[tuple[int, int], list[Var]] = defaultdict(list)
    out: dict[tuple[int, int], list[Var]] = defaultdict(list)
    over: dict[Edge, list[Var]] = defaultdict(list)
    for (c, s, r), var in sent.items():
        into[c, r].append(var)
        out[c, s].append(var)
        over[s, r].append(var)

    for c, chunk in enumerate(problem.chunks):
        for r in sorted({rank for edge in problem.allowed[c] for rank in edge} - chunk.sources):
            if r in chunk.targets:
                rows.at_least([(time, 1), (start[c, r], -1)], 0)  # A2
            if not reception:
                continue
            if r in chunk.targets:
                rows.exactly([(var, 1) for var in into[c, r]], 1)  # A6
            else:
                rows.at_most([(var, 1) for var in into[c, r]], 1)  # A7
                for var in into[c, r]:
                    rows.at_least([*((o, 1) for o in out[c, r]), (var, -1)], 0)  # A9
                for var in out[c, r]:
                    rows.at_least([*((i, 1) for i in into[c, r]), (var, -1)], 0)  # A8
    for (c, s, r), var in sent.items():
        before = [] if s in problem.chunks[c].sources else [(start[c, s], -1)]
        rows.at_least([(start[c, r], 1), *before], lat[s, r], enforced_by=var)  # A5

    for (c, s), leaving in sorted(out.items()) if turns else ():
        before = [] if s in problem.chunks[c].sources else [(start[c, s], -1)]
        children = [(sent[c, s, r], -lat[s, r]) for s_, r in problem.allowed[c] if s_ == s and (c, s, r) in sent]
        if len(leaving) > 1:
            rows.at_least([(time, 1), *before, *children], 0)  # A15

    for edge in links:
        rows.at_least([(time, 1), *((var, -busy[edge]) for var in over[edge])], 0)  # A11
    for port in ports:
        rows.at_least(
            [
                (time, 1),
                *(
                    (var, -(busy[edge] if port.beta_ns is None else port.beta_ns))
                    for edge in port.links
                    for var in over[edge]
                ),
            ],
            0,
        )  # A12
    if reception:
        for terms in _crossings(problem, sent):
            rows.at_least(terms, 1)  # A13

    used = {}
    for hyperedge in problem.topology.hyperedges:
        for edge in hyperedge.links:
            used[edge] = model.bool_var()
            for var in over[edge]:
                rows.at_least([(used[edge], 1), (var, -1)], 0)  # A10
            rows.at_least([*((var, 1) for var in over[edge]), (used[edge], -1)], 0)
    model.minimize([(time, 1)])
    return RoutingModel(model, time, sent, start, used)


def route(problem: Problem, effort: Effort, *, backwards: bool | None = None, turns: bool = False) -> Routing:
    """Solve stage 1; see `routing_model` for the options.

    Raises InfeasibleError when the sketch leaves no routing, LimitError when none was found.
    """
    if not any(problem.allowed):
        return Routing(tuple(() for _ in problem.chunks), 0, 0, True, True)
    built = routing_model(problem, backwards=backwards, turns=turns)
    model = built.model
    first = effort.solve(model, effort.limits.routing)
    if first.status is Status.INFEASIBLE:
        raise InfeasibleError(
            "the symmetries and relays of the sketch leave no routes for every chunk; drop a symmetry or add links"
        )
    if first.objective is None or first.bound is None:
        raise LimitError("no routing was found within the limits; allow more time or a sketch with more symmetry")
    if not problem.batching.links:  # a message of several chunks pays alpha once, here every chunk does
        effort.require_sooner(int(first.objective), "its routes take at least")
    best, settled = first, True
    for objective in (_policy_terms(problem, built), _arrival_terms(problem, built)):
        if not objective:
            continue
        # The optimum so far becomes a constraint; its solution is the hint.
        model.add_linear(model.cost.items(), ub=int(best.objective or 0))
        model.minimize(objective)
        for var, value in enumerate(best.values):
            model.hint(var, value)
        try:
            step = effort.solve(model, effort.limits.routing / 4)
        except LimitError:
            settled = False
            break
        settled = settled and step.status is Status.OPTIMAL
        if step.found:
            best = step
    return Routing(
        trees=_trees(problem, built, best),
        time_ns=int(first.objective),
        bound_ns=int(first.bound),
        optimal=first.status is Status.OPTIMAL,
        settled=settled,
    )


def _policy_terms(problem: Problem, built: RoutingModel) -> list[tuple[Var, int]]:
    weight = {"uc-min": 1, "uc-max": -1, "free": 0}
    return [(built.used[e], weight[h.policy]) for h in problem.topology.hyperedges if weight[h.policy] for e in h.links]


def _arrival_terms(problem: Problem, built: RoutingModel) -> list[tuple[Var, int]]:
    return [(var, 1) for (c, r), var in built.start.items() if r in problem.chunks[c].targets]


def _crossings(problem: Problem, sent: dict[Key, Var]) -> Iterable[list[tuple[Var, int]]]:
    per_node = problem.per_node
    between: dict[tuple[int, int], list[tuple[Var, int]]] = defaultdict(list)
    for (c, s, r), var in sent.items():
        homes = {source // per_node for source in problem.chunks[c].sources}
        if s // per_node in homes and r // per_node not in homes:
            between[c, r // per_node].append((var, 1))
    for (c, node), terms in sorted(between.items()):
        if any(target // per_node == node for target in problem.chunks[c].targets):
            yield terms


def _trees(problem: Problem, built: RoutingModel, solution: Solution) -> tuple[tuple[Edge, ...], ...]:
    chosen: list[list[Edge]] = [[] for _ in problem.chunks]
    for (c, s, r), var in sorted(built.sent.items()):
        if solution.values[var]:
            chosen[c].append((s, r))
    return tuple(tuple(edges) for edges in chosen)


class _Rows:
    """Adds rows once: symmetric transfers share variables, so that many constraints are equal."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.seen: set[tuple[object, ...]] = set()

    def _add(self, terms: Iterable[tuple[Var, int]], lb: float, ub: float, enforced_by: Var | None = None) -> None:
        total: dict[Var, int] = defaultdict(int)
        for var, coef in terms:
            total[var] += coef
        row = tuple(sorted((var, coef) for var, coef in total.items() if coef))
        key = (row, lb, ub, enforced_by)
        if key not in self.seen:
            self.seen.add(key)
            self.model.add_linear(row, lb, ub, enforced_by)

    def at_least(self, terms: Iterable[tuple[Var, int]], bound: int, enforced_by: Var | None = None) -> None:
        self._add(terms, bound, float("inf"), enforced_by)

    def at_most(self, terms: Iterable[tuple[Var, int]], bound: int) -> None:
        self._add(terms, float("-inf"), bound)

    def exactly(self, terms: Iterable[tuple[Var, int]], value: int) -> None:
        self._add(terms, value, value)
