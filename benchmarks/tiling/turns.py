"""Planned placements of a transformer and those written by hand, run in turns by the processes of one group.

Each process measures what transfers and calls cost while all others do; the first plans with that, and all train.
Started on hosts of a lab by `python -m benchmarks.tiling.turns SIZE`, or by `launch` on this machine.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, TypeVar, cast

import torch
from msgspec.structs import replace
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from benchmarks.tiling import transformer
from treadle.capture.costs.measuring import with_measured
from treadle.capture.graph import capture
from treadle.codegen.tiling.dtensor import planned_collectives
from treadle.codegen.tiling.dtensor_model import step_text
from treadle.passes.tiling.extract import ModelTiling, problem_of_trace
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.planner.passes.tiling.planning import plan_tiling
from treadle.planner.passes.tiling.problem import ArrayTiling, MeshAxis, TilingProblem
from treadle.planner.search.clock import Clock
from treadle.runtime.tiling.measured import axes_of, axis_points
from treadle.runtime.tiling.shard import sharded

MESHES = ((4,), (2, 2))
LENGTHS = (4 * 1024, 64 * 1024, 512 * 1024, 2 * 1024 * 1024)
"""Bytes of the transfers that are measured."""
SETTLE, TURNS = 1, 5
PLAN_SECONDS = 8.0
MEMORY_SHARE = 0.5
"""Of what a worker would hold of a step that is not cut, what it may hold under the plan."""
Call = Callable[[], Tensor]
T = TypeVar("T")


def measured(size: str) -> dict[str, Any]:
    """Seconds of a step by placement, predicted seconds of those that are plans, losses, and the plans' figures."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, (tokens, targets), loss = transformer.step(transformer.SIZES[size])
    trace = with_times(
        capture(lambda: (model, (tokens, targets), loss), f"transformer, {size}"), model, tokens, targets
    )
    meshes = [axes_of(mesh, axis_points(mesh, LENGTHS)) for mesh in MESHES]
    alone = by_first(lambda: uncut(trace, meshes[0]))
    called = sharded(copy.deepcopy(model), step_text(alone, trace), "uncut")
    beyond = in_turns({"uncut": partial(called, tokens, targets)})[0]["uncut"] - alone.time_ns / 1e9
    call_ns = max(0, round(1e9 * beyond / len(alone.problem.nodes)))
    memory_bytes = round(MEMORY_SHARE * alone.memory_bytes)
    made = by_first(lambda: with_texts(trace, plans(trace, meshes, call_ns, memory_bytes)))
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    mine = [part.chunk(mesh.size())[mesh.get_rank()] for part in (tokens, targets)]
    whole, calls = [tokens, targets], dict[str, Call]()
    for name, (_, text) in made.items():
        planned = sharded(copy.deepcopy(model), text, name)
        calls[name] = partial(planned, *whole)
    by_hand = {name: copy.deepcopy(model) for name in ("Megatron", "FSDP2", "DDP")}
    calls["Megatron"] = partial(loss, transformer.megatron(by_hand["Megatron"], mesh), *whole)
    calls["FSDP2"] = partial(loss, transformer.fsdp2(by_hand["FSDP2"], mesh), *mine)
    calls["DDP"] = partial(loss, DistributedDataParallel(by_hand["DDP"]), *mine)
    seconds, losses = in_turns(calls)
    return {
        "seconds": seconds,
        "losses": {**losses, "one process": float(loss(model, *whole).detach())},
        "predicted": {name: plan.time_ns / 1e9 for name, (plan, _) in made.items()},
        "work": {name: sum(each.work_ns for each in plan.problem.nodes) / 1e9 for name, (plan, _) in made.items()},
        "memory": {name: plan.memory_bytes for name, (plan, _) in made.items()},
        "moved": {name: plan.moved_bytes for name, (plan, _) in made.items()},
        "mesh": {name: [axis.size for axis in plan.problem.mesh] for name, (plan, _) in made.items()},
        "collectives": {name: planned_collectives(plan) for name, (plan, _) in made.items()},
        "weights": {name: weights_of(plan) for name, (plan, _) in made.items()},
        "call_us": call_ns / 1e3,
        "axes": [[(cost.transfer, cost.alpha_ns, cost.rate) for cost in axes[0].costs] for axes in meshes],
    }


def with_times(trace: Trace, model: nn.Module, tokens: Tensor, targets: Tensor) -> Trace:
    """The trace with times of its calls, measured while all processes measure theirs, and scaled so that they add up
    to what the step takes then."""
    distributed.barrier()
    timed = with_measured(trace)
    seconds, _ = in_turns({"one process": partial(transformer.loss_of_tokens, model, tokens, targets)})
    model.zero_grad()
    scale = seconds["one process"] * 1e9 / sum(op.time_ns or 0 for op in timed.ops)
    return replace(timed, ops=tuple(replace(op, time_ns=round((op.time_ns or 0) * scale)) for op in timed.ops))


