"""What `treadle check` does to one file: recognise it by content, verify it from itself, then against its inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from codegen import check_mscclpp, check_program, msccl_xml, mscclpp_plan
from codegen.emit import manifest_in, text_digest
from codegen.mscclpp_plan import ExecutionPlan
from codegen.program import Program
from codegen.runtime_rules import FATAL, Finding, judge
from codegen.runtime_subject import Subject
from codegen.runtimes import RUNTIMES, Name
from codegen.selection_files import generate_selection
from codegen.targets import PLAN_NAME, Artefacts, generate
from planner import artefact, documents
from planner.artefact import Artefact
from planner.collective.algorithm import CollectiveDecisions
from planner.collective.bound import PROVED_BY_SEARCH, PROVED_BY_SOLVER, is_searchable, is_unrestricted, lower_bound
from planner.collective.check import check as check_collective
from planner.collective.check import check_against_inputs
from planner.collective.problem import Problem, build_problem
from planner.collective.universal import UNIVERSAL, universal_bound
from planner.errors import CheckFailed, InputError
from planner.hardware import Hardware, scaled
from planner.memory.check import check as check_memory
from planner.memory.check import check_against_trace
from planner.memory.decisions import MemoryDecisions
from planner.pattern import Pattern
from planner.plan import InputRef, Plan
from planner.selection import FILE_NAME as SELECTION_NAME
from planner.selection import Selection
from planner.sketch import Sketch
from planner.trace import Trace
from treadle.check_selection import against_plans, against_times
from treadle.cli.inputs import beside, find, plans_of
from treadle.cli.output import listed, many

ROLES: dict[str, type[Trace] | type[Hardware] | type[Sketch] | type[Pattern]] = {
    "trace": Trace,
    "hardware": Hardware,
    "sketch": Sketch,
    "pattern": Pattern,
}


@dataclass(frozen=True)
class Inputs:
    """Files named on the command line by role; `fresh` asks for every input of a plan, wherever it is found. MSCCL XML
    is checked with `fifo_depth` message slots (None: the protocol's) and as each of `runtimes` would read it."""

    files: dict[str, str] = field(default_factory=dict)
    fresh: bool = False
    runtimes: tuple[Name, ...] = ()
    fifo_depth: int | None = None


@dataclass(frozen=True)
class Report:
    """`what` describes an accepted file in a few words. `judgements` is what the asked runtimes make of it."""

    what: str
    findings: list[str]
    judgements: dict[Name, list[Finding]] = field(default_factory=dict)


def check_file(path: str, inputs: Inputs) -> Report:
    """Check one file or artefact folder. Raises InputError for what cannot be read at all."""
    if Path(path).is_dir():
        return _folder(Path(path), inputs)
    text = documents.read_text(path)
    if text.lstrip("\ufeff \t\r\n").startswith("<"):
        return _xml(text, path, inputs)
    if inputs.runtimes:
        raise InputError("found no MSCCL XML, expected it for --runtime", where=path)
    if mscclpp_plan.is_plan(text):
        return _execution_plan(mscclpp_plan.loads(text, path))
    document = documents.load_any(path)
    if isinstance(document, Plan):
        return _plan(document, path, inputs)
    if isinstance(document, Selection):
        return _selection(document, path, inputs)
    name = getattr(document, "name", None)
    kind = str(document.__struct_config__.tag)
    return Report(kind if name is None else f"{kind} {name}", [])


def _xml(text: str, where: str, inputs: Inputs) -> Report:
    program = msccl_xml.parse(text, where)
    findings = check_program.check(program, fifo_depth=inputs.fifo_depth)
    subject = Subject(text, program)
    judgements = {name: judge(subject, name) for name in inputs.runtimes or RUNTIMES}
    if not inputs.runtimes:
        return Report(f"{_describe(program)}; {_summary(judgements)}", findings)
    refusals = [f"{name} {rule.effect} it: {rule}" for name in judgements for rule in fatal(judgements[name])]
    return Report(_describe(program), refusals + findings, judgements)


def _execution_plan(plan: ExecutionPlan) -> Report:
    operations = sum(len(block.ops) for gpu in plan.gpus for block in gpu.threadblocks)
    promise = "" if plan.collective in check_mscclpp.PROMISED else ", result not promised"
    size = f"{many(len(plan.gpus), 'rank')}, {many(operations, 'operation')}"
    calls = "in place" if plan.inplace else "out of place"
    return Report(f"MSCCL++ {plan.collective} of {size}, {calls}{promise}", check_mscclpp.check(plan))


def fatal(judgement: list[Finding]) -> list[Finding]:
    """The rules for which a runtime has no use for the file."""
    return [finding for finding in judgement if finding.effect in FATAL]


def _summary(judgements: Mapping[Name, list[Finding]]) -> str:
    """`taken by rccl, executor; not by msccl (byte-range)`."""
    taken = [name for name, found in judgements.items() if not fatal(found)]
    others = {name: sorted({finding.rule for finding in fatal(found)}) for name, found in judgements.items()}
    words = [f"taken by {', '.join(taken)}"] if taken else []
    words += [f"not by {name} ({', '.join(rules)})" for name, rules in others.items() if rules]
    return "; ".join(words)


def _describe(program: Program) -> str:
    modes = [name for name, on in (("out of place", program.outofplace), ("in place", program.inplace)) if on]
    steps = sum(1 for _ in program.steps())
    promise = ", result not promised" if program.collective == "custom" else ""
    size = f"{many(len(program.ranks), 'rank')}, {many(steps, 'step')}"
    return f"{program.collective} of {size}, {' and '.join(modes)}{promise}"


# Plans.


def check_plan(plan: Plan) -> list[str]:
    """What is wrong with a plan by itself: its decisions, and the numbers that must follow from them."""
    decisions = plan.decisions
    found = check_collective(decisions) if isinstance(decisions, CollectiveDecisions) else check_memory(decisions)
    return [*found, *_certificate(plan)]


def require_accepted(plan: Plan, where: str) -> None:
    """Raises CheckFailed for a plan that `check_plan` finds anything wrong with; errors call it `where`."""
    findings = check_plan(plan)
    if findings:
        raise CheckFailed(f"{where}: rejected: {many(len(findings), 'finding')}", tuple(findings))


def require_told(selection: Selection, plans: Mapping[str, Plan], where: str) -> None:
    """Raises CheckFailed for a selection that its plans contradict, or a plan of it that is not accepted."""
    for name, plan in plans.items():
        require_accepted(plan, f"{where}: {name}")
    if findings := list(against_plans(selection, plans)):
        raise CheckFailed(f"{where}: rejected: {many(len(findings), 'finding')}", tuple(findings))


def quality(plan: Plan, bound: float | None = None) -> str:
    """`optimal` or the gap; as a claim where the certificate's bound is above `bound`, the one derived again.

    By default that is what the plan alone proves.
    """
    proof = plan.certificate
    if bound is None:
        bound = least_ns(plan.decisions) if isinstance(plan.decisions, MemoryDecisions) else 0
    if proof.lower_bound <= bound:
        return "optimal" if proof.optimal else f"gap {proof.gap:.2%}"
    return "it claims to be optimal" if proof.optimal else f"it claims a gap of {proof.gap:.2%}"


def _plan(plan: Plan, path: str, inputs: Inputs) -> Report:
    decisions = plan.decisions
    what = "memory plan"
    if isinstance(decisions, CollectiveDecisions):
        what = f"{decisions.collective} plan of {many(decisions.ranks, 'rank')}"
    findings = check_plan(plan)
    stale, found = _inputs(plan, path, inputs)
    findings += stale
    if not stale:
        findings += check_against(plan, found)
    bound = None
    if not findings and isinstance(decisions, CollectiveDecisions):
        findings, bound = _bound(plan, decisions, found)
    words = [what, quality(plan, bound), *([f"inputs {', '.join(found)} checked"] if found else [])]
    return Report("; ".join(words), findings)


def least_ns(decisions: MemoryDecisions) -> int:
    """No plan takes less: every forward op and every backward node once, each in its fastest implementation."""
    problem = decisions.problem
    forward = [[impl.time_ns for impl in node.impls] for node in problem.fwd if node.kind == "op"]
    backward = [[impl.time_ns for impl in node.impls] for node in problem.bwd]
    return sum(map(min, forward + backward))


def derived_bound(decisions: CollectiveDecisions, hardware: Hardware, sketch: Sketch, argument: str = "") -> int:
    """The lower bound in ns that the inputs of a collective plan prove, over all pieces where `argument` does so."""
    if argument.startswith(UNIVERSAL):
        size, root, demands = decisions.input_bytes, decisions.root or 0, decisions.demands
        return universal_bound(decisions.collective, hardware, sketch, size, root, demands).time_ns
    return lower_bound(_problem(decisions, hardware, sketch)).time_ns


def _problem(
    decisions: CollectiveDecisions, hardware: Hardware, sketch: Sketch, *, restricted: bool = False
) -> Problem:
    return build_problem(
        decisions.collective,
        hardware,
        sketch,
        decisions.input_bytes,
        decisions.root or 0,
        decisions.chunkup,
        roots=decisions.roots,
        demands=decisions.demands,
        restricted=restricted,
    )


def _bound(
    plan: Plan, decisions: CollectiveDecisions, found: Mapping[str, documents.Document]
) -> tuple[list[str], int | None]:
    """Derive the lower bound again from the inputs: findings, and the bound where hardware and sketch are at hand."""
    hardware, sketch, proof = found.get("hardware"), found.get("sketch"), plan.certificate
    if not isinstance(hardware, Hardware) or not isinstance(sketch, Sketch):
        return [], None
    bound = derived_bound(decisions, hardware, sketch, proof.argument)
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
    truth = decisions.makespan_ns if isinstance(decisions, CollectiveDecisions) else decisions.objective_ns
    if proof.objective != truth:
        yield f"certificate: objective {proof.objective:g} {proof.unit}, the plan takes {truth} ns"
    if not math.isclose(plan.prediction.time_us * 1000, truth, rel_tol=1e-9):
        yield f"prediction: time {plan.prediction.time_us:g} us, the plan takes {truth / 1000:g} us"
    if not isinstance(decisions, CollectiveDecisions) and plan.prediction.peak_bytes != decisions.exact_peak_bytes:
        yield (
            f"prediction: peak of {plan.prediction.peak_bytes} bytes, the plan's is {decisions.exact_peak_bytes} bytes"
        )
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


_TAKES = re.compile(r"which takes \d+ ns|path from rank \d+ to rank \d+ takes")
"""Arguments whose times add up to the bound."""
_TOLD = re.compile(r"\b(\d+) ns\b")


def _inputs(plan: Plan, path: str, inputs: Inputs) -> tuple[list[str], dict[str, documents.Document]]:
    """Findings on inputs that changed since, and the inputs by role."""
    findings: list[str] = []
    found: dict[str, documents.Document] = {}
    for role, reference in sorted(plan.inputs.items()):
        if role not in ROLES or not (inputs.fresh or role in inputs.files):
            continue
        file = find(role, reference, path, inputs.files.get(role))
        document: documents.Document = documents.load(file, ROLES[role])
        if isinstance(document, Hardware):
            document = _as_large(document, plan, reference)
        if documents.digest(document) == reference.digest:
            found[role] = document
        else:
            findings.append(
                f"stale: {role} {file} is not the one the plan was made from ({reference.file}); plan again"
            )
    return findings, found


def inputs_beside(plan: Plan, path: str) -> dict[str, str]:
    """The files that a collective plan at `path` was made from and that are still the same, by the name under which
    they are found beside it; shipped ones are found anyway."""
    found: dict[str, str] = {}
    if not isinstance(plan.decisions, CollectiveDecisions):
        return found
    for role, reference in sorted(plan.inputs.items()):
        file = Path(beside(path, reference))
        if file.is_file():
            document: documents.Document = documents.load(file, ROLES[role])
            if isinstance(document, Hardware):
                document = _as_large(document, plan, reference)
            if documents.digest(document) == reference.digest:
                found[Path(reference.file).name] = documents.read_text(file)
    return found


def _as_large(hardware: Hardware, plan: Plan, reference: InputRef) -> Hardware:
    """The profile with the plan's number of nodes, where that is what the plan was made from (`--nodes`)."""
    if documents.digest(hardware) == reference.digest or not isinstance(plan.decisions, CollectiveDecisions):
        return hardware
    nodes, rest = divmod(plan.decisions.ranks, hardware.devices_per_node)
    if rest or nodes < 1 or (nodes > 1 and hardware.network is None):
        return hardware
    other = scaled(hardware, nodes)
    return other if documents.digest(other) == reference.digest else hardware


def check_against(plan: Plan, found: Mapping[str, documents.Document]) -> list[str]:
    """Recheck a plan against those of its inputs that are at hand."""
    decisions = plan.decisions
    trace, hardware, sketch = found.get("trace"), found.get("hardware"), found.get("sketch")
    if isinstance(decisions, CollectiveDecisions):
        if isinstance(hardware, Hardware) and isinstance(sketch, Sketch):
            return [
                *_against_pattern(decisions, found.get("pattern")),
                *check_against_inputs(decisions, hardware, sketch),
            ]
    elif isinstance(trace, Trace):
        if trace.costs.model == "absent":
            if not isinstance(hardware, Hardware):
                return []
            from treadle.capture.costs import with_roofline

            trace = with_roofline(trace, hardware)
        return check_against_trace(decisions, trace)
    return []


def _against_pattern(decisions: CollectiveDecisions, pattern: documents.Document | None) -> Iterator[str]:
    if isinstance(pattern, Pattern) and pattern.demands != decisions.demands:
        yield "demands: not those of the pattern"


# Selections.


def _selection(selection: Selection, path: str, inputs: Inputs) -> Report:
    """Every plan of the selection, and with the inputs at hand every number in its table."""
    try:
        plans = plans_of(selection, path)
    except InputError as error:
        return Report(f"selection {selection.name}", [str(error)])
    findings: list[str] = []
    found: dict[str, documents.Document] = {}
    made_from: dict[str, tuple[Hardware, Sketch]] = {}
    for name, plan in sorted(plans.items()):
        file = str(Path(path).parent / name)
        findings += [f"{name}: {finding}" for finding in _plan(plan, file, inputs).findings]
        found = _inputs(plan, file, inputs)[1]
        hardware, sketch = found.get("hardware"), found.get("sketch")
        if isinstance(hardware, Hardware) and isinstance(sketch, Sketch):
            made_from[name] = hardware, sketch
    findings += against_plans(selection, plans)
    if not findings and made_from.keys() == plans.keys():
        findings += against_times(selection, plans, made_from)
    words = [f"selection {selection.name}", f"{many(len(plans), 'plan')} in {many(len(selection.entries), 'range')}"]
    words += [f"inputs {', '.join(found)} checked"] if found else []
    return Report("; ".join(words), findings)


def _selection_in(folder: Path, manifest: Artefact, texts: dict[str, str], inputs: Inputs) -> tuple[list[str], bool]:
    """Check the selection that lies in a folder, and that it still generates the other files."""
    here = str(folder / SELECTION_NAME)
    try:
        selection = documents.loads(texts[SELECTION_NAME], here, Selection)
        findings = [f"{SELECTION_NAME}: {finding}" for finding in _selection(selection, here, inputs).findings]
        if documents.digest(selection) != manifest.plan.digest:
            findings.append(f"{SELECTION_NAME}: not the manifest's selection")
        if findings:
            return findings, False
        fresh = generate_selection(
            selection, manifest.plan.file, plans_of(selection, here), manifest.target, runtime_of(manifest)
        )
    except (CheckFailed, InputError) as error:
        return [str(error)], False
    plans = [documents.loads(texts[entry.plan.file], here, Plan) for entry in selection.entries]
    return _changed(fresh, texts, plans), True


def _changed(fresh: Artefacts, texts: dict[str, str], plans: Iterable[Plan]) -> list[str]:
    """Texts other than the fresh ones; inputs of the `plans` that lie beside them are not made from them."""
    inputs = {Path(reference.file).name for plan in plans for reference in plan.inputs.values()}
    made = {name for name in texts if name in fresh.files or name not in inputs}
    names = [name for name in sorted({*fresh.files, *made}) if fresh.files.get(name) != texts.get(name)]
    return [f"{name}: not what this version generates from the plan; generate again" for name in names]


# Artefacts.


def _folder(folder: Path, inputs: Inputs) -> Report:
    """Files as the manifest says, collective programs right, texts what the plan generates today."""
    manifest = manifest_in(folder)
    findings: list[str] = []
    texts: dict[str, str] = {}
    for name, digest in sorted(manifest.files.items()):
        if not (folder / name).is_file():
            findings.append(f"{name}: missing, the manifest lists it")
            continue
        texts[name] = documents.read_text(folder / name)
        if text_digest(texts[name]) != digest:
            findings.append(f"{name}: changed since it was generated")
    made_for = runtime_of(manifest)
    readers = inputs.runtimes or ((made_for,) if made_for in RUNTIMES else ())
    for name, text in texts.items():
        if name.endswith(".xml"):
            findings += _program(name, text, replace(inputs, runtimes=readers))
    found, again = _plan_in(folder, manifest, texts, inputs)
    how = "generated again to the same text" if again else "not generated again: no plan or trace at hand"
    words = [f"{manifest.target} artefacts, {many(len(manifest.files), 'file')}, {how}"]
    if strangers := _strangers(folder, manifest):
        words.append(f"not of the manifest and not checked: {listed(strangers)}")
    return Report("; ".join(words), findings + found)


def runtime_of(manifest: Artefact) -> Name | None:
    """The runtime that MSCCL XML was written for; `generate` refuses one that does not exist."""
    named: Name | None = manifest.facts.get("runtime")
    return named


def _strangers(folder: Path, manifest: Artefact) -> list[str]:
    """Files in the folder that the manifest does not list."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    return sorted(names - {artefact.FILE_NAME, *manifest.files})


def _program(name: str, text: str, inputs: Inputs) -> list[str]:
    try:
        return [f"{name}: {finding}" for finding in _xml(text, name, inputs).findings]
    except InputError as error:
        return [str(error)]


def _plan_in(folder: Path, manifest: Artefact, texts: dict[str, str], inputs: Inputs) -> tuple[list[str], bool]:
    """Check the plan that lies in the folder, and that it still generates the other files, where that can be tried."""
    if SELECTION_NAME in texts:
        return _selection_in(folder, manifest, texts, inputs)
    if PLAN_NAME not in texts:
        return [], False
    here = str(folder / PLAN_NAME)
    try:
        plan = documents.loads(texts[PLAN_NAME], here, Plan)
    except InputError as error:
        return [f"{PLAN_NAME}: {error.path}: {error.args[0]}"], False
    findings = [] if documents.digest(plan) == manifest.plan.digest else [f"{PLAN_NAME}: not the manifest's plan"]
    findings += [f"{PLAN_NAME}: {finding}" for finding in _plan(plan, here, inputs).findings]
    if inputs.fresh:
        outer = Path(beside(folder, manifest.plan))
        if outer.is_file() and documents.digest(documents.load(outer, Plan)) != manifest.plan.digest:
            findings.append(f"stale: plan {outer} has changed since; generate again")
    trace: Trace | None = None
    if manifest.target == "torch":
        reference = plan.inputs.get("trace")
        file = inputs.files.get("trace") or (beside(here, reference) if reference else None)
        if file is None or not Path(file).is_file():
            return findings, False
        trace = documents.load(file, Trace)
    if findings:
        return findings, False
    try:
        fresh = generate(plan, manifest.plan.file, trace, manifest.target, runtime_of(manifest))
    except (CheckFailed, InputError) as error:
        return [str(error)], False
    return _changed(fresh, texts, [plan]), True
