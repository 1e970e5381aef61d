"""The server pass as a record: its checks, its bound, its figures."""

from __future__ import annotations

from treadle.planner.documents.difference import Change, changed, fields_changed
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.documents.server_parts import ServerParts
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.interface import Figures, Inputs, Pass, Rebound, problem_changes
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.job import ServerJob
from treadle.planner.passes.server.keys import ServerKeys
from treadle.planner.passes.server.price_list import ServerPrices
from treadle.planner.passes.server.problem import ServerProblem


class ServerPass(Pass[ServerDecisions]):
    name = "server"
    system = "PHub and PBox"
    decisions = ServerDecisions
    job = ServerJob | None
    roles = {
        "keys": ServerKeys,
        "trace": Trace,
        "hardware": Hardware,
        "parts": ServerParts,
        "prices": ServerPrices,
        "problem": ServerProblem,
    }
    needs_costs = True
    documents = (ServerKeys, ServerPrices, ServerProblem)

    def check(self, decisions: ServerDecisions) -> list[str]:
        from treadle.planner.passes.server.check import sound

        return sound(decisions)

    def inconsistent(self, decisions: ServerDecisions) -> list[str]:
        """Where another map is more even: at the rates of another day that does not make a plan wrong."""
        from treadle.planner.passes.server.check import uneven

        return uneven(decisions)

    def figures(self, decisions: ServerDecisions) -> Figures:
        return Figures(decisions.time_ns)

    def describe(self, decisions: ServerDecisions) -> str:
        problem = decisions.problem
        servers, workers = many(problem.servers, "server"), many(problem.workers, "worker")
        return f"server plan of {many(len(problem.keys), 'key')} on {servers} for {workers}"

    def check_inputs(self, plan: Plan[ServerDecisions], found: Inputs) -> list[str]:
        """Differences between the plan's problem and what its inputs say now."""
        now = _problem(plan, found)
        return [] if now is None else problem_changes(plan.decisions.problem, now, now.__struct_fields__)

    def differences(self, before: ServerDecisions, after: ServerDecisions) -> list[Change]:
        """Choices, what the slowest part is, and how many chunks another core handles."""
        from treadle.planner.passes.server.balance import bottleneck

        found = fields_changed(before.problem, after.problem, ("workers", "servers", "mode", "carrier", "optimizer"))
        found += fields_changed(before, after, ("policy", "engine", "aggregator", "two_level", "chunk_bytes"))
        names = [None if part is None else part.part for part in map(bottleneck, (before, after))]
        found += changed("bottleneck", *names)
        places = [[slot for key in each.places for slot in key] for each in (before, after)]
        if len(places[0]) != len(places[1]):
            found += changed("chunks", len(places[0]), len(places[1]))
        elif moved := sum(one != two for one, two in zip(*places, strict=True)):
            found.append(Change("map", f"{many(moved, 'chunk')} of {len(places[0])} on other cores", None, moved))
        return found + fields_changed(before, after, ("time_ns", "iteration_ns", "most_workers", "server_bytes"))

    def today(self, plan: Plan[ServerDecisions], found: Inputs) -> ServerDecisions | None:
        """The plan's map at the rates, costs and times of today; keys and cards must be the same."""
        from treadle.planner.passes.server.same_map import with_problem

        now = _problem(plan, found)
        return None if now is None else with_problem(plan.decisions, now)

    def rebound(self, plan: Plan[ServerDecisions], found: Inputs) -> Rebound:
        from treadle.planner.passes.server.bound import least_ns

        bound, claimed = least_ns(plan.decisions.problem), plan.certificate.lower_bound
        if claimed > bound:
            return Rebound([f"certificate: lower bound {claimed:g} ns, the problem proves only {bound} ns"], bound)
        return Rebound([], bound)


def _problem(plan: Plan[ServerDecisions], found: Inputs) -> ServerProblem | None:
    """The problem that the inputs describe, with servers used as in the plan; None where they do not suffice."""
    from treadle.planner.passes.server.extract import problem_again

    missing = any(role not in found for role in plan.inputs)
    return None if missing else problem_again(plan.decisions.problem, found)


PASS = ServerPass()
