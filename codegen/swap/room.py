"""Code generation of swap plans: a step of ours, and what PyTorch and DeepSpeed can follow of it."""

from __future__ import annotations

from typing import Any

from treadle.codegen.interface import GenerationRequest, Made, Target, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.timeline.allocations import Allocations


class SwapTargets(Targets[SwapDecisions]):
    targets = (
        Target("torch-swap"),
        Target("torch-offload"),
        Target("deepspeed", not_run="found a section of a DeepSpeed configuration, which DeepSpeed runs"),
    )
    needs_trace = True

    def generate(self, plan: Plan[SwapDecisions], request: GenerationRequest) -> Made:
        from treadle.codegen.swap import deepspeed, torch_offload, torch_swap

        decisions, trace = plan.decisions, request.trace
        assert trace is not None
        facts: dict[str, Any] = {
            "memory_bytes": decisions.problem.machine.memory_bytes,
            "planned_ns": decisions.time_ns,
            "in_bytes": decisions.in_bytes,
            "out_bytes": decisions.out_bytes,
        }
        if request.target.name == "torch-swap":
            sizes = {"reserve_bytes": decisions.problem.reserve_bytes, "scratch_bytes": decisions.problem.scratch_bytes}
            return Made(torch_swap.generate(plan, trace), facts | sizes, trace.entry)
        if request.target.name == "deepspeed":
            files, offload = deepspeed.generate(decisions, trace)
            carried = {"parameters": offload.parameters._asdict(), "state": offload.state._asdict()}
            return Made(files, {**facts, "carried": carried})
        files, moved = torch_offload.generate(decisions, trace)
        counts = {"moves": len(moved.moves), "bytes": moved.bytes, "planned_copies": moved.planned_copies}
        return Made(files, {**facts, "carried": counts}, trace.entry)

    def timeline(self, plan: Plan[SwapDecisions]) -> Timeline:
        """Operators, and copies in both directions."""
        from treadle.planner.passes.swap.timeline_of import start_bytes, tasks_of
        from treadle.planner.timeline.simulator import simulate

        tasks, resources = tasks_of(plan.decisions)
        return Timeline(tasks, resources, simulate(tasks, resources, start_bytes(plan.decisions)))

    def allocations(self, plan: Plan[SwapDecisions]) -> Allocations:
        from treadle.planner.passes.swap.allocations import allocations

        return allocations(plan.decisions)


ROOM = SwapTargets()
