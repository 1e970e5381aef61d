"""The figures of a given chunk map, for a problem whose rates, costs or times are others than when it was made."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from treadle.planner.errors import InputError
from treadle.planner.passes.server.chunking import chunks_of
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.layout import layout_of
from treadle.planner.passes.server.mapping import levels_of
from treadle.planner.passes.server.memory_need import server_bytes
from treadle.planner.passes.server.most_workers import most_workers
from treadle.planner.passes.server.network_costs import network_costs
from treadle.planner.passes.server.prices import parts_of_plan
from treadle.planner.passes.server.problem import ServerMachine, ServerProblem
from treadle.planner.passes.server.racks import rack_sides
from treadle.planner.passes.server.times import times_of


def with_problem(decisions: ServerDecisions, problem: ServerProblem) -> ServerDecisions:
    """The decisions with their chunks where they are, and all figures as `problem` gives them.

    Raises InputError where keys, servers, workers or the number and places of cards are others.
    """
    if _shape(problem) != _shape(decisions.problem):
        raise InputError("keys, workers, servers or cards are others than in the plan; plan again")
    chunks = chunks_of(problem, decisions.chunk_bytes)
    places = np.array([slot for key in decisions.places for slot in key], dtype=np.int64)
    layout = layout_of(problem, chunks, places, decisions.policy, decisions.aggregator, decisions.two_level)
    parts = parts_of_plan(layout)
    return replace(
        decisions,
        problem=problem,
        worker_interfaces=layout.worker_interfaces,
        levels=levels_of(problem, chunks, decisions.policy, places),
        parts=parts,
        racks=rack_sides(problem),
        costs=None if problem.prices is None else network_costs(problem.prices),
        most_workers=most_workers(layout),
        server_bytes=server_bytes(problem, chunks, places, decisions.two_level),
        **times_of(layout, parts, decisions.engine)._asdict(),
    )


def _shape(problem: ServerProblem) -> tuple[object, ...]:
    """All of a problem that a map depends on beyond rates."""
    machine: ServerMachine = problem.machine
    keys = [(key.name, key.elements, key.dtype) for key in problem.keys]
    cards = [interface.domain for interface in machine.interfaces]
    return keys, problem.workers, problem.mode, problem.servers, problem.racks, cards, machine.cores_per_interface
