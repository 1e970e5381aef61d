"""Random orders of hosts, which any order is compared with."""

from __future__ import annotations

from random import Random


def random_orders(count: int, number: int = 101, seed: int = 0) -> tuple[tuple[int, ...], ...]:
    """`number` orders of `count` hosts, the same ones for the same arguments."""
    generator, orders = Random(seed), []
    for _ in range(number):
        order = list(range(count))
        generator.shuffle(order)
        orders.append(tuple(order))
    return tuple(orders)
