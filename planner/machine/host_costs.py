"""Measured costs between hosts as passes price them: whole, symmetric matrices in whole ns."""

from __future__ import annotations

from typing import Literal, NamedTuple

from treadle.planner.documents.cost_matrix import CostMatrix

Repair = Literal["max", "mean"]
"""What replaces two directions of a pair that differ; a pair of which one direction is missing gets the other one."""


class HostCosts(NamedTuple):
    """Between hosts by their places: half of a round trip, and ns per MiB of a stream, None without any rate. Both are
    symmetric, with zeros on the diagonal."""

    names: tuple[str, ...]
    slots: tuple[int, ...]
    latency_ns: tuple[tuple[int, ...], ...]
    ns_per_MiB: tuple[tuple[int, ...], ...] | None


def host_costs(costs: CostMatrix, where: str, repair: Repair | None = None) -> HostCosts:
    """The costs of `costs`, which errors call `where`; a pair without a measured rate gets an estimate.

    Raises InputError, which names the pairs and how to repair them, for a matrix that is not symmetric or has pairs
    that were not measured, and for one in which everything costs nothing.
    """
    raise NotImplementedError
