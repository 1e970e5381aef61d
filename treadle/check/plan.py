"""A plan checked by itself, against its inputs, and its bound derived again."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import assert_never

from msgspec.structs import replace

from treadle.cli.output import many
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.pattern import Pattern
from treadle.planner.documents.plan import Certificate, Decisions, Plan
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import CheckFailed
from treadle.planner.graph.unrolling import as_run, copies_alone
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.bound import (
    PROVED_BY_SEARCH,
    PROVED_BY_SOLVER,
    is_searchable,
    is_unrestricted,
    lower_bound,
)
from treadle.planner.passes.collective.check import check as check_collective
from treadle.planner.passes.collective.check import check_against_inputs
from treadle.planner.passes.collective.draft import request_of
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.universal import UNIVERSAL, universal_bound
from treadle.planner.passes.fusion.bound import lower_bound as lower_fusion_bound
from treadle.planner.passes.fusion.check import check as check_fusion
from treadle.planner.passes.fusion.decisions import FusionDecisions
from treadle.planner.passes.fusion.find import find
from treadle.planner.passes.fusion.find.optimizers import OPTIMIZERS
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.text import show
from treadle.planner.passes.fusion.told import PEERS, bindings_of, check_prices, priced_on
from treadle.planner.passes.memory.bound import PRICED
from treadle.planner.passes.memory.check import check as check_memory
from treadle.planner.passes.memory.check import check_against_trace
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.swap.bound import lower_bound as swap_bound
from treadle.planner.passes.swap.check import check as check_swap
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.extract import machine_of as swap_machine
from treadle.planner.passes.swap.extract import problem_from_trace
from treadle.planner.passes.swap.problem import SwapProblem

SOLVED_WITHIN = 1e-6
"""How far the duals of two versions of a solver may be apart."""
FUSION_CHECKER = check_fusion.__module__


def check_plan(plan: Plan) -> list[str]:
    """What is wrong with a plan by itself: its decisions, and the numbers that must follow from them."""
    match plan.decisions:
        case CollectiveDecisions():
            found = check_collective(plan.decisions)
        case SwapDecisions():
            found = check_swap(plan.decisions)
        case FusionDecisions():
            found = [*check_fusion(plan.decisions), *_fusion_certificate(plan, plan.decisions)]
        case MemoryDecisions():
            found = check_memory(plan.decisions)
        case _:
            assert_never(plan.decisions)
    return [*found, *_certificate(plan)]


def require_accepted(plan: Plan, where: str) -> None:
    """Raises CheckFailed for a plan that `check_plan` finds anything wrong with; errors call it `where`."""
    findings = check_plan(plan)
    if findings:
        raise CheckFailed(f"{where}: rejected: {many(len(findings), 'finding')}", tuple(findings))


def quality(plan: Plan, bound: float | None = None) -> str:
    """In the words of `optimal`, or the gap; as a claim where the certificate's bound is above `bound`, the one
    derived again.

    By default that is what the plan alone proves.
    """
    proof = plan.certificate
    if bound is None:
        bound = least_alone_ns(plan.decisions)
    if proof.lower_bound <= bound:
        return optimal(plan) if proof.optimal else f"gap {proof.gap:.2%}"
    return f"it claims to be {optimal(plan)}" if proof.optimal else f"it claims a gap of {proof.gap:.2%}"


def least_alone_ns(decisions: Decisions) -> int:
    """The time that the decisions prove without any search and without inputs. What is recomputed may be what makes a
    swap plan take longer."""
    match decisions:
        case MemoryDecisions():
            return least_ns(decisions)
        case SwapDecisions():
            return decisions.problem.ideal_ns if copies_alone(decisions.runs) else 0
        case CollectiveDecisions() | FusionDecisions():
            return 0
        case _:
            assert_never(decisions)


def optimal(plan: Plan) -> str:
    """What a plan without a gap may be called: the bound of a collective plan ranges over all ways to cut the buffer,
    or only over the pieces that it has."""
    proof = plan.certificate
    collective = isinstance(plan.decisions, CollectiveDecisions)
    if not collective or not proof.lower_bound or covers_all_pieces(proof):
        return "optimal"
    return "optimal for these pieces"


def covers_all_pieces(proof: Certificate) -> bool:
    """Whether the bound of a collective plan ranges over all ways to cut the buffer; older plans have no scope."""
    return proof.scope == "all pieces" or (proof.scope is None and proof.argument.startswith(UNIVERSAL))


def least_ns(decisions: MemoryDecisions) -> int:
    """No plan takes less: every forward op and every backward node once, each in its fastest implementation, and in
    place where that is possible."""
    problem = decisions.problem
    forward = [
        min(impl.time_ns for impl in node.impls) - (0 if node.inplace_of is None else node.inplace_saves_ns)
        for node in problem.fwd
        if node.kind == "op"
    ]
    return sum(forward) + sum(min(impl.time_ns for impl in node.impls) for node in problem.bwd)


def derived_bound(
    decisions: CollectiveDecisions, hardware: Hardware, sketch: Sketch, proof: Certificate | None = None
) -> int:
    """The lower bound in ns that the inputs of a collective plan prove, over all pieces where `proof` does so."""
    if proof is not None and covers_all_pieces(proof):
        size, root, demands = decisions.input_bytes, decisions.root or 0, decisions.demands
        return universal_bound(decisions.collective, hardware, sketch, size, root, demands).time_ns
    return lower_bound(_problem(decisions, hardware, sketch)).time_ns


def _problem(
    decisions: CollectiveDecisions, hardware: Hardware, sketch: Sketch, *, restricted: bool = False
) -> Problem:
    return request_of(decisions, hardware, sketch).problem(decisions.chunkup, decisions.roots, restricted=restricted)


def bound_again(
    plan: Plan, decisions: CollectiveDecisions, found: Mapping[str, store.Document]
) -> tuple[list[str], int | None]:
    """Derive the lower bound again from the inputs: findings, and the bound where hardware and sketch are at hand."""
    hardware, sketch, proof = found.get("hardware"), found.get("sketch"), plan.certificate
    if not isinstance(hardware, Hardware) or not isinstance(sketch, Sketch):
        return [], None
    bound = derived_bound(decisions, hardware, sketch, proof)
    solved = (
        proof.argument == PROVED_BY_SOLVER and is_unrestricted(_problem(decisions, hardware, sketch, restricted=True))
    ) or (proof.argument == PROVED_BY_SEARCH and is_searchable(_problem(decisions, hardware, sketch)))
    if proof.lower_bound > bound and not solved:
        return [f"certificate: lower bound {proof.lower_bound:g} ns, the inputs prove only {bound} ns"], bound
    return [], bound


def _certificate(plan: Plan) -> Iterator[str]:
    """The numbers of a certificate must follow from the plan and from each other."""
    proof, decisions = plan.certificate, plan.decisions
    if proof.unit != "ns":
        yield f"certificate: unit {proof.unit!r}, expected 'ns'"
    truth, peak = _time_and_peak(decisions)
    if proof.objective != truth:
        yield f"certificate: objective {proof.objective:g} {proof.unit}, the plan takes {truth} ns"
    yield from _time(plan, decisions, truth)
    if peak is not None and plan.prediction.peak_bytes != peak:
        yield f"prediction: peak of {plan.prediction.peak_bytes} bytes, the plan's is {peak} bytes"
    if isinstance(decisions, CollectiveDecisions) and proof.scope not in (None, "all pieces", "these pieces"):
        yield f"certificate: found the scope {proof.scope!r}, expected all pieces or these pieces"
    if proof.lower_bound > proof.objective:
        yield f"certificate: lower bound {proof.lower_bound:g} above the objective {proof.objective:g}"
    gap = (proof.objective - proof.lower_bound) / proof.objective if proof.objective else 0.0
    if not math.isclose(proof.gap, gap, rel_tol=1e-6, abs_tol=1e-9):
        yield f"certificate: gap {proof.gap:g}, objective and lower bound make it {gap:g}"
    told = [int(number) for number in _TOLD.findall(proof.argument)] if _TAKES.search(proof.argument) else []
    if told and sum(told) != proof.lower_bound:
        yield f"certificate: lower bound {proof.lower_bound:g} ns, its argument tells of {sum(told)} ns"
    if proof.optimal and proof.lower_bound != proof.objective:
        yield "certificate: says optimal, but the lower bound is not the objective"
    if not proof.optimal and proof.lower_bound == proof.objective:
        yield "certificate: says not optimal, but the lower bound is the objective"


def _time(plan: Plan, decisions: Decisions, truth: int) -> Iterator[str]:
    """A collective plan predicts the simulated time of its program where it records one; plans of older versions
    predict that of the schedule."""
    predicted = plan.prediction.time_us
    transport = plan.provenance.known.transport if isinstance(decisions, CollectiveDecisions) else None
    program = None if transport is None else transport.program_us
    if not any(math.isclose(predicted, time, rel_tol=1e-9) for time in (program, truth / 1000) if time is not None):
        takes = truth / 1000 if program is None else program
        yield f"prediction: time {predicted:g} us, the plan takes {takes:g} us"


def _fusion_certificate(plan: Plan, decisions: FusionDecisions) -> Iterator[str]:
    """It says nothing of memory and of orders, and names the checker that was run and the search there is."""
    proof, made = plan.certificate, plan.provenance
    if (made.tool.partition(" ")[0], made.method) != ("treadle", "enumeration"):
        yield f"provenance: made by {made.tool} with {made.method}, expected treadle with enumeration"
    if [rival.name.partition(": ")[0] + ": " for rival in decisions.rivals[-2:]] != list(PEERS):
        yield f"rivals: found no {' and '.join(words.rstrip(': ') for words in PEERS)}, expected them last"
    if strange := sorted(set(plan.inputs) - {"hardware", "trace"}):
        yield f"inputs: found {', '.join(strange)}, a fusion plan is made from hardware and perhaps a trace"
    if proof.checker not in (FUSION_CHECKER, "planner.fusion.check"):
        yield f"certificate: checker {proof.checker!r}, expected {FUSION_CHECKER!r}"
    if proof.scope is not None:
        yield f"certificate: found the scope {proof.scope!r}, a fusion plan has none"
    if plan.prediction.peak_bytes is not None:
        yield f"prediction: peak of {plan.prediction.peak_bytes} bytes, a fusion plan has none"


def _time_and_peak(decisions: Decisions) -> tuple[int, int | None]:
    match decisions:
        case CollectiveDecisions():
            return decisions.makespan_ns, None
        case SwapDecisions():
            return decisions.time_ns, decisions.peak_bytes
        case FusionDecisions():
            return decisions.time_ns, None
        case MemoryDecisions():
            return decisions.objective_ns, decisions.exact_peak_bytes
        case _:
            assert_never(decisions)


_TAKES = re.compile(r"which takes \d+ ns|path from rank \d+ to rank \d+ takes")
"""Arguments whose times add up to the bound."""
_TOLD = re.compile(r"\b(\d+) ns\b")


def check_against(plan: Plan, found: Mapping[str, store.Document]) -> list[str]:
    """Recheck a plan against those of its inputs that are at hand."""
    decisions = plan.decisions
    trace, hardware, sketch = found.get("trace"), found.get("hardware"), found.get("sketch")
    match decisions:
        case CollectiveDecisions():
            if not isinstance(hardware, Hardware) or not isinstance(sketch, Sketch):
                return []
            return [
                *_against_pattern(decisions, found.get("pattern")),
                *check_against_inputs(decisions, hardware, sketch),
                *_against_program(plan, decisions, hardware),
            ]
        case SwapDecisions():
            return check_swap_against(decisions, found)
        case FusionDecisions():
            return [] if not isinstance(trace, Trace) else check_fusion_against(decisions, trace)
        case MemoryDecisions():
            return _check_memory_against(plan, decisions, found)
        case _:
            assert_never(decisions)


def _check_memory_against(plan: Plan, decisions: MemoryDecisions, found: Mapping[str, store.Document]) -> list[str]:
    problem, trace, hardware = found.get("problem"), found.get("trace"), found.get("hardware")
    if isinstance(problem, MemoryProblem):
        return check_against_problem(plan, decisions, problem)
    if not isinstance(trace, Trace):
        return []
    if trace.costs.model == "absent":
        if not isinstance(hardware, Hardware):
            return []
        from treadle.capture.costs import with_roofline

        trace = with_roofline(trace, hardware)
    return check_against_trace(decisions, trace)


def _against_program(plan: Plan, decisions: CollectiveDecisions, hardware: Hardware) -> Iterator[str]:
    """The predicted time of a program is what this version simulates."""
    transport = plan.provenance.known.transport
    if transport is None or transport.program_us != plan.prediction.time_us:
        return
    from treadle.passes.collective.tuning import program_us

    truth = program_us(decisions, hardware, transport)
    if not math.isclose(plan.prediction.time_us, truth, rel_tol=1e-6, abs_tol=2e-3):
        yield f"prediction: time {plan.prediction.time_us:g} us, this version simulates {truth:g} us; plan again"


def check_fusion_against(decisions: FusionDecisions, trace: Trace) -> list[str]:
    """What the plan solved must be a program that is found in the trace, at the sizes that it has there."""
    solved = (show(parse(decisions.program, "$.decisions.program")), decisions.extents, decisions.parts)
    for optimizer in (None, *OPTIMIZERS):
        found, _ = find(trace, tensor_ranks=decisions.ranks, optimizer=optimizer)
        if solved in [(show(parse(each.text, each.name)), each.extents, each.parts) for each in found]:
            return []
    return ["$.decisions.program: not among the programs in the trace, at its sizes; plan again"]


def check_swap_against(decisions: SwapDecisions, found: Mapping[str, store.Document]) -> list[str]:
    """What the plan solved must be the problem file's problem, or that of trace and hardware with the plan's runs; the
    bytes of device, host and reserve are the plan's own."""
    solved = decisions.problem
    given, trace, hardware = found.get("problem"), found.get("trace"), found.get("hardware")
    profile = hardware if isinstance(hardware, Hardware) else None
    if isinstance(given, SwapProblem):
        problem = given
    elif isinstance(trace, Trace) and (trace.costs.model != "absent" or profile is not None):
        problem = _swap_problem(decisions, trace, profile)
    else:
        return []
    ours = solved.machine
    machine = replace(problem.machine, memory_bytes=ours.memory_bytes, host_bytes=ours.host_bytes)
    expected = replace(problem, machine=machine, reserve_bytes=solved.reserve_bytes)
    fields = ("machine", "tensors", "ops")
    wrong = [name for name in fields if getattr(expected, name) != getattr(solved, name)]
    return [f"$.decisions.problem.{name}: not what the inputs say now; plan again" for name in wrong]


