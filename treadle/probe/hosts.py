"""Measure the network between hosts: one process per rank, started as torchrun or `treadle lab run` does.

Rank 0 says which streams run, one experiment after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from treadle.lab.environment import LAB
from treadle.planner.errors import InputError
from treadle.probe.crew import Conductor, Crew
from treadle.probe.hosts_profile import Inside, MeasuredHost, profile
from treadle.probe.store_crew import store_crew
from treadle.probe.streams import Pair
from treadle.probe.survey import Survey, survey
from treadle.runtime.joined import joined_rank
from treadle.runtime.sockets import added_us

if TYPE_CHECKING:
    from treadle.planner.documents.hardware import Hardware

LATENCY_PAIRS = 4


def measure_hosts(*, command: str, on_step: Callable[[int], None] = lambda done: None) -> Hardware | None:
    """Measure the network between the hosts of all ranks; the profile on rank 0, None on the others.

    `on_step(done)` is called on rank 0 after each experiment. Raises InputError for an environment that cannot be,
    MissingBackendError without torch, CheckFailed where another rank does not answer.
    """
    here = joined_rank()
    if here is None:
        raise InputError("found nothing, expected a number", where="RANK")
    added = added_us()
    with store_crew(*here) as crew:
        if crew is None:
            return None
        hosts, found, alpha, inside = _lead(crew, on_step)
    return profile(hosts, found, alpha + added, inside, command, added, one_machine=LAB in os.environ)


def _lead(crew: Crew, on_step: Callable[[int], None]) -> tuple[list[MeasuredHost], Survey, float, Inside | None]:
    """The hosts, the network between them, its latency in microseconds, and what is between processes of a host."""
    at = [member.at[0] for member in crew.hosts]
    runs = [list(run) for _, run in groupby(range(len(at)), lambda rank: at[rank])]
    with Conductor(crew, on_step) as conductor:
        if len(set(at)) < len(runs):
            expected = "found ranks of a host that do not follow each other, expected host after host"
            raise InputError(expected, where="RANK")
        if len(runs) < 2:
            raise InputError(f"found {len(at)} ranks on one host, expected several hosts", where="WORLD_SIZE")
        leaders = [run[0] for run in runs]

        def streams(pairs: Sequence[Pair]) -> list[float]:
            return conductor.rates([(leaders[src], leaders[dst]) for src, dst in pairs])

        others = leaders[1:][:LATENCY_PAIRS]
        alpha = median(conductor.latency_us((0, rank)) for rank in others)
        within = [(run[0], run[1]) for run in runs if len(run) > 1]
        inside = (
            Inside(
                median(conductor.latency_us(pair) for pair in within),
                median(conductor.rates([pair])[0] for pair in within),
            )
            if within
            else None
        )
        found = survey(len(leaders), streams)
    facts = ("interface", "cpu_model", "cpu_cores", "memory_bytes")
    measured = [
        MeasuredHost(ranks=len(run), **{name: crew.hosts[run[0]].facts[name] for name in facts}) for run in runs
    ]
    return measured, found, alpha, inside
