"""What other meshes, or other memory of a worker, would do: `mesh=1x8..8x1`, `memory=8GiB..64GiB`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

from msgspec.structs import replace

from treadle.passes.tiling.meshes import Mesh, meshes_of
from treadle.planner.documents.quantities import Spread, parse_bytes, parse_named, parse_values
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InfeasibleError, InputError, LimitError
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.planner.passes.tiling.planning import TilingOptions, plan_tiling
from treadle.planner.passes.tiling.problem import TilingProblem
from treadle.planner.search.clock import Clock

MOST_VALUES = 16
EXAMPLE = "mesh=1x8..8x1 or memory=8GiB..64GiB"


class TilingQuestion(NamedTuple):
    """Meshes, or bytes of memory."""

    name: Literal["mesh", "memory"]
    meshes: tuple[Mesh, ...] = ()
    sizes: tuple[int, ...] = ()


class TilingAnswer(NamedTuple):
    """What one of them leads to; its value as it is printed."""

    value: str
    decisions: TilingDecisions


def question_of(text: str, where: str = "--what-if") -> TilingQuestion:
    """`mesh=` with meshes, `memory=` with sizes, each twice the one before. Raises InputError for anything else."""
    ((name, given),) = parse_named([text], EXAMPLE, where=where).items()
    if name == "mesh":
        meshes = meshes_of(given, where)
        if len(meshes) > MOST_VALUES:
            raise InputError(f"found {len(meshes)} meshes, expected at most {MOST_VALUES}", where=where)
        return TilingQuestion("mesh", meshes=meshes)
    if name == "memory":
        spread = Spread.by_factor(2, MOST_VALUES)
        sizes = parse_values(given, lambda word: parse_bytes(word, least=1, where=where), spread, where=where)
        return TilingQuestion("memory", sizes=sizes)
    raise InputError(f"found {name!r}, expected {EXAMPLE}", where=where)


def answers_to(
    question: TilingQuestion,
    problem: TilingProblem,
    on: Callable[[Mesh | None], TilingProblem],
    options: TilingOptions,
    clock: Clock,
    on_refused: Callable[[str], None],
) -> tuple[TilingAnswer, ...]:
    """An answer for each value, in their order; each plan has an equal share of the time that is left.

    problem: the one that was asked of first. on: makes it on another mesh. on_refused: called with a line for a value
    without a plan.
    """
    asked: list[tuple[str, Callable[[], TilingProblem]]] = [
        *(("x".join(map(str, mesh)), partial(on, mesh)) for mesh in question.meshes),
        *((format_bytes(size), partial(replace, problem, memory_bytes=size)) for size in question.sizes),
    ]
    answers = list[TilingAnswer]()
    for place, (value, made) in enumerate(asked):
        try:
            plan = plan_tiling(made(), options=options, clock=clock.share(len(asked) - place))
            answers.append(TilingAnswer(value, plan.decisions))
        except (InputError, InfeasibleError, LimitError) as error:
            on_refused(f"no plan with {question.name}={value}: {error}")
    return tuple(answers)
