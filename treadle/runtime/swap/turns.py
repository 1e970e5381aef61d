"""Swap plans of one step timed in turns, on an emulation of the machine that they are for.

A round runs one iteration of every plan, so that a machine that slows down slows them all. All are emulated at one
pace, which is that of the slowest operators here.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from treadle.capture.load import ModelStep, build_step, load_function
from treadle.codegen.swap.torch_swap import FILE_NAME, generate
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.liveness import sweep
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.search.clock import Clock
from treadle.planner.search.in_turns import Measuring
from treadle.planner.search.top import Outcome
from treadle.runtime.comparison import equal_bits
from treadle.runtime.swap.compare import EMULATED, SLOWER, TIMEOUT, Unconstrained
from treadle.runtime.swap.cpu import Threads
from treadle.runtime.swap.emulation import Emulation
from treadle.runtime.swap.step import SwapStep, load_swap_step
from treadle.runtime.swap.swapped import SwappedStep
from treadle.runtime.trial_ranks import WHERE, require_memory

ROUNDS = 3
SEED = 0
WRONG = "its values differ from those of a run without a limit on memory"

SwapPlan = Plan[SwapDecisions]
Build = partial[ModelStep]


def swap_measuring(top: int, trace: Trace, clock: Clock, source: Path | str = ".") -> Measuring[SwapPlan]:
    """Measures the `top` plans of least simulated time; once `clock` has run out no further one is begun after the
    first, and no further round. The model comes from the trace's entry MODULE:FUNCTION, looked for in `source`.

    Raises InputError for a trace without an entry, where there is no such function, and for a step that this machine
    cannot hold.
    """
    if trace.entry is None:
        text = (
            "found a trace without MODULE:FUNCTION of its model, which is run; expected one of `treadle trace capture`"
        )
        raise InputError(text, where=WHERE)
    load_function(trace.entry, source)
    require_memory(sweep(trace).peak)
    times = partial(times_of, trace=trace, entry=trace.entry, clock=clock, source=source)
    return Measuring(top, lambda rows: [times(row) for row in rows], partial(ready, trace))


def ready(trace: Trace, plan: SwapPlan) -> str:
    """Why the plan has no program, empty where it has one."""
    try:
        generate(plan, trace)
    except InputError as error:
        return str(error)
    return ""


class _Running(NamedTuple):
    decisions: SwapDecisions
    step: SwappedStep
    inputs: tuple[Tensor, ...]
    right: bool
    """Whether its first iteration had the values of one without a limit."""
    operators_ns: int
    """What its operators take here."""


def times_of(
    plans: Sequence[SwapPlan], *, trace: Trace, entry: str, clock: Clock, source: Path | str = "."
) -> Mapping[int, Outcome]:
    """By place in `plans`: the median ns of an iteration, as far as the time goes.

    Raises InputError where this machine has no memory for them, and for an operator that raises.
    """
    steps = [load_swap_step(generate(plan, trace)[FILE_NAME]) for plan in plans]
    require_memory(bytes_of(steps), "; --top measures fewer at once")
    build = partial(build_step, load_function(entry, source), entry)
    expected = unconstrained(steps[0], build)
    running: list[_Running] = []
    for step, plan in zip(steps, plans, strict=True):
        if running and clock.over():
            break
        running.append(begun(step, plan.decisions, build, expected))
    pace = max(pace_of(each) for each in running)
    for each in running:
        emulate(each, pace)
    times: list[list[int]] = [[] for _ in running]
    for number in range(ROUNDS):
        for turn in range(len(running)):
            at = (number + turn) % len(running)  # another one is the first in each round
            if number and clock.over():
                continue
            times[at].append(iteration_ns(running[at]))
    return {
        at: Outcome(max(1, round(statistics.median(taken) / pace)), "" if each.right else WRONG)
        for at, (each, taken) in enumerate(zip(running, times, strict=True))
    }


def begun(step: SwapStep, decisions: SwapDecisions, build: Build, expected: Sequence[Tensor]) -> _Running:
    """The step on a model of its own, after one iteration in which every place is overwritten as soon as it is given
    up, and one that shows what operators take."""
    swapped = SwappedStep(_model(step, build), step, "cpu", poison=True, timeout=TIMEOUT)
    inputs = _inputs(build)
    outputs, _ = swapped.run(*inputs)
    right = all(equal_bits(one, other) for one, other in zip(outputs, expected, strict=True))
    swapped.poison = swapped.runner.poison = False
    each = _Running(decisions, swapped, inputs, right, 0)
    iteration_ns(each)
    spans = swapped.spans
    assert spans is not None
    computing = (at for at, node in enumerate(step.nodes) if node.kind == "compute")
    return each._replace(operators_ns=sum(spans.end[at] - spans.start[at] for at in computing))


def unconstrained(step: SwapStep, build: Build) -> list[Tensor]:
    """The outputs of the first iteration without a limit on memory."""
    free = Unconstrained(step, _model(step, build), torch.device("cpu"))
    return free.run(_inputs(build))[0]


def _inputs(build: Build) -> tuple[Tensor, ...]:
    """The same ones each time; the step that follows draws the same random numbers."""
    torch.manual_seed(SEED + 1)
    inputs = build().inputs
    torch.manual_seed(SEED + 1)
    return inputs


def _model(step: SwapStep, build: Build) -> nn.Module:
    torch.manual_seed(SEED)
    model = build().model
    return model if step.training else model.eval()


def iteration_ns(each: _Running) -> int:
    """Runs one iteration."""
    each.step.run(*each.inputs, timed=True)
    assert each.step.spans is not None
    return each.step.spans.makespan_ns


def pace_of(each: _Running) -> float:
    """How slow the emulated machine has to be so that it is what is measured."""
    ideal = max(each.decisions.problem.ideal_ns, 1)
    return max(EMULATED * 1e9 / max(each.decisions.time_ns, 1), SLOWER * each.operators_ns / ideal)


def emulate(each: _Running, pace: float) -> None:
    """Let operators and copies take their planned times, at this pace."""
    problem, runner = each.decisions.problem, each.step.runner
    assert isinstance(runner, Threads)
    runner.emulation = Emulation(problem.machine, {op.id: op.time_ns for op in problem.ops}, pace)


def bytes_of(steps: Sequence[SwapStep]) -> int:
    """What the steps need: each has an arena, what it copies out and a model, next to one run without a limit."""
    needed = sum(step.arena_bytes + 2 * sum(step.storages[name].bytes for name in step.host) for step in steps)
    return needed + max(sum(storage.bytes for storage in step.storages.values()) for step in steps)
