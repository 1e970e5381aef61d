"""What a training step takes on the processes that will run it: work of each call, and a fixed time of every call.

All processes compute the step at once, for they share the cores and the memory of one machine: a step that is not cut,
by the engine itself, and in turns with it the calls of its trace, one after another, each timed. What the engine takes
beyond the calls' own times is spread evenly over them: Python, checks of tiles, DTensors of parameters and gradients.
Where processes outnumber cores some end later than others; transfers wait for the last, so its time counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import psutil
import torch
from msgspec.structs import replace
from torch import Tensor, distributed, nn

from treadle.capture.costs.in_step import StepPasses
from treadle.host.cores import cores
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.liveness import sweep
from treadle.planner.passes.tiling.problem import MeshAxis, TilingProblem
from treadle.runtime.launch import launch
from treadle.runtime.planned_step import names_of
from treadle.runtime.tiling.measured import SIZES, agreed, axes_of, axis_points
from treadle.runtime.tiling.shard import TARGET, ShardedModule, sharded
from treadle.runtime.training import loss_of

WARM_ROUNDS, ROUNDS, FEWEST_ROUNDS = 2, 9, 3
MOST_SECONDS = 8.0
"""For all rounds after the first ones."""
ALONE_ROUNDS = 3
SMALL_CALLS = 200
SCALE = 0.02
"""The size of random weights, so that values stay small from layer to layer."""
HEADROOM = 3
"""Times the step's own peak that each process has to have: its values, those of the passes, and what is left over."""


@dataclass(frozen=True)
class MeasuredStep:
    """Times in ns. `work_ns` is by op, without the `call_ns` that every call takes. `step_ns` is a step that is not
    cut, where all processes compute it at once, `alone_ns` where one does."""

    axes: tuple[MeshAxis, ...]
    work_ns: Mapping[str, int]
    call_ns: int
    step_ns: int
    alone_ns: int

    @property
    def contention(self) -> str:
        """How much processes slow each other down, in words."""
        world = prod(axis.size for axis in self.axes)
        return (
            f"measured on {many(cores(), 'core')}: an uncut step takes {format_time(self.step_ns)} on "
            f"{world} processes at once, {self.step_ns / self.alone_ns:.2f} times what one takes while others wait; "
            f"each call costs {format_time(self.call_ns)} besides its work"
        )

    def priced(self, problem: TilingProblem) -> TilingProblem:
        """`problem` with these costs."""
        nodes = tuple(replace(node, work_ns=self.work_ns.get(node.id, node.work_ns)) for node in problem.nodes)
        return replace(problem, mesh=self.axes, nodes=nodes, call_ns=self.call_ns)


def measured_step(trace: Trace, sizes: Sequence[int], text: str, nodes: int) -> MeasuredStep:
    """The costs of a step on a mesh of these sizes, of `nodes` in its problem, whose generated `text` cuts nothing.

    Raises InputError for a step that needs more memory than there is, and what `launch` raises."""
    world = prod(sizes)
    needed, free = HEADROOM * world * sweep(trace).peak, psutil.virtual_memory().available
    if needed > free:
        found = (
            f"{world} processes need about {format_bytes(needed)} to measure the step, {format_bytes(free)} are free"
        )
        raise InputError(f"{found}; give --hardware", where="--measure")
    bare = replace(trace, ops=tuple(replace(op, implementations=()) for op in trace.ops))
    reports = launch(world, _worker, (tuple(sizes), bare, text))
    ops = {op: statistics.mean(each["ops_s"][op] for each in reports) for op in reports[0]["ops_s"]}
    step_s = statistics.mean(each["step_s"] for each in reports)
    first = reports[0]
    work, call_s = split(ops, first["small_s"], step_s, nodes)
    late = 1e9 * first["slowest_s"] / step_s
    return MeasuredStep(
        axes_of(sizes, first["points"]),
        {op: round(seconds * late) for op, seconds in work.items()},
        round(call_s * late),
        round(step_s * late),
        round(first["alone_s"] * 1e9),
    )


