"""Small random compression problems, and all their plans with a few options."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, product

from treadle.planner.documents.compression_costs import CompressorCost, Curve, DecodeCurve, RoutineCost
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.passes.compression.candidates import Named
from treadle.planner.passes.compression.decisions import GradientGroup
from treadle.planner.passes.compression.problem import CompressionProblem, Gradient

FLAT: tuple[Named, ...] = (
    (None, ("allreduce@flat",)),
    ("tiny", ("compress@device", "allgather@flat", "decompress@device")),
    ("tiny", ("compress@host", "allgather@flat", "decompress@host")),
)


def random_problem(rng: random.Random, count: int, *, machines: int = 2, devices: int = 1) -> CompressionProblem:
    """`count` gradients of a few elements, times of a few ns, a compressor at both places."""
    measured = (RoutineCost(routine="allgather", scope="inter", ranks=2, curve=_line(rng)),)
    wire = Curve(points=((1, 1), (100, rng.randint(8, 80))))
    return CompressionProblem(
        version=1,
        name="random",
        machines=machines,
        devices=devices,
        forward_ns=rng.randint(0, 9),
        gradients=tuple(
            Gradient(name=f"w{place}", elements=rng.randint(1, 40), backward_ns=rng.randint(0, 60))
            for place in range(count)
        ),
        intra=GradientLink(alpha_us=rng.randint(0, 5) / 1000, beta_us_per_MB=rng.randint(0, 600)),
        inter=GradientLink(alpha_us=rng.randint(0, 9) / 1000, beta_us_per_MB=rng.randint(100, 3000)),
        compressors=tuple(
            CompressorCost(
                name="tiny",
                place=place,
                encode=_line(rng),
                decode=(DecodeCurve(pieces=1, points=_line(rng).points),),
                wire=wire,
            )
            for place in ("device", "host")
        ),
        routines=measured if rng.random() < 0.3 else (),
        issue=_line(rng) if rng.random() < 0.3 else None,
        pack=_line(rng) if rng.random() < 0.5 else None,
        host_workers=rng.choice((1, 2)),
    )


def _line(rng: random.Random) -> Curve:
    start = rng.randint(0, 20)
    return Curve(points=((1, start), (100, start + rng.randint(0, 60))))


def every_plan(count: int, options: Sequence[Named]) -> Iterator[tuple[GradientGroup, ...]]:
    """All partitions of `count` gradients with each option for each group."""
    for cuts in range(count):
        for inner in combinations(range(count - 1), cuts):
            ends = (*inner, count - 1)
            firsts = (0, *(end + 1 for end in inner))
            for chosen in product(options, repeat=len(ends)):
                yield tuple(
                    GradientGroup(first=first, last=last, compressor=name, steps=steps)
                    for first, last, (name, steps) in zip(firsts, ends, chosen, strict=True)
                )
