"""Collectives of others under the order in which hosts were handed out, the planned and the worst one, in a lab."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Row, Table, machine, progress
from benchmarks.ranks.hosts import Work, halving_doubling, measured, probed_networks, treadle
from benchmarks.ranks.networks import HOSTS, SCALE, LabNetwork, profile
from benchmarks.ranks.orders import Order, median_order, spearman, spread
from treadle.lab.state import Lab
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.passes import require_pass
from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.samples import random_orders

SIZE, REPEATS, SECONDS = 2**19, 2, 20
HANDED_OUT: Order = tuple(range(HOSTS))
FIRST = ("handed out", "planned", "worst")
SHOWN = ("handed out", "random", "planned", "worst")
LOOPS = {"training": "DistributedDataParallel", "boosted tree": "boosted tree"}


@dataclass(frozen=True)
class Library:
    """`algorithm` is what its order is planned for, and `template` makes the program that stands for NCCL's; `target`
    is that of the rank correlation."""

    name: str
    algorithm: str
    template: str | None = None
    target: float = 0.6


GLOO = Library("ring of gloo (PyTorch)", "ring", target=0.8)
HALVING = Library("halving-doubling of gloo", "halving-doubling")
LIBRARIES = (
    GLOO,
    HALVING,
    Library("ring as NCCL's", "nccl-ring", "ring", target=0.8),
    Library("double tree as NCCL's", "nccl-tree", "double-tree"),
)


def tables() -> Iterator[Table]:
    """Rings, halving-doubling, trees and training of others on 16 hosts of a lab: planned orders; rank correlation."""
    for network, lab, costs, folder in probed_networks():
        yield from on_network(network, lab, costs, folder)


def on_network(network: LabNetwork, lab: Lab, costs: Path, folder: Path) -> Iterator[Table]:
    """All tables of a network whose hosts have these `costs`."""
    plans = {library: planned(library, costs, folder) for library in LIBRARIES}
    rows = [row for library, plan in plans.items() if (row := _row(library, plan, lab, folder))]
    yield Table(
        f"{network.name}: allreduce of {format_bytes(SIZE)} at --scale {SCALE:g}, ms",
        rows,
        (
            "medians of the slowest rank; x: over planned; random: the order of median cost of 101 random ones; off: "
            "measured over predicted",
            "correlation: Spearman's, of measured times with the costs that are minimised and with predicted times, of "
            "ten orders whose costs are spread evenly from the planned one's to the worst one's; target: of costs",
            machine(),
        ),
    )
    yield _loops(network, plans[GLOO], lab, folder)


def planned(library: Library, costs: Path, folder: Path) -> RanksDecisions:
    """The planned order for a library, by `treadle plan ranks`."""
    plan = folder / f"{library.algorithm}.json"
    words = ["--costs", str(costs), "--collective", library.algorithm, "--size", str(SIZE)]
    treadle("plan", "ranks", *words, "--time-limit", str(SECONDS), "-o", str(plan))
    return require_pass(store.load(plan, Plan), RanksDecisions, str(plan)).decisions


def _row(library: Library, plan: RanksDecisions, lab: Lab, folder: Path) -> Row | None:
    progress(f"{lab.layout.profile}: {library.name}")
    costs = OrderCosts(plan.problem)

    def cost(order: Order) -> int:
        return costs.of(order).cost_ns

    evenly = spread(plan.order, plan.worst, cost)
    program = _program(library.template, folder) if library.template else None
    orders = dict(zip(FIRST, (HANDED_OUT, plan.order, plan.worst), strict=True))
    orders["random"] = median_order(random_orders(HOSTS), cost)
    orders |= {f"spread {place}": order for place, order in enumerate(evenly)}
    works = [Work(name, order, SIZE, REPEATS, program) for name, order in orders.items()]
    times = halving_doubling(lab, works, folder) if library is HALVING else measured(lab, works, folder)
    if times is None:
        progress("not measured without gloo's headers: apt-get install libgloo-dev")
        return None
    predicted = costs.time_ns(plan.order) / 1e9
    row: Row = {"collective": library.name}
    row |= {name: times[name] * 1e3 for name in SHOWN}
    row |= {f"x {name}": times[name] / times["planned"] for name in SHOWN if name != "planned"}
    row |= {"predicted": predicted * 1e3, "off": times["planned"] / predicted}
    spread_times = [times[f"spread {place}"] for place in range(len(evenly))]
    row["correlation, cost"] = spearman([cost(order) for order in evenly], spread_times)
    row["correlation, prediction"] = spearman([costs.time_ns(order) for order in evenly], spread_times)
    reached = row["correlation, cost"]
    row["target"] = None if reached is None else f"{library.target}: {'met' if reached >= library.target else 'MISSED'}"
    progress(f"{lab.layout.profile}: {row}")
    return row


def _program(template: str, folder: Path) -> str:
    """An allreduce by one of our templates on hosts that are all alike, so that its ranks are places."""
    made, plan, hardware = folder / template, folder / f"{template}-plan.json", folder / "alike.yaml"
    if not made.exists():
        hardware.write_text(profile("alike", HOSTS))
        request = ["--hardware", str(hardware), "--size", str(SIZE), "--sketch", "mesh", "--instances", "1"]
        treadle("plan", "collective", "allreduce", *request, "--method", template, "-o", str(plan))
        treadle("generate", str(plan), "--target", "msccl-xml", "-o", str(made))
    return str(made)


def _loops(network: LabNetwork, plan: RanksDecisions, lab: Lab, folder: Path) -> Table:
    progress(f"{network.name}: training")
    orders = dict(zip(FIRST, (HANDED_OUT, plan.order, plan.worst), strict=True))
    works = [
        Work(f"{loop}, {name}", order, SIZE, REPEATS, loop=loop) for loop in LOOPS for name, order in orders.items()
    ]
    times = measured(lab, works, folder)
    rows: list[Row] = []
    for loop, title in LOOPS.items():
        row: Row = {"loop": title} | {name: times[f"{loop}, {name}"] * 1e3 for name in FIRST}
        row |= {f"x {name}": row[name] / row["planned"] for name in ("handed out", "worst")}
        rows.append(row)
    return Table(f"{network.name}: an iteration over PyTorch's gloo, ms", rows, (machine(),))
