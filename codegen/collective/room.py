"""Code generation of collective plans: MSCCL XML, MSCCL++ plans, CUDA kernels, a tuner file for NCCL."""

from __future__ import annotations

from treadle.codegen.interface import GenerationRequest, Made, Target, Targets, Timeline
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.collective.algorithm import CollectiveDecisions


class CollectiveTargets(Targets[CollectiveDecisions]):
    targets = (Target("msccl-xml", runtimes=True), Target("mscclpp-json"), Target("cuda"))
    selection_targets = (*targets, Target("nccl-tuner"))
    carries_inputs = True

    def generate(self, plan: Plan[CollectiveDecisions], request: GenerationRequest) -> Made:
        from treadle.codegen.collective.fitting import fitted
        from treadle.codegen.collective.simulate_program import simulate_program

        decisions, runtime = plan.decisions, request.runtime
        made = fitted(decisions, request.plan_file, request.target.name, runtime)
        facts = {
            "collective": decisions.collective,
            "ranks": decisions.ranks,
            "input_bytes": decisions.input_bytes,
            "planned_ns": decisions.makespan_ns,
            "simulated_ns": {
                f"{name}.xml": simulate_program(program, decisions).schedule.makespan
                for name, program in made.programs.items()
            },
            **({"runtime": runtime} if runtime else {}),
            **({"channels_of_instance": made.lanes} if made.lanes > 1 else {}),
            **({"instances": made.instances} if made.instances < decisions.instances else {}),
        }
        return Made(made.texts, facts)

    def collective(self, plan: Plan[CollectiveDecisions]) -> Plan[CollectiveDecisions]:
        return plan

    def timeline(self, plan: Plan[CollectiveDecisions]) -> Timeline:
        """Messages on links and ports, as the out-of-place program sends them; the steps at their ends take no time.
        For what switches do, the steps of the plan by rank."""
        from treadle.codegen.collective.lower import lower
        from treadle.codegen.collective.simulate_program import simulate_program
        from treadle.codegen.collective.switched import switched_timeline
        from treadle.planner.timeline.simulator import Resource, Schedule, Task

        if plan.decisions.switched:
            return switched_timeline(plan.decisions)
        program = lower(plan.decisions)
        simulation = simulate_program(program, plan.decisions)
        first = sum(1 for _ in program.steps())
        schedule = simulation.schedule
        tasks = tuple(
            Task(task.name, task.duration, task.resources, held=task.held) for task in simulation.tasks[first:]
        )
        return Timeline(
            tasks,
            tuple(Resource(resource.name) for resource in simulation.resources),
            Schedule(schedule.start[first:], schedule.end[first:], schedule.makespan, {}, {}),
        )


ROOM = CollectiveTargets()
