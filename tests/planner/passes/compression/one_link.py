"""The problems of the oracle as problems of the planner, where decoding takes no time, and its choices as groups."""

from __future__ import annotations

from random import Random

from tests.oracles.exact_compression import OneLink
from treadle.planner.documents.compression_costs import CompressorCost, Curve, DecodeCurve
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.passes.compression.decisions import GradientGroup
from treadle.planner.passes.compression.problem import CompressionProblem, Gradient

NAME = "any"
STEPS = {
    "n": ("allreduce@flat",),
    "g": ("compress@device", "allgather@flat", "decompress@device"),
    "c": ("compress@host", "allgather@flat", "decompress@host"),
}
NONE, DEVICE, HOST = ((NAME if letter != "n" else None, STEPS[letter]) for letter in "ngc")


def problem_of(case: OneLink) -> CompressionProblem:
    """Two nodes of a rank each; an element takes a ns on the link."""
    wire = {raw: 4 * compressed for raw, compressed in zip(case.raw, case.compressed, strict=True)}
    ns = {"device": case.device, "host": case.host}
    return CompressionProblem(
        version=1,
        name="one link",
        machines=2,
        devices=1,
        gradients=tuple(
            Gradient(name=f"g{place}", elements=raw, backward_ns=backward)
            for place, (raw, backward) in enumerate(zip(case.raw, case.backward, strict=True))
        ),
        inter=GradientLink(beta_us_per_MB=(1 << 20) / 4000),
        compressors=tuple(
            CompressorCost(
                name=NAME,
                place=place,
                encode=Curve(points=((1, ns[place]),)),
                decode=(DecodeCurve(pieces=1, points=((0, 0),)),),
                wire=Curve(points=tuple(sorted(wire.items()))),
            )
            for place in ("device", "host")
        ),
    )


def groups_of(choice: str) -> tuple[GradientGroup, ...]:
    return tuple(
        GradientGroup(first=place, last=place, compressor=None if letter == "n" else NAME, steps=STEPS[letter])
        for place, letter in enumerate(choice)
    )


def letters_of(groups: tuple[GradientGroup, ...]) -> str:
    return "".join(
        "n" if group.compressor is None else "c" if group.steps[0].endswith("host") else "g" for group in groups
    )


def random_case(random: Random, gradients: int, *, equal: bool = False) -> OneLink:
    sizes = sorted({random.randint(2, 12) for _ in range(gradients)})
    small = dict(zip(sizes, sorted(random.randint(1, 4) for _ in sizes), strict=True))
    raw = [sizes[0]] * gradients if equal else [random.choice(sizes) for _ in range(gradients)]
    backward = [random.randint(1, 6) for _ in range(gradients)]
    device = random.randint(1, 3)
    return OneLink(backward, raw, [small[size] for size in raw], device, device + random.randint(0, 3))
