"""Compression problems and plans of all kinds of options, made without a method."""

from __future__ import annotations

import random
from collections.abc import Sequence

from treadle.planner.documents.compression_costs import CompressorCost, Curve, DecodeCurve, Place, RoutineCost
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.machine.compressors import compressor
from treadle.planner.passes.compression.decisions import GradientGroup
from treadle.planner.passes.compression.options import Option, options, summed
from treadle.planner.passes.compression.problem import VERSION, CompressionProblem, Gradient

NAMES = ("dgc:0.01", "efsignsgd", "fp16", "powersgd:2")


def curve(*points: tuple[int, int]) -> Curve:
    return Curve(points=points)


def cost(name: str, place: Place, ns: int, decode: Sequence[int] = (1, 4)) -> CompressorCost:
    """A quarter of `ns` for few elements and `ns` for 1,000, half of that to decode one payload, more for others."""
    curves = [DecodeCurve(pieces=n, points=((0, n * ns // 20), (1000, (3 + n) * ns // 8))) for n in decode]
    return CompressorCost(name=name, place=place, encode=curve((0, ns // 4), (1000, ns)), decode=tuple(curves))


def random_problem(rng: random.Random, gradients: int | None = None) -> CompressionProblem:
    """Up to seven gradients on up to 3 x 4 ranks; zeros and equal times are common."""
    machines, devices = rng.choice([(1, 1), (2, 1), (1, 2), (2, 2), (2, 3), (3, 2), (3, 4), (2, 8)])
    times = rng.choice([(0, 100), (0, 1000, 5000), (300, 300, 700), (10_000, 2_345)])
    held = (
        RoutineCost(routine="allgather", scope="inter", ranks=2, curve=curve((10, 50), (5000, 900))),
        RoutineCost(routine="allreduce", scope="flat", ranks=4, curve=curve((10, 90), (5000, 1900))),
    )
    return CompressionProblem(
        version=VERSION,
        name="random",
        machines=machines,
        devices=devices,
        forward_ns=rng.choice([0, 500]),
        gradients=tuple(
            Gradient(name=f"g{at}", elements=rng.choice([1, 7, 100, 100, 3000]), backward_ns=rng.choice(times))
            for at in range(gradients or rng.randint(1, 7))
        ),
        intra=GradientLink(alpha_us=rng.choice([0, 0.3]), beta_us_per_MB=rng.choice([30, 100])),
        inter=GradientLink(alpha_us=rng.choice([0, 0.7]), beta_us_per_MB=rng.choice([100, 900])),
        compressors=(
            cost("dgc:0.01", "device", 200),
            cost("dgc:0.01", "host", 500, (1,)),
            cost("efsignsgd", "device", 0, (1,)),
            cost("fp16", "device", 50),
            cost("powersgd:2", "host", 300),
        ),
        routines=held[: rng.randint(0, 2)],
        planned=curve((0, 100), (10_000, 3000)) if rng.random() < 0.5 else None,
        issue=rng.choice((None, None, curve((0, 40), (1000, 90)))),
        pack=curve((0, 0), (1000, 30)) if rng.random() < 0.5 else None,
        host_workers=rng.randint(1, 2),
    )


def offered(problem: CompressionProblem, name: str | None) -> tuple[Option, ...]:
    """Every option with a compressor, or without one."""
    places = tuple(one.place for one in problem.compressors if one.name == name)
    both = tuple(option for levels in (False, True) for option in options(places, levels))
    if name is None:
        return (*both, ("planned@flat",)) if problem.planned is not None else both
    both = tuple(option for option in both if any("compress@" in step for step in option))
    if compressor(name).algorithm.summable:
        both += summed(places, False) + summed(places, True)
    return both


def random_groups(rng: random.Random, problem: CompressionProblem) -> tuple[GradientGroup, ...]:
    """Any division, any compressor, any option."""
    groups, first = [], 0
    while first < len(problem.gradients):
        last = rng.randint(first, min(first + 2, len(problem.gradients) - 1))
        name = rng.choice([None, *NAMES])
        groups.append(GradientGroup(first=first, last=last, compressor=name, steps=rng.choice(offered(problem, name))))
        first = last + 1
    return tuple(groups)
