"""What `treadle check` does to one file: recognise it by content, verify it from itself, then against its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from treadle.check.inputs import inputs_beside, inputs_of, missing
from treadle.check.plan import check_against, check_plan, quality
from treadle.check.regression import Today, judge_today
from treadle.check.selection import against_plans, against_times, plans_of
from treadle.cli.output import listed
from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.msccl.rules import FATAL, Finding, judge
from treadle.codegen.collective.msccl.runtimes import RUNTIMES, Name
from treadle.codegen.collective.msccl.subject import Subject
from treadle.codegen.collective.mscclpp import check as check_mscclpp
from treadle.codegen.collective.mscclpp import document as mscclpp_plan
from treadle.codegen.collective.mscclpp.document import ExecutionPlan
from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.collective.selection_files import generate_selection
from treadle.codegen.emit import manifest_in, manifest_of, text_digest
from treadle.codegen.python_form import require_form
from treadle.codegen.targets import PLAN_NAME, Artefacts, generate, targets_of
from treadle.planner.documents import artefact, store
from treadle.planner.documents.artefact import Artefact
from treadle.planner.documents.explain import short
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import Document, format_bytes, many
from treadle.planner.documents.selection import FILE_NAME as SELECTION_NAME
from treadle.planner.documents.selection import Selection
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.sources import input_beside
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes import pass_of
from treadle.planner.passes.swap.minimum import least_memory
from treadle.planner.passes.swap.problem import SwapProblem


@dataclass(frozen=True)
class CheckOptions:
    """Files named on the command line by role; `fresh` asks for every input of a plan, wherever it is found. MSCCL XML
    is checked with `fifo_depth` message slots (None: the protocol's) and as each of `runtimes` would read it. Plans
    may be worse on changed inputs by the share `max_regression`; None: no input may have changed."""

    files: dict[str, str] = field(default_factory=dict)
    fresh: bool = False
    runtimes: tuple[Name, ...] = ()
    fifo_depth: int | None = None
    max_regression: float | None = None


@dataclass(frozen=True)
class Report:
    """`what` describes an accepted file in a few words. `judgements` is what the asked runtimes make of it.
    `unverified` says why texts could not be compared with the plan, empty where they were or nothing is generated.
    `today` are the figures of a plan on the inputs of today, where they were asked for; `plan` is the file, if one."""

    what: str
    findings: list[str]
    judgements: dict[Name, list[Finding]] = field(default_factory=dict)
    unverified: str = ""
    today: Today | None = None
    plan: Plan | None = None


def check_file(path: str, inputs: CheckOptions) -> Report:
    """Check one file or artefact folder. Raises InputError for what cannot be read at all."""
    if Path(path).is_dir():
        return _folder(Path(path), inputs)
    text = store.read_text(path)
    if text.lstrip("\ufeff \t\r\n").startswith("<") or path.endswith(".xml"):
        return _xml(text, path, inputs)
    if inputs.runtimes:
        raise InputError("found no MSCCL XML, expected it for --runtime", where=path)
    if mscclpp_plan.is_plan(text):
        return _execution_plan(mscclpp_plan.loads(text, path))
    document = store.load_any(path)
    if isinstance(document, Plan):
        return replace(_plan(document, path, inputs), plan=document)
    if isinstance(document, Selection):
        return _selection(document, path, inputs)
    if isinstance(document, SwapProblem):
        return Report(_swap_problem(document), [])
    name = getattr(document, "name", None)
    kind = str(document.__struct_config__.tag)
    return Report(kind if name is None else f"{kind} {name}", [])


def _xml(text: str, where: str, inputs: CheckOptions) -> Report:
    program = xml.parse(text, where)
    findings = check_program.check(program, fifo_depth=inputs.fifo_depth)
    subject = Subject(text, program)
    judgements = {name: judge(subject, name) for name in inputs.runtimes or RUNTIMES}
    if not inputs.runtimes:
        return Report(f"{_describe(program)}; {_summary(judgements)}", findings)
    refusals = [f"{name} {rule.effect} it: {rule}" for name in judgements for rule in fatal(judgements[name])]
    return Report(_describe(program), refusals + findings, judgements)


def _execution_plan(plan: ExecutionPlan) -> Report:
    operations = sum(len(block.ops) for gpu in plan.gpus for block in gpu.threadblocks)
    promise = "" if plan.collective in check_mscclpp.SPECIFIED else ", result not promised"
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


def _describe(program: CollectiveProgram) -> str:
    modes = [name for name, on in (("out of place", program.outofplace), ("in place", program.inplace)) if on]
    steps = sum(1 for _ in program.steps())
    promise = ", result not promised" if program.collective == "custom" else ""
    size = f"{many(len(program.ranks), 'rank')}, {many(steps, 'step')}"
    return f"{program.collective} of {size}, {' and '.join(modes)}{promise}"


def _swap_problem(problem: SwapProblem) -> str:
    size = f"{many(len(problem.ops), 'operator')} and {many(len(problem.tensors), 'tensor')}"
    least, memory = least_memory(problem).memory_bytes, problem.machine.memory_bytes
    return f"swap problem of {size}; least memory {format_bytes(least)} of {format_bytes(memory)}"


# Plans.


def _plan(plan: Plan, path: str, inputs: CheckOptions) -> Report:
    made_by = pass_of(plan)
    findings = check_plan(plan)
    if inputs.fresh and inputs.max_regression is not None and not findings:
        return _regression(plan, path, inputs, inputs.max_regression)
    stale, found = inputs_of(plan, path, inputs.files, inputs.fresh)
    findings += stale
    if not stale:
        findings += check_against(plan, found)
    bound = None
    if not findings:
        findings += [
            f"inputs: found no {role} that the plan was made for; plan again"
            for role in made_by.required
            if role not in plan.inputs and (inputs.fresh or role in inputs.files)
        ]
        again, bound = made_by.rebound(plan, found)
        findings += again
    words = [made_by.describe(plan.decisions), quality(plan, bound)]
    words += [f"inputs {', '.join(found)} checked"] if found else []
    return Report("; ".join(words), findings)


def _regression(plan: Plan, path: str, inputs: CheckOptions, most: float) -> Report:
    """Accepted where the decisions are nearly as good on the inputs of today, whether those changed or not."""
    stale, found = inputs_of(plan, path, inputs.files, inputs.fresh, changed=True)
    today = judge_today(plan, found, most, changed=bool(stale))
    words = [pass_of(plan).describe(plan.decisions), today.words]
    if stale:
        words.append(f"{many(len(stale), 'input')} changed, no figure worse by more than {most:.2%}")
    else:
        words.insert(1, quality(plan, pass_of(plan).rebound(plan, found).bound_ns))
    return Report("; ".join(words), today.findings, today=today)


# Selections.


def _selection(selection: Selection, path: str, inputs: CheckOptions) -> Report:
    """Every plan of the selection, and, where the inputs were found, every number in its table."""
    try:
        plans = plans_of(selection, path)
    except InputError as error:
        return Report(f"selection {selection.name}", [str(error)])
    findings: list[str] = []
    found: dict[str, Document] = {}
    made_from: dict[str, tuple[Hardware, Sketch]] = {}
    for name, plan in sorted(plans.items()):
        file = str(Path(path).parent / name)
        findings += [f"{name}: {finding}" for finding in _plan(plan, file, inputs).findings]
        found = inputs_of(plan, file, inputs.files, inputs.fresh)[1]
        hardware, sketch = found.get("hardware"), found.get("sketch")
        if isinstance(hardware, Hardware) and isinstance(sketch, Sketch):
            made_from[name] = hardware, sketch
    findings += against_plans(selection, plans)
    if not findings and made_from.keys() == plans.keys():
        findings += against_times(selection, plans, made_from)
    words = [f"selection {selection.name}", f"{many(len(plans), 'plan')} in {many(len(selection.entries), 'range')}"]
    words += [f"inputs {', '.join(found)} checked"] if found else []
    return Report("; ".join(words), findings)


def _selection_in(folder: Path, manifest: Artefact, texts: dict[str, str], inputs: CheckOptions) -> list[str]:
    """Check the selection that lies in a folder, and that it still generates the other files."""
    here = str(folder / SELECTION_NAME)
    try:
        selection = store.loads(texts[SELECTION_NAME], here, Selection)
        findings = [f"{SELECTION_NAME}: {finding}" for finding in _selection(selection, here, inputs).findings]
        if store.digest(selection) != manifest.plan.digest:
            findings.append(f"{SELECTION_NAME}: not the manifest's selection")
        if findings:
            return findings
        plans = plans_of(selection, here)
        fresh = generate_selection(selection, manifest.plan.file, plans, manifest.target, runtime_of(manifest))
        return _changed(fresh, manifest, texts, plans.values(), here)
    except (CheckFailed, InputError) as error:
        return [str(error)]


def _changed(
    fresh: Artefacts, manifest: Artefact, texts: dict[str, str], plans: Iterable[Plan], here: str
) -> list[str]:
    """Texts, entry and facts other than the fresh ones; inputs of the `plans` may lie next to them."""
    inputs = {name: text for plan in plans for name, text in inputs_beside(plan, here).items() if name in texts}
    expected = {**inputs, **fresh.files}
    names = [name for name in sorted({*expected, *texts}) if expected.get(name) != texts.get(name)]
    findings = [f"{name}: not what this version generates from the plan; generate again" for name in names]
    if manifest.entry != fresh.entry:
        findings.append(f"{artefact.FILE_NAME}: entry {manifest.entry!r}, the plan makes {fresh.entry!r}")
    facts = manifest.facts
    made = store.loads(store.dumps(manifest_of(fresh)), artefact.FILE_NAME, Artefact).facts
    for name in sorted({*facts, *made}):
        if (name in facts, facts.get(name)) != (name in made, made.get(name)):
            findings.append(f"{artefact.FILE_NAME}: {_fact(name, facts)}, the plan makes {_fact(name, made)}")
    return findings


def _fact(name: str, facts: Mapping[str, object]) -> str:
    return f"fact {name} {short(facts[name])}" if name in facts else f"no fact {name}"


# Artefacts.


def _folder(folder: Path, inputs: CheckOptions) -> Report:
    """Files as the manifest says, collective programs right, texts what the plan generates today."""
    manifest = manifest_in(folder)
    findings: list[str] = []
    texts: dict[str, str] = {}
    for name, digest in sorted(manifest.files.items()):
        if not (folder / name).is_file():
            findings.append(f"{name}: missing, the manifest lists it")
            continue
        texts[name] = store.read_text(folder / name)
        if text_digest(texts[name]) != digest:
            findings.append(f"{name}: changed since it was generated")
    made_for = runtime_of(manifest)
    readers = inputs.runtimes or ((made_for,) if made_for in RUNTIMES else ())
    for name, text in texts.items():
        if name.endswith(".xml"):
            findings += _program(name, text, replace(inputs, runtimes=readers))
        if name.endswith(".py"):
            findings += _module(name, text, manifest)
    findings += _selection_in(folder, manifest, texts, inputs) if SELECTION_NAME in texts else []
    unverified = "" if SELECTION_NAME in texts else "not regenerated: no plan in the folder"
    if PLAN_NAME in texts and SELECTION_NAME not in texts:
        found, unverified = _plan_in(folder, manifest, texts, inputs)
        findings += found
    if unverified and inputs.fresh:
        findings.append(unverified)
    words = [f"{manifest.target} artefacts, {many(len(manifest.files), 'file')}"]
    words[0] += "" if unverified else ", generated again to the same text"
    if strangers := _strangers(folder, manifest):
        words.append(f"not of the manifest and not checked: {listed(strangers)}")
    return Report("; ".join(words), findings, unverified=unverified)


def runtime_of(manifest: Artefact) -> Name | None:
    """The runtime that MSCCL XML was written for. Raises InputError for one that does not exist."""
    named = manifest.facts.get("runtime")
    if named is not None and named not in [*RUNTIMES]:
        raise InputError(
            f"found {short(named)}, expected one of {', '.join(RUNTIMES)}",
            where=artefact.FILE_NAME,
            path="$.facts.runtime",
        )
    return named


def _strangers(folder: Path, manifest: Artefact) -> list[str]:
    """Files in the folder that the manifest does not list."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    return sorted(names - {artefact.FILE_NAME, *manifest.files})


def _module(name: str, text: str, manifest: Artefact) -> list[str]:
    try:
        require_form(manifest.target, text, name)
    except InputError as error:
        return [str(error)]
    return []


def _program(name: str, text: str, inputs: CheckOptions) -> list[str]:
    try:
        return [f"{name}: {finding}" for finding in _xml(text, name, inputs).findings]
    except InputError as error:
        return [str(error)]


def _plan_in(folder: Path, manifest: Artefact, texts: dict[str, str], inputs: CheckOptions) -> tuple[list[str], str]:
    """Check the plan that lies in the folder, and that it still generates the other files: findings, and why that
    could not be tried."""
    here = str(folder / PLAN_NAME)
    try:
        plan = store.loads(texts[PLAN_NAME], here, Plan)
    except InputError as error:
        return [f"{PLAN_NAME}: {error.path}: {error.args[0]}"], ""
    findings = [] if store.digest(plan) == manifest.plan.digest else [f"{PLAN_NAME}: not the manifest's plan"]
    absent = missing(plan, here, inputs.files)
    lacking = ", ".join(f"no {role} {plan.inputs[role].file!r}, name it with --{role}" for role in absent)
    alone = replace(inputs, fresh=inputs.fresh and not absent)
    findings += [f"{PLAN_NAME}: {finding}" for finding in _plan(plan, here, alone).findings]
    if inputs.fresh:
        outer = Path(input_beside(folder, manifest.plan))
        if outer.is_file() and store.digest(store.load(outer, Plan)) != manifest.plan.digest:
            findings.append(f"stale: plan {outer} has changed since; generate again")
    trace: Trace | None = None
    if targets_of(plan).needs_trace:
        reference = plan.inputs.get("trace")
        if "trace" in absent or (reference is None and "trace" not in inputs.files):
            return findings, f"not regenerated: {lacking or 'the plan names no trace'}"
        file = inputs.files.get("trace") or (input_beside(here, reference) if reference else "")
        trace = store.load(file, Trace)
    if absent and inputs.fresh:
        findings.append(f"not compared with its inputs: {lacking}")
    if findings:
        return findings, ""
    try:
        carried = {name: store.loads(texts[name], name, Plan) for name in _collectives(manifest, texts)}
        fresh = generate(plan, manifest.plan.file, trace, manifest.target, runtime_of(manifest), carried)
        return _changed(fresh, manifest, texts, [plan], here), ""
    except (CheckFailed, InputError) as error:
        return [str(error)], ""


def _collectives(manifest: Artefact, texts: Mapping[str, str]) -> list[str]:
    """The files of collective plans that a fusion plan's kernels execute. Raises InputError for other values."""
    names = manifest.facts.get("collectives", [])
    if not isinstance(names, list) or not all(isinstance(name, str) and name in texts for name in names):
        raise InputError(
            f"found {short(names)}, expected names of files in the folder",
            where=artefact.FILE_NAME,
            path="$.facts.collectives",
        )
    return names
