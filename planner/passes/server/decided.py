"""Decisions of a problem: chunk size, policy and levels by predicted time, then the map as even as it can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from treadle.planner.errors import InfeasibleError, InputError, LimitError
from treadle.planner.passes.server.chunking import STANDARD_BYTES, TRIED_BYTES, KeyChunks, chunks_of, count_of
from treadle.planner.passes.server.decisions import Levels, PartLoad, Policy, ServerDecisions
from treadle.planner.passes.server.layout import ServerLayout, layout_of
from treadle.planner.passes.server.mapping import ChunkMap, mapped
from treadle.planner.passes.server.memory_need import server_bytes
from treadle.planner.passes.server.most_workers import most_workers
from treadle.planner.passes.server.network_costs import network_costs
from treadle.planner.passes.server.prices import parts_of_plan
from treadle.planner.passes.server.problem import MOST_CHUNKS, Aggregator, Engine, ServerProblem
from treadle.planner.passes.server.racks import rack_sides
from treadle.planner.passes.server.times import ExchangeTimes, times_of
from treadle.planner.search.clock import Clock


@dataclass(frozen=True)
class ServerOptions:
    """What is None is decided by predicted time. levels: of several racks."""

    policy: Policy | None = None
    engine: Engine = "tall"
    aggregator: Aggregator = "cached"
    chunk_bytes: int | None = None
    levels: Levels | None = None


class Priced(NamedTuple):
    """One candidate with its times."""

    chunks: KeyChunks
    chunk_bytes: int
    chunk_map: ChunkMap
    layout: ServerLayout
    parts: tuple[PartLoad, ...]
    times: ExchangeTimes
    server_bytes: int

    @property
    def fits(self) -> bool:
        """Whether a server has the memory."""
        there = self.layout.problem.machine.memory_bytes
        return there is None or self.server_bytes <= there


class ServerChoice(NamedTuple):
    chunk_bytes: int
    policy: Policy
    two_level: bool


def choices(problem: ServerProblem, options: ServerOptions) -> list[ServerChoice]:
    """Every combination that the options leave open, those first that win ties. Raises InputError for levels of one
    rack."""
    if options.levels is not None and problem.racks == 1:
        raise InputError("found levels for one rack, expected several racks", where="--levels")
    sizes = (options.chunk_bytes,) if options.chunk_bytes else chunk_sizes(problem)
    if not sizes:
        raise InputError(f"found a model of more than {MOST_CHUNKS} chunks of {TRIED_BYTES[-1]} bytes; give a larger "
                         "--chunk", where="--chunk")  # fmt: skip
    policies: tuple[Policy, ...] = ("key-by-interface",)
    if options.policy is not None:
        policies = (options.policy,)
    elif problem.carrier != "shared":
        policies = ("key-by-interface", "worker-by-interface")
    levels = (False,) if problem.racks == 1 else (False, True)
    if options.levels is not None:
        levels = (options.levels == "two-level",)
    return [ServerChoice(*each) for each in product(sizes, policies, levels)]


def chunk_sizes(problem: ServerProblem) -> tuple[int, ...]:
    """Powers of two that are worth a price, those close to the paper's first; without a price for messages only that
    one, or the smallest that is allowed."""
    fit = [size for size in TRIED_BYTES if count_of(problem, size) <= MOST_CHUNKS]
    if problem.machine.work.message_ns:
        return tuple(sorted(fit, key=lambda size: max(size, STANDARD_BYTES) / min(size, STANDARD_BYTES)))
    return tuple(size for size in fit if size >= STANDARD_BYTES)[:1]


def priced(problem: ServerProblem, options: ServerOptions, choice: ServerChoice, clock: Clock | None = None) -> Priced:
    """One candidate: its map and what its parts carry."""
    chunks = chunks_of(problem, choice.chunk_bytes)
    chunk_map = mapped(problem, chunks, choice.policy, clock)
    layout = layout_of(problem, chunks, chunk_map.places, choice.policy, options.aggregator, choice.two_level)
    parts = parts_of_plan(layout)
    times = times_of(layout, parts, options.engine)
    needed = server_bytes(problem, chunks, chunk_map.places, choice.two_level)
    return Priced(chunks, choice.chunk_bytes, chunk_map, layout, parts, times, needed)


def best_of(problem: ServerProblem, options: ServerOptions, clock: Clock | None = None) -> Priced:
    """The candidate of the least predicted time that fits into memory; with a `clock` its map is searched exactly where
    it is small, and the first candidate is priced at least.

    Raises InfeasibleError where none fits, LimitError where none did until the time had passed.
    """
    best: tuple[Priced, ServerChoice] | None = None
    least, cut = None, False
    for choice in choices(problem, options):
        cut = least is not None and clock is not None and clock.over()
        if cut:
            break
        found = priced(problem, options, choice)
        least = min(found.server_bytes, found.server_bytes if least is None else least)
        if found.fits and (best is None or found.times.time_ns < best[0].times.time_ns):
            best = found, choice
    if best is None:
        text = f"a server takes {least} bytes of memory, {problem.machine.name} has {problem.machine.memory_bytes}"
        raise LimitError(f"{text}; other chunks were left when the time had passed") if cut else InfeasibleError(text)
    if clock is None or clock.over():
        return best[0]
    exact = priced(problem, options, best[1], clock)
    return exact if exact.fits and exact.times.time_ns <= best[0].times.time_ns else best[0]


def decisions_of(found: Priced, options: ServerOptions) -> ServerDecisions:
    """The decisions of a candidate."""
    layout, problem = found.layout, found.layout.problem
    return ServerDecisions(
        problem=problem,
        chunk_bytes=found.chunk_bytes,
        policy=layout.policy,
        engine=options.engine,
        aggregator=options.aggregator,
        two_level=layout.two_level,
        slots=found.chunk_map.slots,
        places=tuple(_by_key(found)),
        worker_interfaces=layout.worker_interfaces,
        levels=found.chunk_map.levels,
        parts=found.parts,
        racks=rack_sides(problem),
        costs=None if problem.prices is None else network_costs(problem.prices),
        fill_ns=found.times.fill_ns,
        time_ns=found.times.time_ns,
        iteration_ns=found.times.iteration_ns,
        most_workers=most_workers(layout),
        server_bytes=found.server_bytes,
    )


def _by_key(found: Priced) -> Iterator[tuple[int, ...]]:
    places, start = found.chunk_map.places.tolist(), 0
    for count in found.chunks.counts:
        yield tuple(places[start : start + count])
        start += count
