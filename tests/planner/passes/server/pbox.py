"""The testbed of the paper: PBox with ten cards on two processors, and workers with one such card."""

from __future__ import annotations

from typing import Any

from treadle.planner.passes.server.keys import ServerKey
from treadle.planner.passes.server.price_list import NetworkPrices, ServerPrices
from treadle.planner.passes.server.problem import VERSION, MachineInterface, ServerMachine, ServerProblem

CARD = 6_800_000_000
"""Bytes per second of a card of 56 Gbit/s in each direction, as the paper's measurements have it."""
PRICES = ServerPrices(
    version=1,
    name="as published",
    worker=4117.0,
    accelerator=699.0,
    server=8407.0,
    server_card=162.5,
    baseline=NetworkPrices(card=795.0, port=658.7, cable=94.0),
    served=NetworkPrices(card=260.0, port=164.7, cable=31.25),
    workers_per_server=44,
    baseline_throughput=100.0,
    served_throughput=100.0,
)


def pbox(cards: int = 10, **fields: Any) -> ServerMachine:
    """Half of the cards on each processor; 80 GB/s of the bridge and 120 GB/s of memory."""
    given: dict[str, Any] = {"memory_rate": 120 * 10**9, "bridge_rate": 80 * 10**9, **fields}
    interfaces = tuple(MachineInterface(name=f"ib{each}", domain=2 * each // cards, rate=CARD) for each in range(cards))
    return ServerMachine(name="pbox", domains=(14, 14), interfaces=interfaces, **given)


def served(size: int, machine: ServerMachine | None = None, **fields: Any) -> ServerProblem:
    """A model of `size` bytes in as many equal keys as the machine has interfaces, for eight workers."""
    machine = machine or pbox()
    count = len(machine.interfaces)
    keys = tuple(ServerKey(name=f"k{place}", elements=size // 4 // count) for place in range(count))
    given: dict[str, Any] = {"workers": 8, "worker_rate": CARD, "mode": "ncc", "optimizer": "nesterov", **fields}
    return ServerProblem(version=VERSION, name="model", keys=keys, machine=machine, carrier="rdma", **given)