def _swap_problem(decisions: SwapDecisions, trace: Trace, hardware: Hardware | None) -> SwapProblem:
    if trace.costs.model == "absent" and hardware is not None:
        from treadle.capture.costs import with_roofline

        trace = with_roofline(trace, hardware)
    machine = decisions.problem.machine
    if hardware is not None:
        machine = swap_machine(hardware, memory_bytes=machine.memory_bytes, host_bytes=machine.host_bytes)
    return problem_from_trace(as_run(trace, decisions.runs), machine)


def swap_bound_again(decisions: SwapDecisions, plan: Plan) -> tuple[list[str], int | None]:
    """Derive the lower bound again from the problem: findings, and the bound. None where ops are recomputed: what
    else could be is not in the plan. What a search proved stays a claim."""
    if not copies_alone(decisions.runs):
        return [], None
    proof, ideal = plan.certificate, decisions.problem.ideal_ns
    if proof.lower_bound <= ideal:
        return [], ideal
    from treadle.planner.passes.swap.search.methods import PROVED

    bound = swap_bound(
        decisions.problem, decisions.order if (proof.scope or "").startswith("this order") else None
    ).time_ns
    if proof.lower_bound > bound and proof.argument != PROVED:
        return [f"certificate: lower bound {proof.lower_bound:g} ns, the problem proves only {bound} ns"], bound
    return [], bound


