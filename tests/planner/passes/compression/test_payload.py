"""Payloads with their pieces: times and elements of options on 2 nodes of 4 ranks, as computed by hand."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.planner.passes.compression.plans import random_problem
from treadle.planner.documents.compression_costs import CompressorCost, Curve
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.errors import InputError
from treadle.planner.passes.compression.candidates import named_options
from treadle.planner.passes.compression.payload import works
from treadle.planner.passes.compression.problem import CompressionProblem, Gradient
from treadle.planner.passes.compression.sizes import on_curve

ELEMENTS = 16 << 20
"""64 MiB."""
PROBLEM = CompressionProblem(
    version=1,
    name="two nodes of four",
    machines=2,
    devices=4,
    gradients=(Gradient(name="g", elements=ELEMENTS, backward_ns=0),),
    intra=GradientLink(beta_us_per_MB=62.5),  # 16 MiB a ms
    inter=GradientLink(beta_us_per_MB=500),
    compressors=(
        CompressorCost(
            name="any",
            encode=Curve(points=((1, 0),)),
            decode=(),
            wire=Curve(points=((8, 1), (ELEMENTS, ELEMENTS // 8))),  # a thirty-second of the bytes
        ),
    ),
)
C, D = "compress@device", "decompress@device"


@pytest.mark.parametrize(
    ("steps", "us", "encoded_mb", "decoded_mb"),
    [
        (("reduce-scatter@intra", "allreduce@inter", "allgather@intra"), [3000, 32000, 3000], 0, 0),
        (("allreduce@flat",), [56000], 0, 0),
        (("reduce-scatter@intra", C, "allgather@inter", D, "allgather@intra"), [3000, 1000, 3000], 16, 32),
        (
            ("reduce-scatter@intra", C, "alltoall@inter", D, C, "allgather@inter", D, "allgather@intra"),
            [3000, 500, 500, 3000],
            24,
            32,
        ),
        (
            (C, "alltoall@intra", D, C, "allgather@inter", "allgather@intra", D),
            [93.75, 1000, 187.5],
            80,
            192,
        ),
        (
            (C, "alltoall@intra", D, C, "alltoall@inter", D, C, "allgather@inter", "allgather@intra", D),
            [93.75, 500, 500, 93.75],
            88,
            144,
        ),
        ((C, "alltoall@intra", "allgather@inter", "allgather@intra", D), [93.75, 4000, 750], 64, 512),
    ],
    ids=["uncompressed", "flat", "allgather", "alltoall", "merged", "alltoall twice", "not merged"],
)
def test_pieces_multiply_bytes_until_they_are_merged(
    steps: tuple[str, ...], us: list[float], encoded_mb: int, decoded_mb: int
) -> None:
    found = works(PROBLEM, "any" if C in steps else None, steps, ELEMENTS)
    sent = [work.ns / 1000 for work in found if work.resources != ("device",)]
    assert sent == us
    handled = {
        step: sum(work.elements * work.pieces for work in found if steps[work.step or 0] == step) * 4 / (1 << 20)
        for step in (C, D)
    }
    assert handled == {C: encoded_mb, D: decoded_mb}


def test_steps_that_are_no_option_and_places_without_a_compressor_are_refused() -> None:
    with pytest.raises(InputError, match=r"found decompress@device of no payload"):
        works(PROBLEM, "any", (D,), ELEMENTS)
    with pytest.raises(InputError, match=r"found compress@device of a payload"):
        works(PROBLEM, "any", (C, C), ELEMENTS)
    with pytest.raises(InputError, match=r"found any on the host, expected one that the problem has there"):
        works(PROBLEM, "any", ("compress@host",), ELEMENTS)
    with pytest.raises(InputError, match=r"found planned@flat, expected a problem with a planned allreduce"):
        works(PROBLEM, None, ("planned@flat",), ELEMENTS)


@pytest.mark.parametrize("seed", range(6))
def test_many_sizes_at_once_take_what_each_takes(seed: int) -> None:
    rng = Random(seed)
    problem = random_problem(rng)
    sizes = np.array([0, 1, *sorted(rng.sample(range(2, 1 << 22), 12))])
    named = rng.sample(sorted(named_options(problem), key=str), 30)
    for name, steps in named:
        at_once = works(problem, name, steps, sizes, 2)
        for place, elements in enumerate(sizes.tolist()):
            for work, all_sizes in zip(works(problem, name, steps, elements, 2), at_once, strict=True):
                assert (work.word, work.step, work.resources) == (all_sizes.word, all_sizes.step, all_sizes.resources)
                assert work.ns == np.broadcast_to(all_sizes.ns, sizes.shape)[place], (name, steps, elements)


@pytest.mark.parametrize("largest", [1 << 20, 1 << 55])
def test_curves_of_many_sizes_are_exact_beyond_64_bits(largest: int) -> None:
    curve = Curve(points=((10, 7), (1000, 900), (largest, 2 * largest)))
    sizes = [0, 5, 10, 11, 999, 1000, 1001, largest - 1, largest, 2 * largest]
    assert on_curve(curve, np.array(sizes)).tolist() == [curve.at(size) for size in sizes]
