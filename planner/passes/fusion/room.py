"""The fusion pass as a record: its checks, its bound, its figures."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.documents.difference import Change
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.decisions import PEERS, FusionDecisions
from treadle.planner.passes.interface import Figures, Inputs, Pass, Rebound

CHECKERS = ("treadle.planner.passes.fusion.check", "planner.fusion.check")
"""The checker, and what versions before 0.2 called it."""


class Fusion(Pass[FusionDecisions]):
    name = "fusion"
    system = "CoCoNet"
    decisions = FusionDecisions
    roles = {"trace": Trace, "hardware": Hardware}
    required = ("hardware",)

    def check(self, decisions: FusionDecisions) -> list[str]:
        from treadle.planner.passes.fusion.check import check

        return check(decisions)

    def inconsistent(self, decisions: FusionDecisions) -> list[str]:
        from treadle.planner.passes.fusion.consistency import inconsistent

        return list(inconsistent(decisions))

    def figures(self, decisions: FusionDecisions) -> Figures:
        return Figures(decisions.time_ns)

    def describe(self, decisions: FusionDecisions) -> str:
        return f"fusion plan of {many(len(decisions.stages), 'stage')} on {many(decisions.ranks, 'rank')}"

    def differences(self, before: FusionDecisions, after: FusionDecisions) -> list[Change]:
        from treadle.planner.passes.fusion.differences import fusion_differences

        return fusion_differences(before, after)

    def check_certificate(self, plan: Plan[FusionDecisions]) -> Iterator[str]:
        """It says nothing of memory and of orders, and names the checker that was run and the search there is."""
        proof, made = plan.certificate, plan.provenance
        if (made.tool.partition(" ")[0], made.method) != ("treadle", "enumeration"):
            yield f"provenance: made by {made.tool} with {made.method}, expected treadle with enumeration"
        if [rival.name.partition(": ")[0] + ": " for rival in plan.decisions.rivals[-2:]] != list(PEERS):
            yield f"rivals: found no {' and '.join(words.rstrip(': ') for words in PEERS)}, expected them last"
        schedules = made.tuned[0].measured if made.tuned else ()
        if {each.name: each.measured_ns for each in schedules} != plan.decisions.measured_ns:
            yield "provenance: schedules with other times than those that the plan measured"
        if strange := sorted(set(plan.inputs) - set(self.roles)):
            yield f"inputs: found {', '.join(strange)}, a fusion plan is made from hardware and perhaps a trace"
        if proof.checker not in CHECKERS:
            yield f"certificate: checker {proof.checker!r}, expected {CHECKERS[0]!r}"
        if proof.scope is not None:
            yield f"certificate: found the scope {proof.scope!r}, a fusion plan has none"
        if plan.prediction.peak_bytes is not None:
            yield f"prediction: peak of {plan.prediction.peak_bytes} bytes, a fusion plan has none"

    def check_inputs(self, plan: Plan[FusionDecisions], found: Inputs) -> list[str]:
        """What the plan solved must be a program that is found in the trace, at the sizes that it has there."""
        from treadle.planner.passes.fusion.find import find
        from treadle.planner.passes.fusion.find.optimizers import OPTIMIZERS
        from treadle.planner.passes.fusion.parsing import parse
        from treadle.planner.passes.fusion.text import show

        trace, decisions = found.get("trace"), plan.decisions
        if not isinstance(trace, Trace):
            return []
        program = show(parse(decisions.program, "$.decisions.program"))
        for optimizer in (None, *OPTIMIZERS):
            programs, _ = find(trace, tensor_ranks=decisions.ranks, optimizer=optimizer)
            for each in programs:
                sizes = (each.extents, each.parts)
                if sizes == (decisions.extents, decisions.parts) and show(parse(each.text, each.name)) == program:
                    return []
        return ["$.decisions.program: not among the programs in the trace, at its sizes; plan again"]

    def today(self, plan: Plan[FusionDecisions], found: Inputs) -> FusionDecisions | None:
        from treadle.planner.passes.fusion.consistency import priced_again

        hardware = found.get("hardware")
        if not isinstance(hardware, Hardware):
            return None
        for difference in self.check_inputs(plan, found):
            raise InputError(difference)
        return priced_again(plan.decisions, hardware)

    def rebound(self, plan: Plan[FusionDecisions], found: Inputs) -> Rebound:
        """With the hardware, price the schedule and its rivals again and derive the bound again."""
        from treadle.planner.passes.fusion.bound import lower_bound, sentence
        from treadle.planner.passes.fusion.consistency import bindings_of, check_prices, priced_on
        from treadle.planner.passes.fusion.parsing import parse

        decisions, proof, hardware = plan.decisions, plan.certificate, found.get("hardware")
        if not isinstance(hardware, Hardware):
            return Rebound([], None)
        if findings := list(check_prices(decisions, hardware)):
            return Rebound(findings, None)
        program = parse(decisions.program, "$.decisions.program")
        proved = lower_bound(program, bindings_of(decisions), priced_on(decisions, hardware))
        bound = proved.of_plan(decisions.time_ns).time_ns
        if abs(proof.lower_bound - bound) > 1:
            findings.append(f"certificate: lower bound {proof.lower_bound:g} ns, the hardware proves {bound} ns")
        elif proof.argument != (argument := sentence(proved)):
            findings.append(f"certificate: found the argument {proof.argument!r}, expected {argument!r}")
        return Rebound(findings, bound)

    def nodes(self, decisions: FusionDecisions, hardware: Hardware) -> int | None:
        return decisions.nodes


PASS = Fusion()
