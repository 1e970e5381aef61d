"""Lower bounds: below the optimum of small problems, below good plans of large ones, and near them."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from tests.planner.passes.compression.small_problems import FLAT, every_plan, random_problem
from treadle.planner.documents.compression_costs import CompressorCost, Curve, DecodeCurve
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.machine.compressors import compressor
from treadle.planner.passes.compression.bound import lower_bound, sentence
from treadle.planner.passes.compression.candidates import named_options
from treadle.planner.passes.compression.decided import plain_groups
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.fused import exact_groups
from treadle.planner.passes.compression.least_costs import below, least_costs, least_wire
from treadle.planner.passes.compression.payload import works
from treadle.planner.passes.compression.problem import CompressionProblem, Gradient

NAMES = ("randomk:0.01", "topk:0.03", "dgc:0.001", "efsignsgd", "onebit", "qsgd", "int8", "fp16", "bf16", "powersgd:4")


def large_problem(
    seed: int, machines: int, devices: int, names: tuple[str, ...], count: int = 30
) -> CompressionProblem:
    """Gradients of up to a few million elements."""
    rng = random.Random(seed)
    start = rng.randint(10_000, 300_000)
    line = Curve(points=((1, start), (10**6, start + rng.randint(10**5, 10**6))))
    decode = (DecodeCurve(pieces=1, points=line.points),)
    sizes = [rng.choice((768, 590_000, 2_400_000)) for _ in range(30)]
    return CompressionProblem(
        version=1,
        name="large",
        machines=machines,
        devices=devices,
        forward_ns=10**6,
        gradients=tuple(
            Gradient(name=f"w{place}", elements=size, backward_ns=rng.randint(10**5, 10**6))
            for place, size in enumerate(sizes)
        ),
        intra=GradientLink(alpha_us=3, beta_us_per_MB=20),
        inter=GradientLink(alpha_us=20, beta_us_per_MB=rng.choice((100, 1000, 8000))),
        compressors=tuple(CompressorCost(name=name, encode=line, decode=decode) for name in names),
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shard", [1, 50, 2000, 10**6])
def test_payloads_are_never_below_their_least_bytes(name: str, shard: int) -> None:
    known = compressor(name)
    line = least_wire(known, shard)
    rng = random.Random(shard)
    sizes = [*range(shard, shard + 300), *(shard + int(shard * 2 ** (rng.random() * 8)) for _ in range(200))]
    assert all(line.at(size) <= known.wire_bytes(size) for size in sizes)
    if shard == 10**6:
        assert line.at(10**8) >= 0.9 * known.wire_bytes(10**8)


def test_a_curve_whose_time_for_each_grows_becomes_a_line_below_it() -> None:
    plateau = Curve(points=((10, 5), (20, 5), (40, 10)))
    assert below(plateau) is plateau
    steep = Curve(points=((10, 5), (20, 5), (40, 40)))
    line = below(steep)
    assert all(line.at(size) <= steep.at(size) for size in range(1, 200))
    assert line.at(1000) == 250


@pytest.mark.parametrize("seed", range(6))
def test_one_large_group_is_never_dearer_than_its_parts(seed: int) -> None:
    rng = random.Random(seed)
    problem = large_problem(seed, 2, 2, (rng.choice(NAMES),))
    relaxed = least_costs(problem, 10_000)
    for name, steps in rng.sample(list(named_options(problem)), 40):
        sizes = [40_000 * rng.randint(1, 50) for _ in range(4)]
        parts = [works(relaxed, name, steps, size) for size in sizes]
        for number, whole in enumerate(works(relaxed, name, steps, sum(sizes))):
            rounding = 4 * (1 + 8000 * 1000 // 2**20 * 4)
            assert whole.ns <= 1.002 * sum(part[number].ns for part in parts) + rounding
        true = works(problem, name, steps, sizes[0])
        assert all(low.ns <= high.ns for low, high in zip(parts[0], true, strict=True))


def test_no_plan_of_a_small_problem_is_below_its_bound() -> None:
    for number in range(120):
        rng = random.Random(number)
        problem = random_problem(rng, rng.randint(1, 4))
        evaluator, bound = Evaluator(problem), lower_bound(problem)
        assert bound.time_ns == sum(bound.argument.terms.values())
        assert bound.time_ns <= min(evaluator.time(plan) for plan in every_plan(len(problem.gradients), FLAT))


@pytest.mark.parametrize(
    ("machines", "devices", "names"),
    [
        (8, 1, ("efsignsgd",)),
        (1, 8, ("randomk:0.01", "fp16")),
        (4, 1, ("powersgd:4", "dgc:0.01")),
        (4, 4, ("topk:0.05",)),
        (4, 1, ()),
    ],
)
def test_no_good_plan_of_a_large_problem_is_below_its_bound(
    machines: int, devices: int, names: tuple[str, ...]
) -> None:
    for seed in range(2):
        problem = large_problem(seed, machines, devices, names)
        bound = lower_bound(problem)
        evaluator = Evaluator(problem)
        plans = [plain_groups(problem), *(each.groups for each in exact_groups(problem).values())]
        best = min(evaluator.time(groups) for groups in plans)
        assert problem.forward_ns + problem.backward_ns < bound.time_ns <= best
        assert sentence(bound)


def test_a_slow_link_is_bound_by_what_it_has_to_carry() -> None:
    problem = large_problem(3, 8, 1, ())
    problem = replace(problem, inter=GradientLink(alpha_us=0, beta_us_per_MB=8000))
    bound = lower_bound(problem)
    assert bound.argument.kind == "work"
    best = Evaluator(problem).time(exact_groups(problem)["groups, uncompressed"].groups)
    assert best <= 1.05 * bound.time_ns
