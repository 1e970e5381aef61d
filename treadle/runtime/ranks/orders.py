"""How long a library's allreduce takes with its ranks in each of several orders, measured in turns.

The ranks keep their processes and get other numbers: in each order a library makes a group of its own, in which the
rank at place p is number p. That is all that a list of hosts changes for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from statistics import median
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo, _get_default_store

from treadle.planner.passes.ranks.problem import RanksProblem
from treadle.runtime.joined import joined_rank, run_ranks
from treadle.runtime.ranks.hosts import host_here, in_order, ranks_by_host

WAIT = timedelta(minutes=10)
LARGEST_VALUE = 7


class OrderedLibrary(Protocol):
    """Something that sums up tensors."""

    def joined(self, name: str, ranks: Sequence[int], place: int, stack: ExitStack) -> Callable[[Tensor], object]:
        """The allreduce, in place, of a new group `name` that has `ranks` of the processes in their order; this one is
        at `place`. All of them call it; the group ends with `stack`."""


class GlooLibrary:
    """The gloo of PyTorch as it is: its allreduce is a ring in the order of the ranks; it has no other."""

    def joined(self, name: str, ranks: Sequence[int], place: int, stack: ExitStack) -> Callable[[Tensor], object]:
        # new_group would sort the ranks
        store = PrefixStore(f"order {name}", _get_default_store())
        group: Any = ProcessGroupGloo(store, place, len(ranks), WAIT)
        return lambda tensor: group.allreduce([tensor]).wait()


class OrderTime(NamedTuple):
    """Seconds of each call, of the slowest rank; `right`: every sum had the expected value."""

    seconds: list[float]
    right: bool

    @property
    def median(self) -> float:
        return median(self.seconds)


def times_of_orders(
    problem: RanksProblem,
    orders: Mapping[str, Sequence[int]],
    library: OrderedLibrary,
    *,
    calls: int,
    timeout: float | None = None,
) -> dict[str, OrderTime]:
    """What `library` takes for an allreduce of the problem's size in each of `orders`, hosts by place.

    In processes that were started together on the hosts, every rank has the result; else new ones on this machine take
    the places of the hosts. Raises InputError where the processes are not those of the hosts, and what `launch` raises.
    """
    world = sum(host.slots for host in problem.hosts)
    here = joined_rank() is not None
    by_rank = run_ranks(world, _measure, (problem, dict(orders), library, calls, here), timeout)
    return {
        name: OrderTime(
            [max(each) for each in zip(*(rank[name].seconds for rank in by_rank), strict=True)],
            all(rank[name].right for rank in by_rank),
        )
        for name in orders
    }


def _measure(
    rank: int, world: int, problem: RanksProblem, orders: dict[str, Sequence[int]], library: OrderedLibrary, calls: int,
    on_hosts: bool,
) -> dict[str, OrderTime]:  # fmt: skip
    own = (os.uname().nodename, host_here([host.name for host in problem.hosts]))
    found: list[tuple[str, int | None]] = [own] * world
    distributed.all_gather_object(found, own)
    slots = problem.hosts[0].slots
    placed = found if on_hosts else [("", rank // slots) for rank in range(world)]
    ranks = ranks_by_host(problem.hosts, placed)
    given = torch.arange(max(1, problem.size_bytes // 4), dtype=torch.float32).remainder_(LARGEST_VALUE)
    expected, buffer = given * world + world * (world - 1) // 2, given + rank
    with ExitStack() as stack:
        sums = {}
        for name, order in orders.items():
            members = in_order(ranks, order)
            sums[name] = library.joined(name, members, members.index(rank), stack)
        right = {}
        for name, add_up in sums.items():
            add_up(buffer)
            right[name] = torch.equal(buffer, expected)
            torch.add(given, rank, out=buffer)
        seconds: dict[str, list[float]] = {name: [] for name in orders}
        for _ in range(calls):
            for name, add_up in sums.items():
                distributed.barrier()
                start = time.perf_counter()
                add_up(buffer)
                seconds[name].append(time.perf_counter() - start)
                torch.add(given, rank, out=buffer)
        distributed.barrier()
    return {name: OrderTime(seconds[name], right[name]) for name in orders}
