"""What "Parameter Hub: a Rack-Scale Parameter Server for Distributed Deep Neural Network Training" reports: its models,
and the tables that other benchmarks stand next to."""

from __future__ import annotations

from typing import NamedTuple

from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.sources import load_named
from treadle.planner.passes.server.keys import VERSION, ServerKey, ServerKeys
from treadle.planner.passes.server.price_list import ServerPrices
from treadle.planner.passes.server.problem import MachineInterface, ServerMachine

WORKERS = 8
KEYS = 64
"""Of each model: its tables give their size only."""


class Model(NamedTuple):
    """Table 6.1: MiB, and ms of a batch."""

    name: str
    size: float
    batch_ms: float


MODELS = (
    Model("AlexNet", 194, 16),
    Model("VGG-11", 505, 121),
    Model("VGG-19", 548, 268),
    Model("GoogleNet", 38, 100),
    Model("Inception-v3", 91, 225),
    Model("ResNet-18", 45, 54),
    Model("ResNet-50", 97, 161),
    Model("ResNet-269", 390, 350),
    Model("ResNext-269", 390, 386),
)

BANDWIDTH = {
    "ResNet-269": (8.75, {"cc": 122, "cs": 31, "ncc": 140, "ncs": 17}),
    "Inception-v3": (3.125, {"cc": 44, "cs": 11, "ncc": 50, "ncs": 6}),
    "GoogleNet": (2.875, {"cc": 40, "cs": 10, "ncc": 46, "ncs": 6}),
    "AlexNet": (88.0, {"cc": 1232, "cs": 308, "ncc": 1408, "ncs": 176}),
}
"""Table 2.1: Gbit/s of a host that serves, both directions added, so that 8 workers do not wait; and the Gbit of the
model per second of a batch that all four columns come from."""

MEMORY = {"none": (77.5, 72.08), "cached": (83.5, 71.6), "bypass": (119.7, 40.48)}
"""Table 6.2, VGG-11, 8 workers: GB/s of memory, and exchanges per second."""

COSTS = {
    "future accelerators": (46.11, 55.19, 57.71, 59.03),
    "costly accelerators": (14.57, 15.30, 15.49, 15.58),
    "cheap processors": (60.41, 77.21, 82.24, 84.95),
}
"""Table 6.3: throughput per 1000 dollars of 100 Gbit/s shards, then of 25 Gbit/s with a server in each rack at an
oversubscription of 1, 2 and 3."""
POLICIES = (790, 552)
"""Exchanges per second of ResNet-18 by key and by worker."""
MOST_WORKERS = 120
"""Of ResNet-50 on one PBox, extrapolated from 6 GB/s of memory for 8 workers to 90 GB/s."""


def keys_of(name: str, mebibytes: float, compute_ms: float = 0) -> ServerKeys:
    """A model of as many MiB in equal keys, which are ready together."""
    elements = round(mebibytes * MEBIBYTE / 4 / KEYS)
    keys = tuple(ServerKey(name=f"key{number}", elements=elements) for number in range(KEYS))
    return ServerKeys(version=VERSION, name=name, keys=keys, compute_ns=round(compute_ms * 1e6))


def pbox() -> ServerMachine:
    """Two processors of 14 cores with five cards of 56 Gbit/s each. Between cards and memory it sustained 80 GB/s in
    training, and 90 in a loop over all cards."""
    cards = tuple(
        MachineInterface(name=f"card{number}", domain=number // 5, rate=6_800_000_000) for number in range(10)
    )
    return ServerMachine(
        name="PBox",
        domains=(14, 14),
        interfaces=cards,
        memory_bytes=128 << 30,
        memory_rate=120_000_000_000,
        bridge_rate=80_000_000_000,
    )


PRICES = load_named(ServerPrices, "phub-25g")
SHARES = {1: 44, 2: 65, 3: 76}
"""Workers of a rack with a server, by oversubscription: 20 ports of its switch are the server's."""
