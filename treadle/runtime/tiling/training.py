"""A model trained under its tiling plan by one process per worker, next to plain PyTorch."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from treadle.capture.load import ModelStep, autocast_to, build_step, load_function
from treadle.codegen.tiling.dtensor import planned_collectives
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.runtime.comparison import difference, largest, relative_tolerance
from treadle.runtime.launch import launch
from treadle.runtime.tiling.collectives import counts_of, unplanned, words
from treadle.runtime.tiling.dispatcher import confirmed
from treadle.runtime.tiling.shard import ShardedModule, sharded
from treadle.runtime.training import loss_of

WARM_STEPS, TIMED_STEPS = 5, 9
"""The first steps wait for the allocator to keep memory that it gave back before."""
LEARNING_RATE = 0.01


def run_model(
    plan: Plan[TilingDecisions],
    text: str,
    entry: str,
    trace: Trace | None,
    *,
    steps: int,
    autocast: str | None = None,
    timeout: float | None = None,
    source: Path | str = ".",
) -> dict[str, Any]:
    """Train `steps` steps of plain SGD twice, from the same seed on the same batches: plain PyTorch on one process, and
    the generated `text` on as many as the mesh has workers.

    Returned: `losses` of both, `difference` of the parameters at the end relative to the largest, `collectives` planned
    and counted on each worker, `time_ns` planned and measured (forward and backward, the slowest worker, median),
    `confirmed` calls and `unknown` operators of DTensor's dispatcher (with a `trace` only), and `findings`, a sentence
    for each promise that did not hold. Raises what `launch` raises, so also where a worker dies.
    """
    world = prod(axis.size for axis in plan.decisions.problem.mesh)
    asked = None if trace is None else (plan.decisions, trace)
    args = (text, entry, str(source), steps, autocast, asked)
    first, *others = launch(world, _worker, args, timeout)
    planned = planned_collectives(plan.decisions)
    findings = [*first["findings"], *unplanned(planned, (first, *others))]
    measured = round(max(each["step_s"] for each in (first, *others)) * 1e9)
    return {
        "world": world,
        "mesh": [axis.size for axis in plan.decisions.problem.mesh],
        "steps": steps,
        "losses": first["losses"],
        "difference": first["difference"],
        "collectives": {"planned": planned, "counted": first["counted"]},
        "moved_bytes": plan.decisions.moved_bytes,
        "time_ns": {"planned": plan.decisions.time_ns, "measured": measured, "plain": round(first["plain_s"] * 1e9)},
        "confirmed": first["confirmed"],
        "unknown": first["unknown"],
        "findings": findings,
    }


def _worker(
    rank: int,
    world: int,
    text: str,
    entry: str,
    source: str,
    steps: int,
    autocast: str | None,
    asked: tuple[TilingDecisions, Trace] | None,
) -> dict[str, Any]:
    function = load_function(entry, source)

    def prepare(at: int) -> ModelStep:
        torch.manual_seed(at)
        return build_step(function, entry)

    batch = prepare(0)
    plain = batch._replace(model=copy.deepcopy(batch.model))
    planned = sharded(batch.model, text, entry)
    optimizers = [torch.optim.SGD(model.parameters(), LEARNING_RATE) for model in (plain.model, planned)]
    losses: dict[str, list[float]] = {"plain": [], "planned": []}
    counted: dict[str, int] = {}

    def one(run: Callable[[], Any]) -> float:
        with autocast_to(autocast, "cpu"):
            loss = loss_of(_whole(run()))
        loss.backward()
        return float(loss.detach())

    for step in range(steps):
        data = prepare(1 + step)
        torch.manual_seed(1 + step)
        losses["plain"].append(one(data._replace(model=plain.model).run))
        torch.manual_seed(1 + step)
        counting = CommDebugMode()
        with counting:
            losses["planned"].append(one(lambda: planned(*data.args, **data.kwargs)))  # noqa: B023
        counted = counts_of(counting)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    findings, difference = _compared(plain.model, planned, losses)
    agreed = None if asked is None else confirmed(*asked, planned.mesh.mesh)
    findings += [] if agreed is None else agreed.findings
    times: dict[str, list[float]] = {"planned": [], "plain": []}
    for name, model, run in (
        ("planned", planned, lambda: planned(*batch.args, **batch.kwargs)),
        ("plain", plain.model, plain.run),
    ):
        for _ in range(WARM_STEPS + TIMED_STEPS):
            model.zero_grad()
            distributed.barrier()
            start = time.perf_counter()
            one(run)
            times[name].append(time.perf_counter() - start)
    return {
        "losses": losses,
        "difference": difference,
        "counted": counted,
        "confirmed": 0 if agreed is None else agreed.calls,
        "unknown": [] if agreed is None else list(agreed.unknown),
        "findings": findings,
        "step_s": statistics.median(times["planned"][WARM_STEPS:]),
        "plain_s": statistics.median(times["plain"][WARM_STEPS:]),
    }


def _whole(output: Any) -> Any:
    """What a step returns with whole tensors in the place of DTensors."""
    if isinstance(output, DTensor):
        return output.full_tensor()
    if isinstance(output, tuple | list):
        return [_whole(each) for each in output]
    return output


@torch.no_grad()
def _compared(
    plain: torch.nn.Module, planned: ShardedModule, losses: dict[str, list[float]]
) -> tuple[list[str], float]:
    """Findings, and the largest difference of a parameter or buffer, relative to its largest value."""
    tolerance = relative_tolerance(plain.parameters(), narrow=False)
    found = []
    for step, (a, b) in enumerate(zip(losses["plain"], losses["planned"], strict=True)):
        if not abs(a - b) <= tolerance * abs(a):
            found.append(f"the loss of step {step + 1} is {b:.8g}, plain PyTorch's is {a:.8g}")
    state = planned.state_dict()
    worst = 0.0
    for name, wanted in plain.state_dict().items():
        tensor = state[name]
        whole = planned.mesh.whole(tensor.to_local(), words(tensor.placements))
        gap = difference(whole, wanted) / (largest(wanted) or 1.0)
        worst = max(worst, gap)
        if not gap <= tolerance:
            found.append(f"{name} differs from plain PyTorch's by {gap:.3g} of its largest value")
    return found[:5], worst
