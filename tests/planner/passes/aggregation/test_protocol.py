"""What masters exchange, message by message with random delays: sums are exact with two buffers for each chunk.

A host takes part in iteration t + 1 of a chunk as soon as it has the total of iteration t, while others still wait for
theirs. Contributions of an iteration go into the buffer of its parity.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.planner.passes.aggregation.aggregation_plans import RACKS, Groups, decisions_on, problem_on
from treadle.planner.passes.aggregation.decisions import ChunkMasters

BUFFERS = 2


def value(host: int, iteration: int) -> int:
    return 10**host + 7 * iteration * (host + 1)


@dataclass
class Buffer:
    """A master's sums of an iteration, in use until the last of its messages has arrived."""

    iteration: int
    parts: int = 0
    total: int = 0
    leaving: int = 0


def run(
    groups: Groups, chunk: ChunkMasters, iterations: int, draw: random.Random, buffers: int = BUFFERS
) -> Iterator[tuple[int, int, int]]:
    """(host, iteration, total) of each total that a host gets. Raises AssertionError where a buffer is still in use for
    another iteration."""
    master = {host: local for group, local in zip(groups, chunk.local, strict=True) for host in group}
    below = {local: [host for host in master if master[host] == local != host] for local in chunk.local}
    below[chunk.top] += [local for local in chunk.local if local != chunk.top]
    held: dict[tuple[int, int], Buffer] = {}
    queue: list[tuple[float, int, int, int, int]] = []
    now = 0.0

    def send(src: int, dst: int, iteration: int, amount: int) -> None:
        heapq.heappush(queue, (now + draw.expovariate(1), src, dst, iteration, amount))

    def begin(host: int, iteration: int) -> None:
        if iteration < iterations:
            send(host, master[host], iteration, value(host, iteration))

    def down(host: int, iteration: int, amount: int) -> None:
        """A host has the total, and sends it to those below."""
        if host in below:
            held[host, iteration % buffers].leaving = len(below[host])
            for other in below[host]:
                send(host, other, iteration, amount)
            if not below[host]:
                del held[host, iteration % buffers]
        begin(host, iteration + 1)

    for host in master:
        begin(host, 0)
    while queue:
        now, src, host, iteration, amount = heapq.heappop(queue)
        if host in below.get(src, ()):
            buffer = held[src, iteration % buffers]
            buffer.leaving -= 1
            if not buffer.leaving:
                del held[src, iteration % buffers]
            down(host, iteration, amount)
            yield host, iteration, amount
            continue
        buffer = held.setdefault((host, iteration % buffers), Buffer(iteration))
        assert buffer.iteration == iteration, f"host {host} has sums of {buffer.iteration} where {iteration} goes"
        buffer.parts, buffer.total = buffer.parts + 1, buffer.total + amount
        if buffer.parts == 1 + len(below[host]):
            if host == chunk.top:
                down(host, iteration, buffer.total)
                yield host, iteration, buffer.total
            else:
                send(host, chunk.top, iteration, buffer.total)


@pytest.mark.parametrize(
    "groups", [RACKS, ((0, 1, 2), (3, 4), (5, 6, 7)), (tuple(range(8)),)], ids=["2x2", "three", "flat"]
)
@pytest.mark.parametrize("seed", range(5))
def test_any_delays_give_exact_sums_to_all_hosts(groups: Groups, seed: int) -> None:
    decisions = decisions_on(problem_on(groups, size_bytes=5 * 1024), groups, 5)
    hosts = [host for group in groups for host in group]
    for chunk in decisions.chunks:
        found = list(run(groups, chunk, 6, random.Random(seed)))
        assert len(found) == len({(host, iteration) for host, iteration, _ in found}) == 6 * len(hosts)
        assert all(total == sum(value(host, iteration) for host in hosts) for _, iteration, total in found)


def test_one_buffer_is_too_few() -> None:
    decisions = decisions_on(problem_on(RACKS, size_bytes=1024), RACKS, 1)
    with pytest.raises(AssertionError, match="host 0 has sums of 0 where 1 goes"):
        list(run(RACKS, decisions.chunks[0], 6, random.Random(0), buffers=1))


def test_values_of_the_published_example() -> None:
    """1, 10, 100 and 1000 become 1111 everywhere."""
    decisions = decisions_on(problem_on(RACKS), RACKS, 4)
    for chunk in decisions.chunks:
        assert {total for _, _, total in run(RACKS, chunk, 1, random.Random(1))} == {1111}
