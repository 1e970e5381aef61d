"""Code generation of memory plans: PyTorch modules, and directions for PyTorch's own checkpointing and compiler."""

from __future__ import annotations

from typing import Any, assert_never

from treadle.codegen.interface import MEMORY, STREAM, GenerationRequest, Made, Target, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.problem import RESERVE
from treadle.planner.timeline.allocations import Allocations


class MemoryTargets(Targets[MemoryDecisions]):
    targets = (
        Target("torch", over_budget="the plan's own peak"),
        Target("torch-sac", over_budget="selective checkpointing computes a whole region again at once"),
        Target(
            "torch-compile",
            over_budget="a compiled step computes each value again once and keeps it until its last use",
        ),
    )
    needs_trace = True

    def generate(self, plan: Plan[MemoryDecisions], request: GenerationRequest) -> Made:
        from treadle.codegen.memory import torch_compile, torch_module, torch_sac

        decisions, trace = plan.decisions, request.trace
        assert trace is not None
        reserve = decisions.problem.base.get(RESERVE, 0)
        facts: dict[str, Any] = {
            "budget_bytes": decisions.problem.budget_bytes - reserve,
            **({"reserve_bytes": reserve} if reserve else {}),
            "planned_ns": decisions.objective_ns,
            "store_all_peak_bytes": decisions.store_all_peak_bytes - reserve,
            **({"autocast": trace.autocast} if trace.autocast else {}),
            **({"narrow": True} if trace.narrow else {}),
            **({"measured_on": trace.costs.device} if trace.costs.model == "measured" else {}),
        }
        if request.target.name == "torch-sac":
            files, chosen = torch_sac.generate(decisions, trace)
            predicted = chosen.predicted
        elif request.target.name == "torch-compile":
            files, split = torch_compile.generate(decisions, trace)
            predicted = split.predicted
        else:
            facts["predicted_bytes"] = decisions.exact_peak_bytes - reserve
            return Made(torch_module.generate(plan, trace), facts, trace.entry)
        facts |= {"planned_ns": predicted.time_ns, "predicted_bytes": predicted.peak_bytes - reserve}
        return Made(files, facts, trace.entry)

    def timeline(self, plan: Plan[MemoryDecisions]) -> Timeline:
        """One stream of operators with the bytes in use."""
        from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward
        from treadle.planner.passes.memory.simulate import moments
        from treadle.planner.timeline.simulator import Resource, Task, simulate

        decisions = plan.decisions
        problem = decisions.problem
        tasks = []
        again = False
        for place, (instruction, moment) in enumerate(
            zip(decisions.program, moments(problem, decisions.program), strict=True)
        ):
            match instruction:
                case EnterStage(k):
                    again, duration = k <= len(problem.bwd), 0
                case RunForward(node, impl, inplace):
                    duration = problem.fwd[node].time(impl, again, inplace)
                case RunBackward(node, impl):
                    duration = problem.bwd[node].impls[impl].time_ns
                case Drop():
                    duration = 0
                case _:
                    assert_never(instruction)
            held = (MEMORY, moment.activations + moment.gradients + moment.workspace)
            after = (place - 1,) if place else ()
            tasks.append(Task(moment.label, duration, (STREAM,), after, alloc=(held,), free=(held,)))
        resources = (Resource(STREAM),)
        return Timeline(tuple(tasks), resources, simulate(tasks, resources, {MEMORY: problem.base_bytes}))

    def allocations(self, plan: Plan[MemoryDecisions]) -> Allocations:
        from treadle.planner.passes.memory.allocations import allocations

        return allocations(plan.decisions)


ROOM = MemoryTargets()
