"""A server plan in words and figures: balance, levels, racks, costs, and what would make it faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.server.advice import Advice, options_of
from treadle.planner.passes.server.balance import PartLimit, bottleneck, exchanges_per_s, hidden_gbps, limits
from treadle.planner.passes.server.decided import best_of
from treadle.planner.passes.server.decisions import Level, LevelLoad, Policy, ServerDecisions
from treadle.planner.passes.server.mapping import unevenness
from treadle.planner.passes.server.partition import guarantee
from treadle.planner.passes.server.problem import ServerMachine
from treadle.planner.passes.server.what_if import WhatIf, WhatIfAnswer

POLICIES: dict[Policy, str] = {
    "key-by-interface": "keys by interface and core",
    "worker-by-interface": "workers by interface",
}


def summary(plan: Plan[ServerDecisions], advised: Sequence[Advice] = ()) -> dict[str, Any]:
    """The figures that people ask for first."""
    decisions, proof = plan.decisions, plan.certificate
    problem, slowest = decisions.problem, bottleneck(decisions)
    return {
        "workers": problem.workers,
        "servers": problem.servers,
        "mode": problem.mode,
        "keys": len(problem.keys),
        "bytes": problem.bytes,
        "chunk_bytes": decisions.chunk_bytes,
        "chunks": sum(map(len, decisions.places)),
        "policy": decisions.policy,
        "engine": decisions.engine,
        "aggregator": decisions.aggregator,
        "two_level": decisions.two_level,
        "time_ns": decisions.time_ns,
        "fill_ns": decisions.fill_ns,
        "iteration_ns": decisions.iteration_ns,
        "exchanges_per_s": exchanges_per_s(problem.workers, decisions.time_ns),
        "bottleneck": None if slowest is None else slowest.part,
        "limits": [
            {"kind": each.kind, "part": each.part.part, "time_ns": each.part.time_ns,
             "exchanges_per_s": each.exchanges_per_s, "headroom": each.headroom}
            for each in limits(decisions)
        ],
        "levels": [
            {"level": each.level, "bins": each.bins, "most_bytes": each.most_bytes, "total_bytes": each.total_bytes,
             "unevenness": float(unevenness(each)), "guarantee": float(guarantee(each.bins)), "optimal": each.optimal}
            for each in decisions.levels
        ],
        "advice": [each._asdict() for each in advised],
        "most_workers": decisions.most_workers,
        "server_bytes": decisions.server_bytes,
        "hidden_gbps": hidden_gbps(decisions),
        "racks": None if decisions.racks is None else
            {"flat_ns_per_MB": decisions.racks.flat, "two_level_ns_per_MB": decisions.racks.two_level},
        "costs": None if decisions.costs is None else
            {"baseline": decisions.costs.baseline, "served": decisions.costs.served},
        "lower_bound_ns": int(proof.lower_bound),
        "gap": proof.gap,
        "optimal": proof.optimal,
        "bound_argument": proof.argument,
        "limit_fired": plan.provenance.limit_fired,
        "interrupted": plan.provenance.interrupted,
    }  # fmt: skip


def lines(plan: Plan[ServerDecisions]) -> list[tuple[str, str]]:
    """What a person reads first, each line with its name."""
    decisions, proof = plan.decisions, plan.certificate
    problem, slowest = decisions.problem, bottleneck(decisions)
    chunks, cores = sum(map(len, decisions.places)), many(len(decisions.slots), "core")
    rate = rate_text(exchanges_per_s(problem.workers, decisions.time_ns))
    verdict = "proved optimal" if proof.optimal else f"gap {proof.gap:.2%}"
    found = [
        ("servers", f"{many(problem.servers, 'server')} ({problem.mode}) for {many(problem.workers, 'worker')}"),
        ("chunks", f"{many(chunks, 'chunk')} of {format_bytes(decisions.chunk_bytes)} on {cores}, "
                   f"{POLICIES[decisions.policy]}; {decisions.engine}, {decisions.aggregator}"),
        ("exchange", f"{format_time(decisions.time_ns)} predicted, {rate} of all workers together"),
    ]  # fmt: skip
    if slowest is not None:
        found.append(("bottleneck", f"{slowest.part}, {format_time(slowest.time_ns)}"))
    if problem.compute_ns:
        hidden = hidden_gbps(decisions)
        needs = "" if hidden is None else f"; to hide an exchange, a server needs {hidden:.4g} Gbit/s"
        computed = f"{format_time(decisions.iteration_ns)} with {format_time(problem.compute_ns)} of computation"
        found.append(("step", computed + needs))
    found += [
        ("workers", workers_carried(decisions)),
        ("memory", f"{format_bytes(decisions.server_bytes)} on the fullest server"),
        ("lower bound", f"{format_time(int(proof.lower_bound))}, {verdict}: {proof.argument}"),
    ]
    if decisions.racks is not None:
        flat, two = (f"{each:.6g}" for each in (decisions.racks.flat, decisions.racks.two_level))
        chosen = "two levels" if decisions.two_level else "one level"
        found.append(("racks", f"{chosen}; ns for a MiB: {flat} flat, {two} in two levels"))
    if decisions.costs is not None and problem.prices is not None:
        base, served = decisions.costs.baseline, decisions.costs.served
        more = f"{served / base - 1:+.1%}"
        found.append(("costs", f"{served:.4g} per 1000 {problem.prices.currency}, {base:.4g} without servers ({more})"))
    return found


def workers_carried(decisions: ServerDecisions) -> str:
    """How many workers the servers carry, in words."""
    most = decisions.most_workers
    if most is None:
        return "the servers carry any number of workers"
    if not most:
        each = "one worker" if decisions.problem.racks == 1 else "one worker in each rack"
        return f"the servers are the bottleneck with {each}"
    return f"the servers carry up to {many(most, 'worker')} before they are the bottleneck"


def number_text(count: float) -> str:
    """Four digits, or a whole number."""
    return f"{count:.4g}" if count < 1000 else f"{count:.0f}"


def rate_text(exchanges: float) -> str:
    return f"{number_text(exchanges)} exchanges/s"


def policy_rates(decisions: ServerDecisions, over: Callable[[], bool]) -> dict[Policy, float]:
    """Exchanges per second with each map policy, all else as in the plan; with its own alone once it is `over`."""
    workers = decisions.problem.workers
    found: dict[Policy, float] = {}
    for policy in POLICIES:
        if policy == decisions.policy:
            found[policy] = exchanges_per_s(workers, decisions.time_ns)
        elif not over():
            best = best_of(decisions.problem, replace(options_of(decisions), policy=policy))
            found[policy] = exchanges_per_s(workers, best.times.time_ns)
    return found


def limit_row(limit: PartLimit) -> tuple[str, ...]:
    """Kind, slowest part, what it carries, its time, exchanges per second, headroom."""
    load = "" if limit.part.load is None else format_bytes(limit.part.load)
    rate = "" if limit.part.rate is None else f"{limit.part.rate / 1e9:.4g} GB/s"
    time, most = format_time(limit.part.time_ns), number_text(limit.exchanges_per_s)
    return limit.kind, limit.part.part, load, rate, time, most, f"{limit.headroom:.2f}x"


def level_row(load: LevelLoad, machine: ServerMachine) -> tuple[str, ...]:
    """Level, bins, fullest bin, its share of the mean, the guarantee of equal bins, and what is proved."""
    fullest, proof = format_bytes(load.most_bytes), "proved optimal" if load.optimal else ""
    uneven = f"{float(unevenness(load)):.4f}"
    most = f"{float(guarantee(load.bins)):.3f}" if equal_bins(load.level, machine) else ""
    return load.level, str(load.bins), fullest, uneven, most, proof


def equal_bins(level: Level, machine: ServerMachine) -> bool:
    """Whether bins of this level have equal rates."""
    rates = [0] * len(machine.domains)
    for each in machine.interfaces:
        rates[each.domain] += each.rate
    if level == "domain":
        return len({rate for rate in rates if rate}) == 1
    return level != "interface" or len({each.rate for each in machine.interfaces}) == 1


def answer_row(asked: WhatIf, answer: WhatIfAnswer) -> tuple[str, ...]:
    """Value, exchanges per second, time, bottleneck, and the headroom of what would be the next one."""
    slowest, rate = bottleneck(answer.decisions), number_text(answer.exchanges_per_s)
    next_one = next((each for each in answer.limits if each.headroom > 1), None)
    after = "" if next_one is None else f"{next_one.kind} at {next_one.headroom:.2f}x"
    name = "" if slowest is None else slowest.part
    return value_of(asked, answer.value), rate, format_time(answer.decisions.time_ns), name, after


def value_of(asked: WhatIf, value: int) -> str:
    """One amount with its unit."""
    return format_bytes(value) if asked.name == "chunk" else f"{value} {asked.unit}".strip()
