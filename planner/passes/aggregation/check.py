"""The independent checker of aggregation plans: it counts from the plan only, and shares no code with the planner.

Groups and masters are what the method demands, every host's contribution is in every host's total exactly once, and
bytes and times are those of the stated masters on the stated costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from treadle.planner.passes.aggregation.check_rivals import counted_rivals
from treadle.planner.passes.aggregation.check_times import counted
from treadle.planner.passes.aggregation.decisions import AggregationDecisions, ChunkMasters

Findings = Iterator[tuple[str, object, str]]
"""(path, found, expected)"""


def check(decisions: AggregationDecisions) -> list[str]:
    """Everything wrong with the plan, each finding naming its spot; an empty list accepts it."""
    for stage in (_problem, _groups, _masters, _sums, _figures):
        if found := [f"{path}: found {seen}, expected {wanted}" for path, seen, wanted in stage(decisions)]:
            return found
    return []


def _problem(decisions: AggregationDecisions) -> Findings:
    for path, found, expected in decisions.problem.problems():
        yield path.replace("$", "$.decisions.problem", 1), found, expected


def _groups(decisions: AggregationDecisions) -> Findings:
    """Both divisions have every host once, and the levels are those of the groups."""
    hosts = range(len(decisions.problem.hosts))
    for field in ("groups", "near"):
        groups: tuple[tuple[int, ...], ...] = getattr(decisions, field)
        times = Counter(host for group in groups for host in group)
        for number, group in enumerate(groups):
            if not group:
                yield f"$.decisions.{field}[{number}]", "no host", "at least one"
            if list(group) != sorted(group):
                yield f"$.decisions.{field}[{number}]", list(group), "hosts in ascending order"
        firsts = [group[0] for group in groups if group]
        if firsts != sorted(firsts):
            yield f"$.decisions.{field}", f"groups that begin with {firsts}", "them in the order of their first"
        if unknown := sorted(times.keys() - {*hosts}):
            yield f"$.decisions.{field}", f"host {unknown[0]}", f"hosts below {len(hosts)}"
        for host in hosts:
            if times[host] != 1:
                yield f"$.decisions.{field}", f"host {host} {times[host]} times", "every host once"
                break
    if decisions.levels == 1 and len(decisions.groups) != 1:
        yield "$.decisions.groups", f"{len(decisions.groups)} groups", "one group of all hosts for one level"
    if decisions.levels == 2 and len(decisions.groups) == 1:
        yield "$.decisions.groups", "one group", "several groups for two levels"
    if decisions.levels == 2 and decisions.groups != decisions.near:
        yield "$.decisions.groups", "other groups than near", "the same ones for two levels"
    embedding = decisions.embedding
    if embedding is not None and len(embedding.points) != len(hosts):
        yield "$.decisions.embedding.points", len(embedding.points), f"a point for each of {len(hosts)} hosts"
    if embedding is not None and len(embedding.heights) not in (0, len(hosts)):
        yield "$.decisions.embedding.heights", len(embedding.heights), f"none, or one for each of {len(hosts)} hosts"
    if embedding is not None and len({len(point) for point in embedding.points}) > 1:
        yield "$.decisions.embedding.points", "points of several dimensions", "points of one"


def _masters(decisions: AggregationDecisions) -> Findings:
    """One local master in each group, one of them the global one; the chunks fill the buffer."""
    problem = decisions.problem
    if not decisions.chunks:
        yield "$.decisions.chunks", "none", "at least one"
    for number, chunk in enumerate(decisions.chunks):
        path = f"$.decisions.chunks[{number}]"
        if len(chunk.local) != len(decisions.groups):
            yield f"{path}.local", f"{len(chunk.local)} masters", f"one for each of {len(decisions.groups)} groups"
            return
        for place, (group, local) in enumerate(zip(decisions.groups, chunk.local, strict=True)):
            if local not in group:
                yield f"{path}.local[{place}]", f"host {local}", f"a host of group {place}"
        if chunk.top not in chunk.local:
            yield f"{path}.top", f"host {chunk.top}", f"one of the local masters {list(chunk.local)}"
        if chunk.connection >= problem.connections:
            yield f"{path}.connection", chunk.connection, f"one below {problem.connections}"
        due, last = decisions.chunks[0].bytes, number == len(decisions.chunks) - 1
        if chunk.bytes != due and not (last and chunk.bytes < due):
            yield f"{path}.bytes", chunk.bytes, f"{due}, as of the first chunk; the last one may have fewer"
    if (total := sum(chunk.bytes for chunk in decisions.chunks)) != problem.size_bytes:
        yield "$.decisions.chunks", f"{total} bytes", f"{problem.size_bytes}, as many as are summed"


def _sums(decisions: AggregationDecisions) -> Findings:
    """Every host ends with the contribution of every host, exactly once."""
    hosts = range(len(decisions.problem.hosts))
    seen: dict[tuple[tuple[int, ...], int], int] = {}
    for number, chunk in enumerate(decisions.chunks):
        seen.setdefault((chunk.local, chunk.top), number)
    for number in seen.values():
        totals = _totals(decisions.groups, decisions.chunks[number])
        for host in hosts:
            if wrong := [other for other in hosts if totals[host][other] != 1]:
                times = totals[host][wrong[0]]
                what = f"what host {wrong[0]} gave {times} times in the total of host {host}"
                yield f"$.decisions.chunks[{number}]", what, "it once"
                return


def _totals(groups: Sequence[Sequence[int]], chunk: ChunkMasters) -> dict[int, Counter[int]]:
    """What each host has of a chunk in the end: how often each host's contribution is in it."""
    held = {host: Counter([host]) for group in groups for host in group}
    for group, local in zip(groups, chunk.local, strict=True):
        for member in group:
            if member != local:
                held[local] = held[local] + held[member]
    for local in chunk.local:
        if local != chunk.top:
            held[chunk.top] = held[chunk.top] + held[local]
    for group, local in zip(groups, chunk.local, strict=True):
        held[local] = held[chunk.top]
        for member in group:
            held[member] = held[local]
    return held


def _figures(decisions: AggregationDecisions) -> Findings:
    """Bytes and times of the plan and of its rivals."""
    right = counted(decisions)
    for name in ("total_bytes", "across_bytes", "time_ns"):
        if (mine := getattr(decisions, name)) != (due := getattr(right, name)):
            yield f"$.decisions.{name}", mine, f"{due} of these masters"
    rivals = counted_rivals(decisions)
    names, due_names = [rival.name for rival in decisions.rivals], [rival.name for rival in rivals]
    if names != due_names:
        yield "$.decisions.rivals", ", ".join(names) or "none", ", ".join(due_names)
        return
    for number, (stated, truth) in enumerate(zip(decisions.rivals, rivals, strict=True)):
        for name in ("time_ns", "across_bytes"):
            if (mine := getattr(stated, name)) != (due := getattr(truth, name)):
                yield f"$.decisions.rivals[{number}].{name}", mine, f"{due} of {stated.name}"