def with_texts(trace: Trace, made: Mapping[str, TilingDecisions]) -> dict[str, tuple[TilingDecisions, str]]:
    """Each plan and its generated step."""
    return {name: (plan, step_text(plan, trace)) for name, plan in made.items()}


def by_first(make: Callable[[], T]) -> T:
    """What the first process makes, on all of them."""
    made: list[Any] = [make() if distributed.get_rank() == 0 else None]
    distributed.broadcast_object_list(made)
    return cast("T", made[0])


def uncut(trace: Trace, axes: tuple[MeshAxis, ...]) -> TilingDecisions:
    """Every worker computes all of the step; what that takes beyond its calls is what the engine takes of each."""
    problem = problem_of_trace(trace, ModelTiling(axes, "time")).problem
    return _planned(_with_tilings(problem, {array.id: ("R",) for array in problem.arrays}))


def plans(
    trace: Trace, meshes: Sequence[tuple[MeshAxis, ...]], call_ns: int, memory_bytes: int
) -> dict[str, TilingDecisions]:
    """The best plan on any of the meshes within a memory; on the first mesh, with any memory, also the best plans with
    the weights of placements by hand."""
    setups = [ModelTiling(axes, "time") for axes in meshes]
    problems = [replace(problem_of_trace(trace, setup).problem, call_ns=call_ns) for setup in setups]
    limited = [_planned(replace(problem, memory_bytes=memory_bytes)) for problem in problems]
    return {
        "planned": min(limited, key=lambda plan: plan.time_ns),
        "planned, Megatron's weights": _planned(with_weights(problems[0], megatron_weight)),
        "planned, whole weights": _planned(with_weights(problems[0], lambda _: ("R",))),
    }


def _planned(problem: TilingProblem) -> TilingDecisions:
    return plan_tiling(problem, clock=Clock.of(PLAN_SECONDS)).decisions


def megatron_weight(name: str) -> ArrayTiling:
    """How Megatron-style tensor parallelism cuts a parameter of the transformer."""
    layer, _, kind = name.rpartition(".")
    last = layer.rpartition(".")[2]
    if last in ("query", "key", "value", "expand", "embedding") or layer == "output":
        return ("S0",)
    if layer.endswith(("attention.output", "contract")) and kind == "weight":
        return ("S1",)
    return ("R",)


def with_weights(problem: TilingProblem, tiling: Callable[[str], ArrayTiling]) -> TilingProblem:
    """The problem with a fixed tiling for each parameter, of its name in the model."""
    parameters = [node for node in problem.nodes if node.function == "parameter"]
    return _with_tilings(problem, {node.outputs[0]: tiling(str(node.params["name"])) for node in parameters})


def _with_tilings(problem: TilingProblem, tilings: Mapping[str, ArrayTiling]) -> TilingProblem:
    arrays = tuple(replace(array, fixed=tilings.get(array.id)) for array in problem.arrays)
    return replace(problem, arrays=arrays)


def weights_of(plan: TilingDecisions) -> dict[str, int]:
    """How many parameters have which tiling."""
    tilings = {array.id: tiling for array, tiling in zip(plan.problem.arrays, plan.tilings, strict=True)}
    counts: dict[str, int] = {}
    for node in plan.problem.nodes:
        if node.function == "parameter":
            word = ",".join(tilings[node.outputs[0]])
            counts[word] = counts.get(word, 0) + 1
    return counts


def in_turns(calls: dict[str, Call]) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of a step by name, of the slowest process, and the first loss, averaged over the processes."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    losses: dict[str, float] = {}
    for turn in range(SETTLE + TURNS):
        for name, call in calls.items():
            distributed.barrier()
            start = time.perf_counter()
            loss = call()
            loss.backward()
            spent = torch.tensor([time.perf_counter() - start, 0.0])
            distributed.all_reduce(spent[:1], distributed.ReduceOp.MAX)
            if turn >= SETTLE:
                times[name].append(float(spent[0]))
            if not turn:
                value = loss.detach().reshape(1).clone()
                distributed.all_reduce(value)
                losses[name] = float(value) / distributed.get_world_size()
    return {name: median(each) for name, each in times.items()}, losses


def worker(rank: int, world: int, size: str) -> dict[str, Any]:
    """For `launch`."""
    return measured(size)


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    printed = measured(sys.argv[1])
    if distributed.get_rank() == 0:
        print(json.dumps(printed))
    distributed.destroy_process_group()
