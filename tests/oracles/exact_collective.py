"""The unrelaxed collective problem as one CP-SAT model: free routes, free orders, free batches. For tiny instances.

It is written straight against OR-tools and shares nothing with the planner but numbers.
"""

from __future__ import annotations

from itertools import combinations

from ortools.sat.python import cp_model

Edge = tuple[int, int]


class Exact:
    """`links` maps (src, dst) to (alpha, beta) in ns; `ports` are sets of links of which one peer at a time is busy;
    on `batched` links chunks may travel together, any number of them."""

    def __init__(self, ranks: int, links: dict[Edge, tuple[int, int]], ports=(), batched=()) -> None:
        self.ranks, self.links, self.ports, self.batched = ranks, links, ports, set(batched)
        self.model = cp_model.CpModel()
        self.horizon = 0
        self.moves: dict[tuple[str, int, int, int], tuple] = {}
        self.together: dict[Edge, list] = {}

    def move(self, phase: str, chunk: int, src: int, dst: int):
        """(present, start, end) of an optional transfer."""
        m = self.model
        name = f"{phase}{chunk},{src},{dst}"
        entry = (m.new_bool_var("p" + name), self.time("s" + name), self.time("e" + name))
        self.moves[phase, chunk, src, dst] = entry
        return entry

    def time(self, name: str):
        return self.model.new_int_var(0, self.horizon, name)

    def disjoint(self, one, other, extra=None) -> None:
        before = self.model.new_bool_var("")
        only = [one[0], other[0]] if extra is None else [one[0], other[0], ~extra]
        self.model.add(other[1] >= one[2]).only_enforce_if([*only, before])
        self.model.add(one[1] >= other[2]).only_enforce_if([*only, ~before])

    def close(self, time) -> int:
        """Durations, links and ports; minimise `time` and prove it."""
        m = self.model
        by_link: dict[Edge, list] = {}
        for (_, _, src, dst), entry in self.moves.items():
            by_link.setdefault((src, dst), []).append(entry)
        for edge, entries in by_link.items():
            alpha, beta = self.links[edge]
            joint: dict[int, list] = {i: [] for i in range(len(entries))}
            for i, j in combinations(range(len(entries)), 2):
                if edge not in self.batched:
                    self.disjoint(entries[i], entries[j])
                    continue
                same = m.new_bool_var("")
                m.add_implication(same, entries[i][0])
                m.add_implication(same, entries[j][0])
                m.add(entries[i][1] == entries[j][1]).only_enforce_if(same)
                self.disjoint(entries[i], entries[j], same)
                joint[i].append(same)
                joint[j].append(same)
            for i, entry in enumerate(entries):
                m.add(entry[2] == entry[1] + alpha + beta + beta * sum(joint[i])).only_enforce_if(entry[0])
                m.add(entry[2] <= time).only_enforce_if(entry[0])
        for port in self.ports:
            for one, other in combinations(sorted(port), 2):
                for a in by_link.get(one, ()):
                    for b in by_link.get(other, ()):
                        self.disjoint(a, b)
        m.minimize(time)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 2
        solver.parameters.max_time_in_seconds = 60
        status = solver.solve(m)
        assert status == cp_model.OPTIMAL, solver.status_name(status)
        return round(solver.objective_value)

    def spread(self, phase: str, chunk: int, owners: dict[int, object], targets, ready) -> None:
        """An out-tree: `owners` maps a rank to the literal (or True) that it starts there, `ready` its time there."""
        m = self.model
        into: dict[int, list] = {r: [] for r in range(self.ranks)}
        out: dict[int, list] = {r: [] for r in range(self.ranks)}
        for src, dst in self.links:
            if owners.get(dst) is True:
                continue
            entry = self.move(phase, chunk, src, dst)
            into[dst].append(entry)
            out[src].append(entry)
        for rank in range(self.ranks):
            starts = owners.get(rank)
            if starts is not True:
                here = 0 if starts is None else starts
                count = sum(e[0] for e in into[rank]) + here
                m.add(count == 1) if rank in targets else m.add(count <= 1)
            for entry in out[rank]:
                if starts is not True:
                    for other in into[rank]:
                        m.add(entry[1] >= other[2]).only_enforce_if([entry[0], other[0]])
                    some = [e[0] for e in into[rank]] + ([] if starts is None else [starts])
                    m.add_bool_or(some).only_enforce_if(entry[0])
                if starts is True:
                    m.add(entry[1] >= ready)
                elif starts is not None:
                    m.add(entry[1] >= ready).only_enforce_if([entry[0], starts])

    def gather(self, phase: str, chunk: int, root: dict[int, object]):
        """An in-tree: everybody but the root sends a partial sum once. Returns when the sum is complete."""
        m = self.model
        into: dict[int, list] = {r: [] for r in range(self.ranks)}
        out: dict[int, list] = {r: [] for r in range(self.ranks)}
        done = self.time(f"done{phase}{chunk}")
        for src, dst in self.links:
            entry = self.move(phase, chunk, src, dst)
            into[dst].append(entry)
            out[src].append(entry)
            m.add(done >= entry[2]).only_enforce_if(entry[0])
        for rank in range(self.ranks):
            is_root = root.get(rank, False)
            m.add(sum(e[0] for e in out[rank]) + (int(is_root) if isinstance(is_root, bool) else is_root) == 1)
            for entry in out[rank]:
                for other in into[rank]:
                    m.add(entry[1] >= other[2]).only_enforce_if([entry[0], other[0]])
            for one, other in combinations(into[rank], 2):
                self.disjoint(one, other)
        return done


def exact_time_of_parts(
    before: list[set[int]], after: list[set[int]], ranks: int, links: dict[Edge, tuple[int, int]], *, ports=()
) -> int:
    """The least possible time in ns until every part, held by the ranks of `before`, is at those of `after`."""
    exact = Exact(ranks, links, ports)
    exact.horizon = max(a + b for a, b in links.values()) * ranks * (len(before) + 1) * 2
    total = exact.time("time")
    for chunk, (sources, targets) in enumerate(zip(before, after, strict=True)):
        if not targets <= sources:
            exact.spread("a", chunk, dict.fromkeys(sources, True), targets, 0)
    return exact.close(total)


def exact_time(
    collective: str, ranks: int, links: dict[Edge, tuple[int, int]], *, chunkup: int = 1, ports=(), batched=(), root=0
) -> int:
    """The least possible time in ns of a collective whose chunks cost what `links` says."""
    exact = Exact(ranks, links, ports, batched)
    count = {"alltoall": ranks * ranks * chunkup, "broadcast": chunkup}.get(collective, ranks * chunkup)
    longest = max(a + b for a, b in links.values())
    exact.horizon = longest * ranks * (count + 1) * 2
    total = exact.time("time")
    everyone = range(ranks)
    for chunk in range(count):
        if collective == "alltoall":
            owner, target = chunk // chunkup // ranks, chunk // chunkup % ranks
            if owner != target:
                exact.spread("a", chunk, {owner: True}, {target}, 0)
        elif collective in ("allgather", "broadcast"):
            owner = root if collective == "broadcast" else chunk // chunkup
            exact.spread("a", chunk, {owner: True}, everyone, 0)
        elif collective == "reducescatter":
            exact.gather("r", chunk, {chunk // chunkup: True})
        else:
            roots = {rank: exact.model.new_bool_var(f"root{chunk},{rank}") for rank in everyone}
            exact.model.add(sum(roots.values()) == 1)
            done = exact.gather("r", chunk, roots)
            exact.spread("a", chunk, roots, everyone, done)
    return exact.close(total)
