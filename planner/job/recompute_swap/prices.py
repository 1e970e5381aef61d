"""Recompute or swap: the compute time of recomputing a value against the time of copying it out and in."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from treadle.planner.job.recompute_swap.sets import OpSequence, RunValue
from treadle.planner.passes.swap.problem import SwapMachine


class RecomputePrice(NamedTuple):
    """Costs of one value, ns. Copies may overlap with compute. `again_ns` includes recomputing inputs that are not
    live any more, with everything else kept."""

    value: RunValue
    bytes: int
    again_ns: int
    copy_ns: int


def prices(program: OpSequence, machine: SwapMachine) -> list[RecomputePrice]:
    """The price of every value that may be recomputed, the cheapest relative to its copies first."""
    found = []
    for value in program.gaps:
        size = program.bytes_of(value)
        found.append(RecomputePrice(value, size, program.price_ns(value), machine.out_ns(size) + machine.in_ns(size)))
    return sorted(found, key=lambda price: (Fraction(price.again_ns, max(1, price.copy_ns)), price.value))


def cheaper(program: OpSequence, machine: SwapMachine) -> list[RunValue]:
    """Values cheaper to recompute than to copy, by the ratio of the two."""
    return [price.value for price in prices(program, machine) if price.again_ns < price.copy_ns]
