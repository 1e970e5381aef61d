"""Problems and groups drawn at random, small enough that zero lengths and ties are common."""

from __future__ import annotations

from random import Random

from treadle.planner.documents.compression_costs import CompressorCost, Curve, DecodeCurve
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.passes.compression.candidates import named_options
from treadle.planner.passes.compression.decisions import GradientGroup
from treadle.planner.passes.compression.problem import CompressionProblem, Gradient

SHAPES = ((2, 2), (2, 1), (1, 3), (3, 2))
MB_NS = 1 << 20


def curve(*points: tuple[int, int]) -> Curve:
    return Curve(points=points)


def random_problem(random: Random, gradients: int, *, longest: int = 4) -> CompressionProblem:
    """Every length is a multiple of 100 ns up to `longest` of them or the like, often zero."""
    machines, devices = random.choice(SHAPES)

    def cost(name: str, place: str) -> CompressorCost:
        encode = random.randrange(longest) * 100
        decode = random.randrange(longest) * 100
        return CompressorCost(
            name=name,
            place=place,  # type: ignore[arg-type]
            encode=curve((1, encode), (100, encode + 100 * random.randrange(longest))),
            decode=tuple(DecodeCurve(pieces=pieces, points=((1, pieces * decode),)) for pieces in (1, 2)),
            wire=curve((1, 4), (100, random.choice((4, 40, 200)))),
        )

    names = [("a", "device"), ("a", "host"), ("b", random.choice(("device", "host")))]
    # 25 elements are 100 bytes, which take 100 ns
    link = GradientLink(beta_us_per_MB=MB_NS / 1000)
    return CompressionProblem(
        version=1,
        name="random",
        machines=machines,
        devices=devices,
        forward_ns=random.randrange(3) * 100,
        gradients=tuple(
            Gradient(name=f"g{place}", elements=random.choice((1, 25, 50, 100)), backward_ns=random.randrange(4) * 100)
            for place in range(gradients)
        ),
        intra=link if devices > 1 else None,
        inter=GradientLink(beta_us_per_MB=random.choice((1, 2)) * MB_NS / 1000) if machines > 1 else None,
        compressors=tuple(cost(*each) for each in names[: random.randint(1, 3)]),
        planned=curve((0, 0), (100, 100)) if random.random() < 0.5 else None,
        issue=random.choice((None, None, curve((10, 70), (100, 160)))),
        pack=curve((1, random.randrange(2) * 100)) if random.random() < 0.5 else None,
        host_workers=random.randint(1, 2),
    )


def random_groups(random: Random, problem: CompressionProblem) -> tuple[GradientGroup, ...]:
    """Consecutive groups, each with any option."""
    known = tuple(named_options(problem))
    groups: list[GradientGroup] = []
    first = 0
    while first < len(problem.gradients):
        last = min(first + random.choice((0, 0, 1, 2)), len(problem.gradients) - 1)
        name, steps = random.choice(known[: random.choice((9, len(known)))])
        groups.append(GradientGroup(first=first, last=last, compressor=name, steps=steps))
        first = last + 1
    return tuple(groups)
