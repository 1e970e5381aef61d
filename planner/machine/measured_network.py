"""What measured costs between hosts say about their network: the NIC of each host, and the uplinks of near groups.

Rates were measured while all hosts sent to others, so a host's fastest rate is what its NIC carries, and the mean rate
between its group and all others is its share of the group's uplink.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, groupby
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from treadle.planner.documents import store
from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.hardware import (
    VERSION,
    Device,
    Hardware,
    Link,
    Network,
    Nic,
    NodeGroup,
    OtherNodes,
    Uplink,
)
from treadle.planner.errors import InputError
from treadle.planner.machine.host_costs import HostCosts, host_costs
from treadle.planner.machine.host_groups import host_groups

Matrix = Sequence[Sequence[int]]
Groups = Sequence[Sequence[int]]

ALIKE = log(1.1)
"""Rates this near to each other, as logarithms, count as equal: measuring twice gives no less."""
INSIDE_ALPHA_US, INSIDE_BETA_US_PER_MB = 1.0, 41.943
"""What a link between two processes of one host is taken to cost, which is not measured: a copy through memory."""
WHOLE, PARTS = 2**200, 10**12
"""Rates are added in parts of WHOLE, since thousands of exact fractions have no denominator of a sane size; what an
uplink takes is the nearest fraction of a denominator up to PARTS, which rates of few values give exactly."""
NIC_GBPS = 8.388608e6
"""Gb/s of a NIC of 1 ns per MiB."""


def nics_ns(ns_per_MiB: Matrix) -> tuple[int, ...]:
    """ns per MiB of the NIC of each host; 0 for a host that is alone."""
    return tuple(min((ns for j, ns in enumerate(row) if j != i), default=0) for i, row in enumerate(ns_per_MiB))


def uplinks_ns(ns_per_MiB: Matrix, groups: Groups) -> tuple[Fraction, ...]:
    """ns per MiB of the uplink of each group, all its hosts together; none for one group only."""
    if len(groups) < 2:
        return ()
    nics = nics_ns(ns_per_MiB)
    found = []
    for group in groups:
        others = [host for other in groups if other is not group for host in other]
        carried = sum(WHOLE // ns_per_MiB[i][j] for i in group for j in others)
        carried = min(carried, len(others) * sum(WHOLE // nics[i] for i in group))
        found.append(Fraction(len(others) * WHOLE, carried).limit_denominator(PARTS))
    return tuple(found)


def hardware_in(path: Path | str) -> Hardware:
    """The hardware profile in a file, or that of the hosts whose cost matrix it is. Raises InputError for others."""
    found = store.load_any(path)
    if isinstance(found, CostMatrix):
        return profile_of(found, str(path))
    return found if isinstance(found, Hardware) else store.load(path, Hardware)


def profile_of(matrix: CostMatrix, where: str) -> Hardware:
    """The hosts of a cost matrix, which errors call `where`, as a profile; the slower of two directions counts."""
    costs = host_costs(matrix, where, "max")
    return hardware_of(matrix.name, costs, host_groups(costs.latency_ns, costs.ns_per_MiB).groups, where)


def hardware_of(name: str, costs: HostCosts, groups: Groups, where: str) -> Hardware:
    """The hosts as a hardware profile called `name`: a node for each, and the `groups` of near ones behind uplinks.
    Errors call the costs `where`.

    Rates of NICs that differ by less than a tenth count as equal, as do latencies inside groups and between them; an
    uplink that carries what its NICs do is left out. Raises InputError for costs without any rate.
    """
    if costs.ns_per_MiB is None:
        raise InputError("found no rates, expected those of some pairs of hosts", where=where, path="$.rates")
    hosts = range(len(costs.slots))
    if len(hosts) == 1:
        return Hardware(version=VERSION, name=name, nodes=1, **_node(costs.slots[0], None))
    measured = nics_ns(costs.ns_per_MiB)
    usual = median(measured)
    nics = [usual * exp(ALIKE * round(log(ns / usual) / ALIKE)) for ns in measured]
    runs = [(kind, len([*run])) for kind, run in groupby(zip(costs.slots, nics, strict=True))]
    (first, count), *others = [(_node(slots, ns), count) for (slots, ns), count in runs]
    inside = {pair for group in groups for pair in combinations(sorted(group), 2)}
    near, far = (_median_us(costs.latency_ns, pairs) for pairs in (inside, {*combinations(hosts, 2)} - inside))
    apart = near is not None and far is not None and abs(log(near / far)) > ALIKE
    return Hardware(
        version=VERSION,
        name=name,
        nodes=count,
        **first,
        other_nodes=tuple(OtherNodes(nodes=count, **node) for node, count in others),
        network=Network(
            kind="measured",
            alpha_us=(near if far is None else far) or 0.0,
            beta_us_per_MB=round(min(nics) / 1000, 3),
            groups=tuple(
                NodeGroup(name=f"group {number}", nodes=tuple(group), alpha_us=near)
                for number, group in enumerate(groups)
                if apart and len(group) > 1
            ),
            uplinks=tuple(_uplinks(costs.ns_per_MiB, groups, nics)),
        ),
        latency="pipelined",
        sources={"network": "measured between the hosts", "links": "assumed: a copy through memory"},
    )


def _node(slots: int, nic_ns: float | None) -> dict[str, Any]:
    """The fields of a host's node: its processes, links between them, and its NIC."""
    ranks = range(slots)
    return {
        "devices": (Device(model="a process on a CPU", kind="cpu", count=slots),),
        "links": tuple(
            Link(src=a, dst=b, kind="shared-memory", alpha_us=INSIDE_ALPHA_US, beta_us_per_MB=INSIDE_BETA_US_PER_MB)
            for a in ranks
            for b in ranks
            if a != b
        ),
        "nics": ()
        if nic_ns is None
        else (Nic(name="nic", devices=tuple(ranks), speed_gbps=round(NIC_GBPS / nic_ns, 6)),),
    }


def _median_us(latency_ns: Matrix, pairs: Iterable[tuple[int, int]]) -> float | None:
    """The median latency of the pairs, None for no pairs or where it is nothing."""
    found = [latency_ns[i][j] for i, j in pairs]
    return median(found) / 1000 or None if found else None


def _uplinks(ns_per_MiB: Matrix, groups: Groups, nics: Sequence[float]) -> Iterator[Uplink]:
    for number, (group, ns) in enumerate(zip(groups, uplinks_ns(ns_per_MiB, groups), strict=len(groups) > 1)):
        if float(ns) * sum(1 / nics[i] for i in group) > exp(ALIKE):
            yield Uplink(name=f"group {number}", nodes=tuple(group), beta_us_per_MB=round(float(ns) / 1000, 3))