def split(ops: Mapping[str, float], small_s: float, step_s: float, nodes: int) -> tuple[dict[str, float], float]:
    """The work of each call, and what each of the `nodes` of a problem takes besides, which add up to `step_s`. Of a
    call's time in `ops`, what a call on one element takes is no work."""
    work = {op: max(0.0, seconds - small_s) for op, seconds in ops.items()}
    total = sum(work.values())
    scale = min(1.0, step_s / total) if total else 1.0
    return {op: seconds * scale for op, seconds in work.items()}, max(0.0, step_s - total) / nodes


def _worker(rank: int, world: int, sizes: tuple[int, ...], trace: Trace, text: str) -> dict[str, Any]:
    points = axis_points(sizes, SIZES)
    module = sharded(_stand_in(text, trace.name), text, trace.name)
    inputs = [_random(*each) for each in module.step.inputs]
    calls = StepPasses(trace, "cpu", {})
    rounds: list[float] = []
    warm = dict.fromkeys(calls.samples, 0)
    end = 0.0
    while not agreed(_enough(len(rounds), end)):
        if len(rounds) == WARM_ROUNDS:
            warm = {kind: len(times[0]) for kind, times in calls.samples.items()}
            end = time.monotonic() + MOST_SECONDS
        rounds.append(_step_seconds(module, inputs))
        distributed.barrier()
        with torch.no_grad():
            calls.once()
    slowest = torch.tensor(rounds[WARM_ROUNDS:])
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    alone = [_step_seconds(module, inputs) for _ in range(ALONE_ROUNDS)] if rank == 0 else [0.0]
    means = {kind: statistics.mean(times[0][warm[kind] :]) / 1e9 for kind, times in calls.samples.items()}
    return {
        "points": points,
        "ops_s": {op.id: means[calls.kinds[op.id]] for op in trace.ops},
        "small_s": _small_call(),
        "step_s": statistics.mean(rounds[WARM_ROUNDS:]),
        "slowest_s": statistics.median(slowest.tolist()),
        "alone_s": statistics.median(alone),
    }


def _enough(rounds: int, end: float) -> bool:
    measured = rounds - WARM_ROUNDS
    return measured >= ROUNDS or (measured >= FEWEST_ROUNDS and time.monotonic() > end)


def _step_seconds(module: ShardedModule, inputs: Sequence[Tensor]) -> float:
    """What a forward and a backward pass take."""
    module.zero_grad()
    start = time.perf_counter()
    loss_of(module.of_inputs(inputs)).backward()
    return time.perf_counter() - start


def _small_call() -> float:
    """What a call on one element takes."""
    one, times = torch.ones(1), []
    for _ in range(SMALL_CALLS):
        start = time.perf_counter()
        torch.ops.aten.neg.default(one)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _stand_in(text: str, name: str) -> nn.Module:
    """A module with the parameters and buffers of a step and random values."""
    names = names_of(TARGET, text, name)
    root = nn.Module()
    for places, kind in ((names["PARAMETERS"], nn.Parameter), (names["BUFFERS"], None)):
        for path, (dtype, shape) in places.items():
            tensor, (parent, _, last) = _random(dtype, shape), path.rpartition(".")
            if kind is None:
                _module(root, parent).register_buffer(last, tensor)
            else:
                trained = path not in names["FROZEN"]
                _module(root, parent).register_parameter(last, nn.Parameter(tensor.mul_(SCALE), trained))
    for path in names["EVALUATING"]:
        _module(root, path).training = False
    return root


def _module(root: nn.Module, path: str) -> nn.Module:
    """The module at `path`, made if it is missing."""
    for part in path.split(".") if path else ():
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root


def _random(dtype: str, shape: Sequence[int], stride: Sequence[int] | None = None) -> Tensor:
    """Numbers between 0 and 1; zeros, which are valid indices, for integers."""
    whole = torch.zeros(tuple(shape), dtype=getattr(torch, dtype))
    if stride is not None:
        whole = torch.empty_strided(tuple(shape), tuple(stride), dtype=whole.dtype).copy_(whole)
    return whole.uniform_() if whole.is_floating_point() else whole