def memory_bound_again(decisions: MemoryDecisions, plan: Plan) -> tuple[list[str], int | None]:
    """Derive the lower bound again where one linear program did: findings, and the bound. What a search proved stays a
    claim."""
    proof = plan.certificate
    if proof.argument != PRICED.text or proof.lower_bound <= least_ns(decisions):
        return [], None
    from treadle.planner.passes.memory.relaxation import priced_bound

    bound = priced_bound(decisions.problem) or 0
    if proof.lower_bound > bound * (1 + SOLVED_WITHIN) + 1:
        return [f"certificate: lower bound {proof.lower_bound:g} ns, the problem proves only {bound} ns"], bound
    return [], max(bound, int(proof.lower_bound))


def fusion_bound_again(
    plan: Plan, decisions: FusionDecisions, hardware: Hardware | None
) -> tuple[list[str], int | None]:
    """With the hardware, price the schedule and its rivals again and derive the bound again: findings, and the bound in
    ns."""
    if hardware is None:
        return [], None
    findings = list(check_prices(decisions, hardware))
    if findings:
        return findings, None
    proved = lower_fusion_bound(
        parse(decisions.program, "$.decisions.program"), bindings_of(decisions), priced_on(decisions, hardware)
    )
    bound, proof = min(int(proved.total_us * 1000), decisions.time_ns), plan.certificate
    if abs(proof.lower_bound - bound) > 1:
        findings.append(f"certificate: lower bound {proof.lower_bound:g} ns, the hardware proves {bound} ns")
    elif proof.argument != (argument := f"under the cost model, {proved.why}"):
        findings.append(f"certificate: found the argument {proof.argument!r}, expected {argument!r}")
    return findings, bound


def check_against_problem(plan: Plan, decisions: MemoryDecisions, problem: MemoryProblem) -> list[str]:
    """What the plan solved must be the problem of the file at the plan's budget, with the families and the reserve of
    the plan."""
    from treadle.planner.passes.memory.planning import MemoryOptions, prepared

    options = MemoryOptions(
        families=decisions.families,
        recompute=decisions.recompute,
        reserve_bytes=plan.provenance.known.reserve_bytes,
    )
    expected = prepared(problem, decisions.problem.budget_bytes, options)
    if expected == decisions.problem:
        return []
    names = [name for name in expected.__struct_fields__ if getattr(expected, name) != getattr(decisions.problem, name)]
    return [f"$.decisions.problem.{name}: not that of the problem file; plan again" for name in names]


def _against_pattern(decisions: CollectiveDecisions, pattern: store.Document | None) -> Iterator[str]:
    if isinstance(pattern, Pattern) and pattern.demands != decisions.demands:
        yield "demands: not those of the pattern"
