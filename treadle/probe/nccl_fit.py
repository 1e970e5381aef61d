"""Alpha and beta of a profile's links from times of whole collectives.

The ring that treadle plans on the profile takes a alpha + b S beta for S bytes. Both factors are NCCL's: 2 (n - 1)
steps and 2 (n - 1)/n S bytes on the wire for an allreduce, over the NICs of a node, or over the links that the planned
rings of one node use. The fit minimises

    sum over sizes of rho((a alpha + b S beta) / T - 1)        with alpha, beta >= 0

for measured times T of all runs; rho is quadratic for small errors and linear for large ones, so that few outliers
count little.
nccl-tests times everything a collective does, so the profile's `transport` costs nothing beyond its links.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from scipy.optimize import least_squares, nnls

from treadle.planner.documents.hardware import Hardware, ProtocolCost, Transport
from treadle.planner.documents.scalars import MEBIBYTE, many
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import nic_sets
from treadle.planner.passes.collective.limits import Effort, Limits
from treadle.planner.passes.collective.sketching import propose
from treadle.planner.passes.collective.synthesis import Request
from treadle.planner.passes.collective.templates.ring import synthesize
from treadle.probe.nccl_tests import Collective, CollectiveTimes, NcclTimes

OUTLIER = 0.05
"""Relative error from which on an error counts linearly."""
FREE = ProtocolCost(alpha_us=0.0, threadblock_gbps=1e6)
NO_COSTS = Transport(launch_us=0.0, step_us=0.0, local_gbps=1e6, link_efficiency=1.0, Simple=FREE, LL=FREE, LL128=FREE)
UNIT_US = 1000.0
LEAST_SHARE = 0.1
"""The least share of the time at the largest size that bytes on the wire take, for beta to be known."""


@dataclass(frozen=True)
class FittedSize:
    """A size of a run: bytes, measured and fitted us."""

    collective: Collective
    size: int
    measured: float
    fitted: float

    @property
    def residual(self) -> float:
        return self.fitted / self.measured - 1


@dataclass(frozen=True)
class CollectiveFit:
    """Costs of `part`, a kind of links or of a network; `others` are tests in the file that were left out."""

    hardware: Hardware
    part: str
    alpha_us: float
    beta_us_per_MB: float
    rows: tuple[FittedSize, ...]
    others: tuple[str, ...] = ()

    @property
    def largest(self) -> FittedSize:
        """The row of the largest residual."""
        return max(self.rows, key=lambda row: abs(row.residual))


def fit_profile(measured: NcclTimes, costs: Hardware, name: str, source: str, origin: str = "") -> CollectiveFit:
    """The profile `costs` as `name`, with alpha and beta of what its ring is slowest on: the network where there are
    several nodes, else its one kind of links. Of runs in several settings the fastest counts at each size.

    A profile of one node with a network stands for as many nodes as `measured` has hosts. `origin` says in the sources
    where the topology is from, if not from a profile. Raises InputError when ranks or hosts are not the profile's, its
    nodes are unequal or it has several kinds of links, and when the times do not grow with the size.
    """
    runs = measured.fastest
    base = machine_of_runs(runs, costs, source)
    part = base.network.kind if base.nodes > 1 and base.network is not None else _kind(base)
    rows, times = _equations(base, runs)
    alpha, beta = robust(rows / times[:, None])
    if np.max(rows[:, 1] * beta / times) < LEAST_SHARE:
        raise InputError("found times that do not grow with the size, expected larger sizes too (-e 1G)", where=source)
    sources = _sources(base, runs, origin or f"profile {costs.name}")
    hardware = replace(_with(base, alpha, beta), name=name, transport=NO_COSTS, sources=sources)
    sizes = [(run.collective, size, time) for run in runs for size, time in run.times.items()]
    fitted = map(float, rows @ np.array([alpha, beta]))
    table = tuple(FittedSize(*size, fit) for size, fit in zip(sizes, fitted, strict=True))
    return CollectiveFit(hardware, part, alpha, beta, table, measured.others)


def _equations(base: Hardware, runs: tuple[CollectiveTimes, ...]) -> tuple[np.ndarray, np.ndarray]:
    """What alpha and beta are multiplied by, and the measured times: a row for each size of each run."""
    blocks = []
    for run in runs:
        hops, wire = _coefficients(base, run.collective)
        blocks.append(np.array([(hops, wire * size) for size in run.times]))
    return np.vstack(blocks), np.array([time for run in runs for time in run.times.values()])


def machine_of_runs(runs: tuple[CollectiveTimes, ...], costs: Hardware, source: str) -> Hardware:
    """`costs` with as many nodes as the runs have. Raises InputError as `fit_profile`."""
    base = costs
    if costs.network is None and max(run.hosts for run in runs) > 1:
        raise InputError(
            f"found times of {runs[0].hosts} hosts and no network in profile {costs.name}, expected --costs-from a "
            "profile with one",
            where=source,
        )
    if costs.nodes == 1 and costs.network is not None and not costs.other_nodes:
        base = replace(costs, nodes=runs[0].hosts)
    if not base.is_even:
        raise InputError("found unequal nodes, expected equal ones", where=costs.name)
    if base.network is not None and base.network.uplinks:
        raise InputError("found uplinks, expected none to fit links", where=costs.name, path="$.network.uplinks")
    for run in runs:
        if (run.ranks, run.hosts) != (base.ranks, base.nodes):
            raise InputError(
                f"found {many(run.ranks, 'rank')} on {many(run.hosts, 'host')}, expected the {base.ranks} on "
                f"{many(base.nodes, 'node')} of profile {costs.name}",
                where=source,
            )
    if base.ranks < 2:
        raise InputError("found 1 rank, expected at least 2", where=source)
    return base


def _kind(hardware: Hardware) -> str:
    kinds = sorted({*(link.kind for link in hardware.links), *(switch.kind for switch in hardware.switches)})
    if len(kinds) != 1:
        found = f"links of kinds {', '.join(kinds)}" if kinds else "no links"
        raise InputError(f"found {found}, expected one kind, which the times are fitted to", where=hardware.name)
    return kinds[0]


def _coefficients(hardware: Hardware, collective: Collective) -> tuple[float, float]:
    """What alpha (us) and beta (us per MiB) of the fitted part are multiplied by; the latter for one byte."""
    ranks = hardware.ranks
    if hardware.nodes > 1:
        steps = (2 if collective == "allreduce" else 1) * (ranks - 1)
        sets = nic_sets(hardware)
        lanes = (len(sets) or hardware.devices_per_node) * min((rate for _, rate in sets), default=1.0)
        return steps, steps / ranks / lanes / MEBIBYTE
    small, large = ranks * 1024, ranks * 16 * MEBIBYTE
    hops = _ring_us(_with(hardware, UNIT_US, 1e-6), collective, small) / UNIT_US
    wire = _ring_us(_with(hardware, 0.0, 1.0), collective, large)
    return hops, wire / (large * (ranks if collective == "allgather" else 1))


def _ring_us(hardware: Hardware, collective: Collective, input_bytes: int) -> float:
    request = Request(collective, hardware, propose(hardware), input_bytes)
    return synthesize(request, Effort(Limits())).makespan_ns / 1e3


def _with(hardware: Hardware, alpha: float, beta: float) -> Hardware:
    if hardware.nodes > 1 and hardware.network is not None:
        return replace(hardware, network=replace(hardware.network, alpha_us=alpha, beta_us_per_MB=beta))
    return replace(
        hardware,
        links=tuple(replace(link, alpha_us=alpha, beta_us_per_MB=beta) for link in hardware.links),
        switches=tuple(replace(switch, alpha_us=alpha, beta_us_per_MB=beta) for switch in hardware.switches),
    )


def robust(rows: np.ndarray) -> tuple[float, float]:
    """Two factors, none below 0, with rows @ factors near 1; few outliers count little."""
    start, _ = nnls(rows, np.ones(len(rows)))
    scale = np.where(start > 0, start, 1 / rows.max(axis=0))
    scaled = rows * scale

    def errors(x: np.ndarray) -> np.ndarray:
        return np.asarray(scaled @ x - 1)

    first = np.maximum(start / scale, 1e-9)
    found = least_squares(errors, first, bounds=(0, np.inf), loss="soft_l1", f_scale=OUTLIER)
    alpha, beta = found.x * scale
    return float(alpha), float(beta)


def _sources(hardware: Hardware, runs: tuple[CollectiveTimes, ...], origin: str) -> dict[str, str]:
    collectives = ", ".join(run.collective for run in runs)
    said = f"fitted to {collectives} times of nccl-tests, {many(sum(len(run.times) for run in runs), 'size')}"
    parts = ["network"] if hardware.nodes > 1 else [each for each in ("links", "switches") if getattr(hardware, each)]
    kept = {key: text for key, text in hardware.sources.items() if key.split(".")[0] not in (*parts, "transport")}
    free = "none beyond links: nccl-tests times whole collectives, so alpha and beta hold it"
    return {
        **kept,
        **dict.fromkeys(parts, f"{said}; the topology is that of {origin}"),
        "transport": free,
    }
