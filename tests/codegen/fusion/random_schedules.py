"""Random programs under random transformations, as compilers get them: fused, split, sliced, with several outputs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.planner.passes.fusion.random_programs import programs
from treadle.codegen.fusion.lower import Lowered, lower
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.candidates import AllowedTransforms, Reached, outcomes
from treadle.planner.passes.fusion.layouts import FLAT
from treadle.planner.passes.fusion.program import Bindings, Program

ALL = AllowedTransforms(*(True,) * 14, dims=(FLAT, 0))
EDGES = 40
"""Transformations among which one is drawn."""


def schedules(number: int, count: int, ranks: tuple[int, ...] = (1, 2, 3, 4), *, sends: bool = False) -> list[Lowered]:
    """Schedules of random sizes and choices, numbered; those that exchange something if `sends`."""
    dice, found = random.Random(number), list[Lowered]()

    @seed(number)
    @settings(
        max_examples=60 * count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(programs(most=20))
    def draw(program: Program) -> None:
        if len(found) == count:
            return
        extents = {"T": dice.choice((0, 1, 2, 7, 16)), "H": dice.choice((1, 3, 5, 8))}
        choices: dict[str, Any] = {
            "protocol": dice.choice(("Simple", "LL", "LL128")),
            "channels": dice.choice((1, 2)),
            "algorithm": dice.choice(("ring", "all-pairs", "double-tree")),
            "slot_bytes": dice.choice((16, 64, 256)),
        }
        schedule = replace(_transformed(program, dice), name=f"random{len(found)}")
        try:
            lowered = lower(schedule, Bindings(extents, dice.choice(ranks)), **choices)
            text = lowered.text
        except InputError:
            return
        if not sends or "_entries[]" in text or "exchange<" in text:
            found.append(lowered)

    draw()
    assert len(found) == count
    return found


def _transformed(program: Program, dice: random.Random) -> Program:
    """The program after up to five transformations, without the kernels it had, with further outputs."""
    named = [node.name for node in program.nodes if not node.anonymous and node.op not in ("Slice", "Load")]
    more = [name for name in named if name not in program.outputs and dice.random() < 0.4]
    program = replace(program, outputs=(*program.outputs, *more), kernels=())
    for step in range(dice.randrange(6)):
        edges = list(islice(_reached(program, first=step == 0), EDGES))
        fusing = [each for each in edges if len(each.kernels) > len(program.kernels)]
        if not edges:
            break
        program = dice.choice(fusing if fusing and dice.random() < 0.7 else edges)
    return program


def _reached(program: Program, *, first: bool) -> Iterator[Program]:
    return (each.rewrite.program for each in outcomes(program, ALL, first=first) if isinstance(each, Reached))
