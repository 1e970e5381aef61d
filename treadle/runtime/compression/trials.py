"""Plans of compression that are measured in turns: iterations with gradients of their sizes, operators slept through.

Plans whose gradients are ready one after the other run as the hook of DistributedDataParallel, those of jobs, whose
gradients are all ready at once, after the backward pass: as what carries them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.passes.compression.check import check
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.planner.passes.compression.problem import DTYPE_BYTES, CompressionProblem
from treadle.planner.search.clock import Clock
from treadle.planner.search.in_turns import Measuring
from treadle.planner.search.top import Outcome
from treadle.runtime.trial_ranks import WHERE, Ask, end_of, require_memory, set_threads, trial_ranks
from treadle.runtime.turns import in_turns, slowest

if TYPE_CHECKING:
    from torch import Tensor, nn

COPIES = 5
"""How often a plan holds all gradients: parameters, gradients, buckets, buffers of groups, and residuals."""
Rows = Sequence[Sequence[CompressionDecisions]]


@contextmanager
def compression_measuring(
    problem: CompressionProblem, top: int, machine: str, clock: Clock, show: Callable[[str], None] = lambda _: None
) -> Iterator[Measuring[CompressionDecisions] | None]:
    """What measures the `top` best plans of a problem, priced for `machine`; it shows that it does. Once `clock` has
    run out no further round is begun. None on ranks that only measure with the first, at the end. Raises InputError for
    a single rank, or where they need more memory than there is."""
    if problem.ranks == 1:
        raise InputError("found a single rank, expected several, which exchange gradients", where=WHERE)
    sizes = sum(gradient.elements for gradient in problem.gradients)
    require_memory(problem.ranks * (1 + COPIES * top) * DTYPE_BYTES * sizes, "; --top measures fewer at once")
    with trial_ranks(problem.ranks) as ask:
        yield None if ask is None else Measuring(top, partial(_times, ask, clock, show), ready, machine)


def ready(plan: CompressionDecisions) -> str:
    """Why the plan does not run here, empty where it does."""
    if missing := [name for name, each in plan.algorithms.items() if each is None]:
        return f"treadle does not have {' and '.join(missing)}"
    if any("planned@flat" in group.steps for group in plan.groups):
        return "its planned allreduce is not among what is measured"
    return next(iter(check(plan)), "")


def _times(ask: Ask, clock: Clock, show: Callable[[str], None], rows: Rows) -> list[dict[int, Outcome]]:
    show(f"measuring {many(len(rows[0]), 'plan')}")
    return [slowest(ask(_iterations, (tuple(row), end_of(clock)))) for row in rows]


def _iterations(rank: int, world: int, plans: tuple[CompressionDecisions, ...], ends: float) -> list[list[int]]:
    """ns of an iteration under each plan, by round."""
    from treadle.runtime.compression.synthetic import random_gradients

    set_threads(world)
    gradients = random_gradients(plans[0].problem, rank, whole=False)
    made = [_iteration(rank, world, plan, gradients) for plan in plans]
    times = in_turns([call for call, _ in made], ends)
    for _, close in made:
        close()
    return times


def _iteration(
    rank: int, world: int, plan: CompressionDecisions, gradients: list[Tensor]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """What runs an iteration, and what ends it all."""
    from torch.nn.parallel import DistributedDataParallel

    from treadle.runtime.compression.at_once import ExchangeAtOnce
    from treadle.runtime.compression.attached import attach_ddp
    from treadle.runtime.compression.coders import KernelCoders
    from treadle.runtime.compression.synthetic import SyntheticModel

    model, coders = SyntheticModel(plan.problem, gradients), KernelCoders(rank, world)
    if plan.problem.backward_ns:
        hooked = DistributedDataParallel(model)
        exchange = attach_ddp(hooked, plan, coders)
        return partial(_backward, hooked), exchange.close
    at_once = ExchangeAtOnce(dict(model.named_parameters()), plan, coders)

    def iterate() -> None:
        _backward(model)
        at_once()

    return iterate, lambda: None


def _backward(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None
    model().backward()
