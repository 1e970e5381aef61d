"""The documents that a plan was made from: found again, and compared with the digests it recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import assert_never

from planner import documents
from planner.collective.algorithm import CollectiveDecisions
from planner.errors import InputError
from planner.fusion.decisions import FusionDecisions
from planner.hardware import Hardware, scaled
from planner.memory.decisions import MemoryDecisions
from planner.memory.problem import MemoryProblem
from planner.pattern import Pattern
from planner.plan import InputRef, Plan
from planner.sketch import Sketch
from planner.swap.decisions import SwapDecisions
from planner.swap.problem import SwapProblem
from planner.trace import Trace
from treadle.cli.inputs import beside, find

ROLES: dict[str, type[documents.Document]] = {
    "trace": Trace,
    "hardware": Hardware,
    "sketch": Sketch,
    "pattern": Pattern,
    "problem": MemoryProblem,
}


def inputs_of(
    plan: Plan, path: str, files: Mapping[str, str], fresh: bool
) -> tuple[list[str], dict[str, documents.Document]]:
    """Findings on inputs of the plan at `path` that changed since, and the inputs by role: those of `files`, which are
    named by role, with `fresh` all of them, wherever they are found."""
    findings: list[str] = []
    found: dict[str, documents.Document] = {}
    for role, reference in sorted(plan.inputs.items()):
        if role not in ROLES or not (fresh or role in files):
            continue
        file = find(role, reference, path, files.get(role))
        wanted = SwapProblem if role == "problem" and isinstance(plan.decisions, SwapDecisions) else ROLES[role]
        document: documents.Document = documents.load(file, wanted)
        if isinstance(document, Hardware):
            document = _as_large(document, plan, reference)
        if documents.digest(document) == reference.digest:
            found[role] = document
        else:
            findings.append(
                f"stale: {role} {file} is not the one the plan was made from ({reference.file}); plan again"
            )
    return findings, found


def missing(plan: Plan, path: str, files: Mapping[str, str]) -> list[str]:
    """The roles of inputs of the plan at `path` that are neither among `files`, which are named by role, nor found."""
    absent = []
    for role, reference in sorted(plan.inputs.items()):
        try:
            find(role, reference, path, files.get(role))
        except InputError:
            absent.append(role)
    return absent


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
    if documents.digest(hardware) == reference.digest:
        return hardware
    match plan.decisions:
        case CollectiveDecisions():
            nodes, rest = divmod(plan.decisions.ranks, hardware.devices_per_node)
        case FusionDecisions():
            nodes, rest = plan.decisions.nodes, 0
        case MemoryDecisions() | SwapDecisions():
            return hardware
        case _:
            assert_never(plan.decisions)
    if rest or nodes < 1 or (nodes > 1 and hardware.network is None) or hardware.other_nodes:
        return hardware
    other = scaled(hardware, nodes)
    return other if documents.digest(other) == reference.digest else hardware
