"""Where the inputs of a plan are found again: named on the command line, beside the plan, or shipped with the tool."""

from __future__ import annotations

from pathlib import Path

from treadle.cli.output import note
from treadle.planner import resources
from treadle.planner.documents import store, taccl_files
from treadle.planner.documents.parsing import parse
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.selection import Selection
from treadle.planner.documents.sketch import Sketch
from treadle.planner.errors import InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.collective.algorithm import CollectiveDecisions

SHIPPED = {"hardware": "profiles", "sketch": "sketches"}


def load_sketch(name_or_path: str) -> Sketch:
    """The sketch meant by a shipped name or a file; of a TACCL file, a note on stderr for all that is not carried over.

    Raises InputError when there is none or its file is malformed.
    """
    path = resources.locate("sketches", name_or_path)
    sketch = store.load(path, Sketch)
    for remark in taccl_files.remarks(parse(store.read_text(path), str(path))):
        note(f"{name_or_path}: {remark}")
    return sketch


def beside(plan_path: Path | str, reference: InputRef) -> str:
    """The file that `reference` means: beside the plan, else from here."""
    near = Path(plan_path).parent / reference.file
    by_name = Path(plan_path).parent / Path(reference.file).name
    return next((str(path) for path in (near, by_name) if path.is_file()), reference.file)


def plans_of(selection: Selection, path: Path | str) -> dict[str, Plan[CollectiveDecisions]]:
    """The plans that lie beside a selection, by file name. Raises InputError where one is missing or another one."""
    plans: dict[str, Plan[CollectiveDecisions]] = {}
    for entry in selection.entries:
        file = str(Path(path).parent / entry.plan.file)
        plan = plans.get(entry.plan.file) or require_pass(store.load(file, Plan), CollectiveDecisions, file)
        if store.digest(plan) != entry.plan.digest:
            raise InputError(f"found another plan than the one that {Path(path).name} was made with", where=file)
        plans[entry.plan.file] = plan
    return plans


def find(role: str, reference: InputRef, plan_path: Path | str, given: str | None) -> str:
    """The file of a plan's input `role` (trace, hardware or sketch). Raises InputError when there is none."""
    if given is not None:
        return given
    found = beside(plan_path, reference)
    if Path(found).is_file():
        return found
    if role in SHIPPED and "/" not in reference.file:
        shipped = resources.folder(SHIPPED[role]) / f"{reference.file}.yaml"
        if shipped.is_file():
            return str(shipped)
    raise InputError(
        f"found no {role} {reference.file!r} beside the plan, expected it there or named with --{role}",
        where=str(plan_path),
    )
