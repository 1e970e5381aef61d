"""The collective pass as a record: its checks, its bound, its figures."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.documents.difference import Change
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.pattern import Pattern
from treadle.planner.documents.plan import Certificate, Plan
from treadle.planner.documents.scalars import Document, many
from treadle.planner.documents.sketch import Sketch
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.job import CollectiveJob
from treadle.planner.passes.interface import Figures, Inputs, Pass, Rebound


class Collective(Pass[CollectiveDecisions]):
    name = "collective"
    system = "TACCL"
    decisions = CollectiveDecisions
    job = CollectiveJob | None
    roles = {"hardware": Hardware, "sketch": Sketch, "pattern": Pattern}

    def check(self, decisions: CollectiveDecisions) -> list[str]:
        from treadle.planner.passes.collective.check import check

        return check(decisions)

    def figures(self, decisions: CollectiveDecisions) -> Figures:
        return Figures(decisions.makespan_ns)

    def describe(self, decisions: CollectiveDecisions) -> str:
        return f"{decisions.collective} plan of {many(decisions.ranks, 'rank')}"

    def differences(self, before: CollectiveDecisions, after: CollectiveDecisions) -> list[Change]:
        from treadle.planner.passes.collective.differences import collective_differences

        return collective_differences(before, after)

    def times_us(self, plan: Plan[CollectiveDecisions]) -> tuple[float, ...]:
        """The simulated time of the plan's program where it records one; plans of older versions predict that of the
        schedule."""
        transport = plan.provenance.known.transport
        program = None if transport is None else transport.program_us
        return (*([] if program is None else [program]), *super().times_us(plan))

    def check_certificate(self, plan: Plan[CollectiveDecisions]) -> Iterator[str]:
        if plan.certificate.scope not in (None, "all pieces", "these pieces"):
            yield f"certificate: found the scope {plan.certificate.scope!r}, expected all pieces or these pieces"

    def check_inputs(self, plan: Plan[CollectiveDecisions], found: Inputs) -> list[str]:
        from treadle.planner.passes.collective.check import check_against_inputs

        hardware, sketch = found.get("hardware"), found.get("sketch")
        if not isinstance(hardware, Hardware) or not isinstance(sketch, Sketch):
            return []
        pattern = _against_pattern(plan.decisions, found.get("pattern"))
        return [*pattern, *check_against_inputs(plan.decisions, hardware, sketch)]

    def today(self, plan: Plan[CollectiveDecisions], found: Inputs) -> CollectiveDecisions | None:
        from treadle.planner.passes.collective.retime import timed_on

        hardware, sketch = found.get("hardware"), found.get("sketch")
        if not isinstance(hardware, Hardware) or not isinstance(sketch, Sketch):
            return None
        for difference in _against_pattern(plan.decisions, found.get("pattern")):
            raise InputError(f"{difference}; plan again")
        return timed_on(plan.decisions, hardware, sketch)

    def rebound(self, plan: Plan[CollectiveDecisions], found: Inputs) -> Rebound:
        """What a solver or a search proved of a problem that the sketch does not restrict stays a claim."""
        from treadle.planner.passes.collective.bound import (
            PROVED_BY_SEARCH,
            PROVED_BY_SOLVER,
            is_searchable,
            is_unrestricted,
        )
        from treadle.planner.passes.collective.synthesis import request_of

        hardware, sketch, proof = found.get("hardware"), found.get("sketch"), plan.certificate
        if not isinstance(hardware, Hardware) or not isinstance(sketch, Sketch):
            return Rebound([], None)
        decisions = plan.decisions
        bound = derived_bound(decisions, hardware, sketch, proof)
        if proof.lower_bound <= bound:
            return Rebound([], bound)
        request = request_of(decisions, hardware, sketch)
        restricted = proof.argument == PROVED_BY_SOLVER
        solved = proof.argument in (PROVED_BY_SOLVER, PROVED_BY_SEARCH) and (
            is_unrestricted if restricted else is_searchable
        )(request.problem(decisions.chunkup, decisions.roots, restricted=restricted))
        finding = f"certificate: lower bound {proof.lower_bound:g} ns, the inputs prove only {bound} ns"
        return Rebound([] if solved else [finding], bound)

    def optimal(self, plan: Plan[CollectiveDecisions]) -> str:
        """The bound covers every cut of the buffer, or only the pieces of the plan."""
        proof = plan.certificate
        return "optimal" if not proof.lower_bound or covers_all_pieces(proof) else "optimal for these pieces"

    def nodes(self, decisions: CollectiveDecisions, hardware: Hardware) -> int | None:
        nodes, rest = divmod(decisions.ranks, hardware.devices_per_node)
        return None if rest else nodes


def covers_all_pieces(proof: Certificate) -> bool:
    """Whether the bound of a collective plan covers every cut of the buffer; older plans have no scope."""
    from treadle.planner.passes.collective.bound import UNIVERSAL

    return proof.scope == "all pieces" or (proof.scope is None and proof.argument.startswith(UNIVERSAL))


def derived_bound(
    decisions: CollectiveDecisions, hardware: Hardware, sketch: Sketch, proof: Certificate | None = None
) -> int:
    """The lower bound in ns that the inputs of a collective plan prove, over all pieces where `proof` does so."""
    from treadle.planner.passes.collective.bound import lower_bound
    from treadle.planner.passes.collective.synthesis import request_of
    from treadle.planner.passes.collective.universal import universal_bound

    if proof is not None and covers_all_pieces(proof):
        size, root, demands = decisions.input_bytes, decisions.root or 0, decisions.demands
        return universal_bound(decisions.collective, hardware, sketch, size, root, demands).time_ns
    request = request_of(decisions, hardware, sketch)
    return lower_bound(request.problem(decisions.chunkup, decisions.roots, restricted=False)).time_ns


def _against_pattern(decisions: CollectiveDecisions, pattern: Document | None) -> Iterator[str]:
    if isinstance(pattern, Pattern) and pattern.demands != decisions.demands:
        yield "demands: not those of the pattern"


PASS = Collective()
