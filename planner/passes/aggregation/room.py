"""The pass of aggregation as a record: its checks, its figures, how plans differ."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.difference import Change, abridged, changed, fields_changed
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.machine.host_costs import Repair, as_mended
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.planner.passes.aggregation.job import AggregationJob
from treadle.planner.passes.aggregation.problem import AggregationProblem
from treadle.planner.passes.interface import Figures, Inputs, Pass, Rebound, problem_changes


class AggregationPass(Pass[AggregationDecisions]):
    name = "aggregation"
    system = "PLink"
    decisions = AggregationDecisions
    job = AggregationJob | None
    roles = {"costs": CostMatrix, "problem": AggregationProblem}
    documents = (AggregationProblem,)

    def check(self, decisions: AggregationDecisions) -> list[str]:
        from treadle.planner.passes.aggregation.check import check

        return check(decisions)

    def figures(self, decisions: AggregationDecisions) -> Figures:
        return Figures(decisions.time_ns)

    def describe(self, decisions: AggregationDecisions) -> str:
        hosts = many(len(decisions.problem.hosts), "host")
        if decisions.levels == 1:
            return f"aggregation plan of {hosts}, flat"
        return f"aggregation plan of {hosts} in {many(len(decisions.groups), 'group')}"

    def check_inputs(self, plan: Plan[AggregationDecisions], found: Inputs) -> list[str]:
        """Differences between the plan's problem and what its inputs say now."""
        now = _problem(plan, found)
        return [] if now is None else problem_changes(plan.decisions.problem, now, now.__struct_fields__)

    def differences(self, before: AggregationDecisions, after: AggregationDecisions) -> list[Change]:
        found = []
        if before.levels != after.levels:
            found.append(Change("levels", f"{before.levels} -> {after.levels}", before.levels, after.levels))
        names = [_group_names(each) for each in (before, after)]
        if names[0] != names[1]:
            moved = sorted({name for name in names[0].keys() & names[1].keys() if names[0][name] != names[1][name]})
            others = f"{many(len(moved), 'host')} near others ({abridged(moved)})" if moved else "other hosts"
            sizes = f"{len(before.near)} -> {len(after.near)}"
            found.append(Change("groups", f"{sizes}, {others}", len(before.near), len(after.near)))
        if len(before.chunks) != len(after.chunks):
            found += changed("chunks", len(before.chunks), len(after.chunks))
        else:
            pairs = [*zip(before.chunks, after.chunks, strict=True)]
            for what in ("top", "local"):
                if other := sum(getattr(one, what) != getattr(two, what) for one, two in pairs):
                    word = "global" if what == "top" else "local"
                    found.append(Change(f"{word} masters", f"others of {many(other, 'chunk')}", None, other))
        return found + fields_changed(before, after, ("total_bytes", "across_bytes", "time_ns"))

    def today(self, plan: Plan[AggregationDecisions], found: Inputs) -> AggregationDecisions | None:
        """The plan's groups and masters at the costs of today; the hosts must be the same."""
        from treadle.planner.passes.aggregation.candidates import rivals
        from treadle.planner.passes.aggregation.prices import NearPrices

        now, decisions = _problem(plan, found), plan.decisions
        if now is None:
            return None
        if problem_changes(decisions.problem, now, ("hosts", "size_bytes", "chunk_bytes", "connections")):
            raise InputError("the hosts, or what is summed on them, are others than in the plan; plan again")
        prices = NearPrices(now, decisions.near)
        return replace(
            decisions,
            problem=now,
            **prices.of(decisions.groups, decisions.chunks)._asdict(),
            rivals=tuple(rivals(prices, [chunk.bytes for chunk in decisions.chunks])),
        )

    def rebound(self, plan: Plan[AggregationDecisions], found: Inputs) -> Rebound:
        from treadle.planner.passes.aggregation.bound import lower_bound
        from treadle.planner.passes.aggregation.prices import NearPrices

        decisions = plan.decisions
        bound = lower_bound(NearPrices(decisions.problem, decisions.near)).of_plan(decisions.time_ns).time_ns
        claimed = plan.certificate.lower_bound
        if claimed > bound:
            return Rebound([f"certificate: lower bound {claimed:g} ns, the problem proves only {bound} ns"], bound)
        return Rebound([], bound)


def _group_names(decisions: AggregationDecisions) -> dict[str, frozenset[str]]:
    """By host, all hosts of its near group."""
    groups = [[decisions.problem.hosts[host].name for host in group] for group in decisions.near]
    return {name: frozenset(group) for group in groups for name in group}


def _problem(plan: Plan[AggregationDecisions], found: Inputs) -> AggregationProblem | None:
    """The problem that the inputs describe; None where they do not suffice. Costs that were repaired say the same in
    one of its forms."""
    from treadle.planner.passes.aggregation.extract import problem_of

    given, costs, solved = found.get("problem"), found.get("costs"), plan.decisions.problem
    if isinstance(given, AggregationProblem):
        return given
    if not isinstance(costs, CostMatrix):
        return None

    def made(repair: Repair | None) -> AggregationProblem:
        fields = {name: getattr(solved, name) for name in ("size_bytes", "chunk_bytes", "connections")}
        return problem_of(costs, repair=repair, **fields)

    try:
        return as_mended(made, solved)
    except InputError:
        raise InputError("the costs cannot be planned with any more; plan again") from None


PASS = AggregationPass()
