"""What would make an exchange faster: changes of parts and of choices, each with its predicted time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from msgspec.structs import replace as changed

from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.server.changes import card_added, cards_moved, free_cores
from treadle.planner.passes.server.decided import ServerOptions, best_of
from treadle.planner.passes.server.decisions import Levels, ServerDecisions
from treadle.planner.passes.server.problem import ServerProblem
from treadle.planner.search.clock import Expired, never

WORTH = 1.01
"""A change is named if the exchange becomes this many times faster."""


class Advice(NamedTuple):
    """One change; `gain` is the time before over `time_ns`, the time after."""

    change: str
    time_ns: int
    gain: float


def advice(decisions: ServerDecisions, expired: Expired = never) -> tuple[Advice, ...]:
    """Changes that pay, the best first."""
    found = []
    for change, problem, options in _changes(decisions):
        if expired():
            break
        try:
            time = best_of(problem, options).times.time_ns
        except (InputError, InfeasibleError):  # more chunks than a problem may have, or than fit
            continue
        if time and decisions.time_ns >= WORTH * time:
            found.append(Advice(change, time, decisions.time_ns / time))
    return tuple(sorted(found, key=lambda each: each.time_ns))


def options_of(decisions: ServerDecisions) -> ServerOptions:
    """The choices of a plan as options."""
    return ServerOptions(
        policy=decisions.policy,
        engine=decisions.engine,
        aggregator=decisions.aggregator,
        chunk_bytes=decisions.chunk_bytes,
        levels=None if decisions.problem.racks == 1 else "two-level" if decisions.two_level else "flat",
    )


def _changes(decisions: ServerDecisions) -> Iterator[tuple[str, ServerProblem, ServerOptions]]:
    problem, options = decisions.problem, options_of(decisions)
    machine = problem.machine
    if problem.carrier != "shared":
        if (added := card_added(problem)) is not None:
            yield *added, options
        for moved in cards_moved(problem):
            yield *moved, options
    more = machine.cores_per_interface + 1
    cards = [sum(each.domain == domain for each in machine.interfaces) for domain in range(len(machine.domains))]
    if all(free >= count for free, count in zip(free_cores(machine), cards, strict=True)):
        wider = changed(problem, machine=changed(machine, cores_per_interface=more))
        yield f"{more} cores for each interface", wider, options
    for size in (2 * decisions.chunk_bytes, decisions.chunk_bytes // 2):
        if size % 64 == 0 and size:
            yield f"chunks of {format_bytes(size)}", problem, replace(options, chunk_bytes=size)
    if decisions.aggregator == "bypass":
        yield "cached aggregation", problem, replace(options, aggregator="cached")
    if decisions.policy == "worker-by-interface":
        yield "keys by interface", problem, replace(options, policy="key-by-interface")
    if decisions.engine == "wide":
        yield "tall aggregation", problem, replace(options, engine="tall")
    if problem.racks > 1:
        other: Levels = "flat" if decisions.two_level else "two-level"
        yield f"{other} sums of the racks", problem, replace(options, levels=other)
