"""Sums in two levels over groups of near hosts, compared with gloo, the ring in both orders, and other plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Row, Table, machine, progress
from benchmarks.ranks.hosts import Work, measured, probed_networks, treadle
from benchmarks.ranks.networks import HOSTS, SCALE
from treadle.lab.state import Lab
from treadle.planner.documents import store
from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import MEBIBYTE, format_bytes
from treadle.planner.passes import require_pass
from treadle.planner.passes.aggregation.decisions import Levels
from treadle.planner.passes.aggregation.extract import problem_of
from treadle.planner.passes.aggregation.planning import AggregationOptions, plan_aggregation
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.ranks.decisions import RanksDecisions

SIZE, CHUNK, REPEATS, SECONDS = 2**21, 2**15, 2, 10
WITHIN = 1 / 3
"""How far a measured time may be from the predicted one."""
HANDED_OUT = tuple(range(HOSTS))
LEVELS: dict[str, Levels | None] = {"plan": None, "one level": 1}


@dataclass(frozen=True)
class Exchange:
    """What is measured, with its predicted time and bytes between the groups, where they are known."""

    work: Work
    predicted_ns: int | None = None
    across_bytes: int | None = None


def tables() -> Iterator[Table]:
    """PLink's sums in two levels on 16 hosts of a lab, compared with gloo, rings and other plans; predictions."""
    for network, lab, costs, folder in probed_networks():
        yield on_network(network.name, lab, costs, folder)


def on_network(name: str, lab: Lab, costs: Path, folder: Path) -> Table:
    """The table of a network whose hosts have these `costs`."""
    exchanges = [*_aggregations(costs, folder), *_rings(costs, folder), _collective(costs, folder)]
    progress(f"{name}: {len(exchanges)} exchanges")
    times = measured(lab, [each.work for each in exchanges], folder)
    rows = [_row(each, times) for each in exchanges]
    notes = ("medians of the slowest rank; x: over that of the plan; off: measured over predicted", machine())
    return Table(f"{name}: allreduce of {format_bytes(SIZE)} at --scale {SCALE:g}", rows, notes)


def _row(exchange: Exchange, times: dict[str, float]) -> Row:
    name = exchange.work.name
    row: Row = {"exchange": name, "ms": times[name] * 1e3, "x": times[name] / times["plan"]}
    if exchange.across_bytes is not None:
        row["MiB between groups"] = exchange.across_bytes / MEBIBYTE
    if exchange.predicted_ns is not None:
        off = times[name] * 1e9 / exchange.predicted_ns
        row |= {"predicted ms": exchange.predicted_ns / 1e6, "off": off}
        row |= {"within a third": "yes" if abs(off - 1) <= WITHIN else "MISSED"}
    return row


def _aggregations(costs: Path, folder: Path) -> Iterator[Exchange]:
    matrix = store.load(costs, CostMatrix)
    problem = problem_of(matrix, size_bytes=SIZE, chunk_bytes=CHUNK, connections=1, repair=None, where=str(costs))
    for name, levels in LEVELS.items():
        plan = plan_aggregation(problem, options=AggregationOptions(levels=levels))
        decisions = plan.decisions
        made = folder / f"aggregation-{name.replace(' ', '-')}"
        store.save(plan, made.with_suffix(".json"))
        treadle("generate", str(made.with_suffix(".json")), "--target", "msccl-xml", "-o", str(made))
        yield Exchange(Work(name, HANDED_OUT, SIZE, REPEATS, str(made)), decisions.time_ns, decisions.across_bytes)


def _rings(costs: Path, folder: Path) -> Iterator[Exchange]:
    """gloo's own allreduce, a ring, as the hosts were handed out and in the planned order."""
    plan = folder / "ring.json"
    treadle("plan", "ranks", "--costs", str(costs), "--collective", "ring", "--size", str(SIZE), "-o", str(plan))
    decisions = require_pass(store.load(plan, Plan), RanksDecisions, str(plan)).decisions
    yield Exchange(Work("gloo, as handed out", HANDED_OUT, SIZE, REPEATS))
    yield Exchange(Work("gloo, planned order", decisions.order, SIZE, REPEATS), decisions.time_ns)


def _collective(costs: Path, folder: Path) -> Exchange:
    """The best of all methods of the collective pass on the probed hosts."""
    plan, made = folder / "collective.json", folder / "collective"
    request = ["--hardware", str(costs), "--size", str(SIZE), "--time-limit", str(SECONDS)]
    treadle("plan", "collective", "allreduce", *request, "-o", str(plan))
    treadle("generate", str(plan), "--target", "msccl-xml", "-o", str(made))
    decisions = require_pass(store.load(plan, Plan), CollectiveDecisions, str(plan)).decisions
    name = f"plan collective: {store.load(plan, Plan).provenance.method}"
    return Exchange(Work(name, HANDED_OUT, SIZE, REPEATS, str(made)), decisions.makespan_ns)
