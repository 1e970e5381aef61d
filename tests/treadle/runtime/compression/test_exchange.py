"""Groups are exchanged in the planned order, whatever is ready first; errors of any thread end the exchange."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from tests.treadle.runtime.compression.coders import Identity
from tests.treadle.runtime.compression.plans import decisions_of
from tests.treadle.runtime.compression.threads import Shared
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.compression.options import options
from treadle.runtime.compression.exchange import PlannedExchange
from treadle.runtime.compression.group_run import Call, Coder, Grid, GroupRun
from treadle.runtime.compression.setup import in_one_lane, order_of
from treadle.runtime.watch import lost_rank

PLACES = ("device", "host")
GROUPS = 12
SIZE = 9


def exchange_of(
    grid: Grid, call: Call, coder: Coder | None = None, order: Callable[..., Any] = tuple
) -> PlannedExchange:
    """Groups of one to three gradients, each with another option of the tree."""
    found = random.Random(7)
    sizes = [found.randrange(1, 4) for _ in range(GROUPS)]
    firsts = [sum(sizes[:number]) for number in range(GROUPS)]
    steps = [found.choice(options(PLACES, found.random() < 0.7)) for _ in range(GROUPS)]
    gradients = [(f"g{number}", SIZE) for number in range(sum(sizes))]
    groups = [(a, a + n - 1, "identity", each) for a, n, each in zip(firsts, sizes, steps, strict=True)]
    decisions = decisions_of(gradients, groups, grid.machines, grid.devices)
    coders = dict.fromkeys(PLACES, coder or Identity())
    return PlannedExchange(
        [SIZE for _ in gradients],
        [(a, b) for a, b, _, _ in groups],
        [GroupRun(each, n * SIZE, grid, call, coders) for n, each in zip(sizes, steps, strict=True)],
        order(order_of(decisions)),
        host_workers=2,
    )


@pytest.mark.parametrize("order", [tuple, in_one_lane])
def test_ranks_whose_gradients_become_ready_in_other_orders_exchange_them_all(order: Callable[..., Any]) -> None:
    shared = Shared(2, 2)

    def work(grid: Grid) -> int:
        exchange = exchange_of(grid, partial(shared.call, grid.rank), order=order)
        shuffled = random.Random(grid.rank)
        gradients = list(range(len(exchange.sizes)))
        for iteration in range(4):
            shuffled.shuffle(gradients)
            for number in gradients:
                if shuffled.random() < 0.2:
                    time.sleep(0.002)
                exchange.put(number, torch.full((3, 3), float(grid.rank + number + iteration)))
            exchange.finish()
            for group, (first, last) in enumerate(exchange.groups):
                outs = [torch.empty(3, 3) for _ in range(first, last + 1)]
                exchange.mean_into_each(group, outs)
                for number, out in enumerate(outs, first):
                    assert torch.equal(out, torch.full((3, 3), 1.5 + number + iteration)), (iteration, number)
        exchange.close()
        return len(exchange.last)

    assert len(set(shared.run(work))) == 1


class Broken(Identity):
    def encode(self, point: str, values: torch.Tensor, payload: torch.Tensor, *, shared: bool) -> None:
        raise InputError("found a broken coder")


def test_an_error_of_a_step_is_raised_where_gradients_come_from() -> None:
    grid = Grid(0, 1, 1)
    exchange = exchange_of(grid, lambda word, scope, source, out: out, Broken())

    def all_of_them() -> None:
        for number in range(len(exchange.sizes)):
            exchange.put(number, torch.ones(SIZE))
        exchange.finish()

    with pytest.raises(InputError, match="a broken coder"):
        all_of_them()
    with pytest.raises(InputError, match="a broken coder"):
        exchange.finish()
    exchange.close()


def test_a_failed_collective_names_the_rank_that_ended() -> None:
    def gone(*_: object) -> None:
        raise RuntimeError("[pair.cc:547] Connection closed by peer")

    exchange = exchange_of(Grid(0, 1, 1), gone)
    exchange.lost_within = lambda seconds: 3

    def all_of_them() -> None:
        for number in range(len(exchange.sizes)):
            exchange.put(number, torch.ones(SIZE))
        exchange.finish()

    with pytest.raises(CheckFailed, match="rank 3 ended"):
        all_of_them()
    exchange.close()


def test_a_rank_that_ends_while_others_wait_ends_the_exchange() -> None:
    exchange = exchange_of(Grid(0, 1, 1), lambda word, scope, source, out: out)
    exchange.fail(lost_rank(2))
    with pytest.raises(CheckFailed, match="rank 2 ended"):
        exchange.finish()
    exchange.close()
