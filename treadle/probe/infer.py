"""Infer a node's hidden PCIe tree from the outside (TACCL, section 5.3).

Virtual machines hide which GPUs share a PCIe switch, where the NIC hangs, and how GPUs are numbered. Three questions to
a probe bring it back: (1) the NIC's CPU answers an RDMA loopback fastest; (2) two GPUs share a switch when copying at
the same time slows both; (3) GPUs share the NIC's switch when an RDMA loopback slows their copies. Then (4) the GPU
numbering is chosen among the isomorphisms of the NVLink graph so that the NIC is next to GPU 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any, Protocol

import networkx as nx

from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError

LOW = 0.75
REPEATS = 5


class Probe(Protocol):
    """Measurements on a node. Every call is one, and may be noisy."""

    @property
    def cpus(self) -> Sequence[int]: ...

    @property
    def gpus(self) -> Sequence[int]: ...

    def loopback_latency_us(self, cpu: int) -> float:
        """Latency of a small RDMA message that `cpu` sends to itself through the NIC."""
        ...

    def copy_bandwidths(self, gpus: Sequence[int], cpu: int, loopback: bool) -> Sequence[float]:
        """Bandwidth of a copy between each GPU and `cpu`, all at once, optionally while `cpu` runs an RDMA loopback."""
        ...


@dataclass(frozen=True)
class PcieTree:
    """`pairs` of GPUs share a PCIe switch; `nic_pair` is the one that shares it with the NIC."""

    nic_cpu: int
    pairs: tuple[tuple[int, int], ...]
    nic_pair: tuple[int, int]


def infer_pcie(probe: Probe, low: float = LOW, repeats: int = REPEATS) -> PcieTree:
    """Questions 1 to 3; a bandwidth is low below `low` times that of the GPU on its own, by majority of `repeats`.

    Raises InputError with the raw table when the answers are no perfect pairing, or not exactly one pair has the NIC.
    """
    latency = {cpu: median(probe.loopback_latency_us(cpu) for _ in range(repeats)) for cpu in probe.cpus}
    nic_cpu = min(latency, key=lambda cpu: (latency[cpu], cpu))
    alone = {gpu: median(probe.copy_bandwidths([gpu], nic_cpu, False)[0] for _ in range(repeats)) for gpu in probe.gpus}

    def slowed(gpus: tuple[int, ...], loopback: bool) -> bool:
        return _majority(
            lambda: all(
                rate < low * alone[gpu]
                for gpu, rate in zip(gpus, probe.copy_bandwidths(gpus, nic_cpu, loopback), strict=True)
            ),
            repeats,
        )

    pairs = tuple(pair for pair in combinations(sorted(probe.gpus), 2) if slowed(pair, False))
    if sorted(gpu for pair in pairs for gpu in pair) != sorted(probe.gpus):
        raise _unclear("GPU pairs that slow each other down", pairs, "each GPU in exactly one pair", alone)
    near_nic = tuple(gpu for gpu in sorted(probe.gpus) if slowed((gpu,), True))
    if near_nic not in pairs:
        raise _unclear("GPUs that an RDMA loopback slows down", near_nic, "exactly one of the pairs", alone)
    return PcieTree(nic_cpu, pairs, (near_nic[0], near_nic[1]))


def visible_devices(seen: Hardware, canonical: Hardware, tree: PcieTree) -> tuple[int, ...]:
    """Question 4: `order[i]` is the machine's id of the GPU that becomes GPU i; export it as CUDA_VISIBLE_DEVICES.

    `seen` has the machine's NVLinks in its own numbering, `canonical` those of the shipped profile with its PCIe pairs.
    Of the orders that keep every link with its multiplicity and every PCIe pair, the one is taken that puts the NIC
    next to GPU 0 (the smallest of several). Raises InputError when the graphs differ or no order does that.
    """
    matcher = nx.algorithms.isomorphism.DiGraphMatcher(
        _graph(canonical), _graph(seen), edge_match=lambda one, other: one["count"] == other["count"]
    )
    orders = [tuple(match[rank] for rank in range(len(match))) for match in matcher.isomorphisms_iter()]
    if not orders:
        raise InputError(
            f"found NVLinks that are not those of {canonical.name!r} in any numbering, expected the same graph",
            where=seen.name,
            path="$.links",
        )
    wanted = _sets(tree.pairs)
    paired = [
        order
        for order in orders
        if _sets(tuple(order[gpu] for gpu in pcie.devices) for pcie in canonical.pcie if pcie.devices) == wanted
    ]
    if not paired:
        raise InputError(
            f"found PCIe pairs {list(tree.pairs)} that fit no numbering of the NVLink graph, expected those of "
            f"{canonical.name!r}",
            where=seen.name,
        )
    first = [order for order in paired if order[0] in tree.nic_pair]
    if not first:
        reachable = sorted({order[0] for order in paired})
        raise InputError(
            f"found the NIC next to GPUs {list(tree.nic_pair)}, expected it next to one of {reachable}; "
            "no symmetry of the NVLink graph moves it to GPU 0",
            where=seen.name,
        )
    return min(first)


def _graph(hardware: Hardware) -> Any:
    graph: Any = nx.DiGraph()
    graph.add_nodes_from(range(hardware.devices_per_node))
    graph.add_edges_from((link.src, link.dst, {"count": link.count}) for link in hardware.links)
    return graph


def _sets(groups: Iterable[tuple[int, ...]]) -> set[frozenset[int]]:
    return {frozenset(group) for group in groups}


def _majority(ask: Callable[[], bool], repeats: int) -> bool:
    return 2 * sum(ask() for _ in range(repeats)) > repeats


def _unclear(what: str, found: object, expected: str, alone: dict[int, float]) -> InputError:
    table = ", ".join(f"GPU {gpu}: {rate:.3g}" for gpu, rate in sorted(alone.items()))
    return InputError(f"found {what} {found}, expected {expected}; copies alone ran at {table}", where="<probe>")
