"""Every option of the tree sums exactly, on ranks that are threads, and sends the bytes of the plan."""

from __future__ import annotations

import random
from functools import partial
from itertools import zip_longest

import pytest
import torch

from tests.treadle.runtime.compression.coders import Identity
from tests.treadle.runtime.compression.threads import Shared
from treadle.planner.documents.compression_costs import CompressorCost, Curve
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.passes.compression.options import Option, options, summed
from treadle.planner.passes.compression.payload import works
from treadle.planner.passes.compression.problem import CompressionProblem, Gradient
from treadle.runtime.compression.group_run import Grid, GroupRun, spans

GRIDS = ((2, 2), (2, 4), (4, 2))
FREE = Curve(points=((1, 0),))
LINK = GradientLink(beta_us_per_MB=1.0)
ODD, EVEN = 13, 64
CODERS = dict.fromkeys(("device", "host"), Identity())


def problem_of(machines: int, devices: int) -> CompressionProblem:
    costs = tuple(
        CompressorCost(name="identity", place=place, encode=FREE, decode=(), wire=Curve(points=((0, 0), (1, 4))))
        for place in ("device", "host")
    )
    gradient = Gradient(name="w", elements=EVEN, backward_ns=1)
    return CompressionProblem(
        version=1, name="grid", machines=machines, devices=devices, gradients=(gradient,), intra=LINK, inter=LINK,
        compressors=costs,
    )  # fmt: skip


def all_sums(found: list[Option], elements: int, shared: Shared) -> list[list[list[int]]]:
    """Bytes by rank, option and step; every rank's sum is compared with that of all."""

    def work(grid: Grid) -> list[list[int]]:
        sent = []
        for number, steps in enumerate(found):
            run = GroupRun(steps, elements, grid, partial(shared.call, grid.rank), CODERS)
            for _ in range(2):
                run.flat.copy_(torch.arange(elements) * (grid.rank + 1) + number)
                run.start(run.flat)
                for step in range(len(steps)):
                    run.step(step)
                ranks = grid.ranks("flat")
                expected = torch.arange(elements) * (ranks * (ranks + 1) // 2) + number * ranks
                assert run.values is not None, steps
                assert torch.equal(run.values, expected.float()), steps
            sent.append(run.sent_bytes)
        return sent

    return shared.run(work)


@pytest.mark.parametrize(("machines", "devices"), GRIDS)
@pytest.mark.parametrize("elements", [ODD, EVEN])
def test_every_sequence_of_one_place_sums_exactly_and_sends_the_bytes_of_the_plan(
    machines: int, devices: int, elements: int
) -> None:
    found = [each for tree in (False, True) for each in (*options(("device",), tree), *summed(("device",), tree))]
    assert len(found) == 174 + 2
    sent = all_sums(found, elements, Shared(machines, devices))
    if elements == ODD:
        return
    problem = problem_of(machines, devices)
    for number, steps in enumerate(found):
        planned = [work.sent_bytes for work in works(problem, "identity", steps, elements)]
        executed = [max(ranks) for ranks in zip_longest(*(rank[number] for rank in sent), fillvalue=0)]
        assert executed == planned, steps


def test_a_sample_of_the_options_with_two_places_sums_exactly() -> None:
    found = random.Random(0).sample([*options(("device", "host"), False), *options(("device", "host"), True)], 40)
    all_sums(found, ODD, Shared(2, 2))


def test_parts_of_nested_divisions_cover_every_element_once() -> None:
    for elements in range(1, 40):
        found = spans(elements, (2, 4))
        assert [element for start, length in found for element in range(start, start + length)] == [*range(elements)]
        assert len(found) == 8
