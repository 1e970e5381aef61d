"""The times of a plan, counted again for the checker: the exchange, its first and last chunk, and a step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from treadle.planner.passes.server.check_map import Finding
from treadle.planner.passes.server.check_parts import MEBIBYTE, CountedParts, longest, time_of
from treadle.planner.passes.server.decisions import PartLoad, ServerDecisions


def time_findings(decisions: ServerDecisions, counted: CountedParts) -> Iterator[Finding]:
    """Times that are not those of the parts."""
    fill = _fill(decisions, counted)
    exchange = _two_levels(counted) if decisions.two_level else _slowest(counted)
    if decisions.engine == "wide":
        exchange = max(exchange, _last_key(decisions, counted))
    expected = {
        "fill_ns": fill,
        "time_ns": exchange + fill,
        "iteration_ns": _step(decisions, exchange, fill),
    }
    for name, right in expected.items():
        if getattr(decisions, name) != right:
            yield f"$.decisions.{name}", getattr(decisions, name), right


def _slowest(counted: CountedParts) -> int:
    return longest([part for part in counted.listed() if part.part != "computation"])


def _two_levels(counted: CountedParts) -> int:
    """The slowest part within a rack, and then what passes between racks."""
    local = [part for server in counted.servers for part in counted.of_server(server, across=False)]
    within = longest([*local, *counted.of_workers(), *counted.shared_cores()])
    problem = counted.problem
    assert problem.core_rate is not None
    rate = min(problem.core_rate, sum(interface.rate for interface in problem.machine.interfaces))
    return within + time_of(counted.most_across(), rate)


def _fill(decisions: ServerDecisions, counted: CountedParts) -> int:
    """The longest chunk on its path, without any other."""
    problem = decisions.problem
    chunk = max(min(decisions.chunk_bytes, key.bytes) for key in problem.keys)
    taken = problem.latency_ns * (4 if decisions.two_level else 2) + counted.chunk_ns(chunk)
    if problem.worker_rate is not None:
        taken += time_of(chunk, problem.worker_rate)
    if problem.carrier != "shared":
        taken += time_of(chunk, min(interface.rate for interface in problem.machine.interfaces))
    return taken


def _last_key(decisions: ServerDecisions, counted: CountedParts) -> int:
    """When a team of all cores has added up and optimized the last key. It takes a key once all of it is there, and the
    next one after that."""
    problem, work = decisions.problem, decisions.problem.machine.work
    net = longest([part for part in counted.listed() if _is_network(part)])
    cores = len(decisions.slots) // (problem.racks if decisions.two_level else 1)
    each = counted.local * work.add_ns_per_MB + work.optimize_ns_per_MB
    done, arrived, model = 0, 0, problem.bytes
    for key in problem.keys:
        arrived += key.bytes
        done = max(done, -(-net * arrived // model)) - (-key.bytes * each // (MEBIBYTE * cores))
    return done


def _is_network(part: PartLoad) -> bool:
    return part.part.startswith(("interface ", "slot ")) or part.part in (
        "bridge",
        "between domains",
        "worker link",
        "rack link",
    )


def _step(decisions: ServerDecisions, exchange: int, fill: int) -> int:
    """The computation, with the share of each key in the exchange once its gradient is there."""
    problem = decisions.problem
    if not problem.synchronous:
        return max(problem.compute_ns, exchange + fill)
    begun, free, model = 0, 0, problem.bytes
    for key, so_far in zip(problem.keys, accumulate(key.bytes for key in problem.keys), strict=True):
        ends = -(-exchange * so_far // model)
        free = max(free, key.ready_ns) + ends - begun
        begun = ends
    return max(free + fill, problem.compute_ns)
