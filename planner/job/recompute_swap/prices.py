"""Recompute or swap, one price: the compute time of making a value again beside the time of copying it out and in."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from treadle.planner.job.recompute_swap.sets import Program, Value
from treadle.planner.passes.swap.problem import SwapMachine


class Price(NamedTuple):
    """In ns. Copies may hide behind compute and cost the link; making it again costs compute and hides behind nothing,
    but may find what it reads gone, which is in `again_ns` as long as everything else stays."""

    value: Value
    bytes: int
    again_ns: int
    copy_ns: int


def prices(program: Program, machine: SwapMachine) -> list[Price]:
    """Of every value that may be made again, the cheapest to make beside its copies first."""
    found = []
    for value in program.gaps:
        size = program.bytes_of(value)
        found.append(Price(value, size, program.price_ns(value), machine.out_ns(size) + machine.in_ns(size)))
    return sorted(found, key=lambda price: (Fraction(price.again_ns, max(1, price.copy_ns)), price.value))


def cheaper(program: Program, machine: SwapMachine) -> list[Value]:
    """What is cheaper to make again than to copy, by ratio of the two."""
    return [price.value for price in prices(program, machine) if price.again_ns < price.copy_ns]
