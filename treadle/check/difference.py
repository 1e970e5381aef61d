"""How two files of one kind differ: plans part by part in the words of their pass, other documents by their fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from treadle.codegen.emit import manifest_in
from treadle.codegen.targets import PLAN_NAME
from treadle.planner.documents import artefact, store
from treadle.planner.documents.artefact import Artefact
from treadle.planner.documents.difference import Change, changed, differences
from treadle.planner.documents.plan import Certificate, InputRef, Plan, Prediction, Provenance
from treadle.planner.documents.scalars import Document
from treadle.planner.documents.tuned import Tuned
from treadle.planner.errors import InputError
from treadle.planner.passes import name_of, pass_of


@dataclass(frozen=True)
class Comparison:
    """What was compared, in a few words, and the changes by section; a section without any is empty."""

    what: str
    sections: dict[str, list[Change]]

    @property
    def equal(self) -> bool:
        """Whether no section has a change."""
        return not any(self.sections.values())


def compare_files(before: str, after: str) -> Comparison:
    """The differences of two documents, or of two folders of artefacts.

    Raises InputError for files of different kinds, plans of different passes, and what cannot be read.
    """
    folders = [Path(path).is_dir() for path in (before, after)]
    if all(folders):
        return _folders(Path(before), Path(after))
    if any(folders):
        folder, file = (before, after) if folders[0] else (after, before)
        raise InputError(f"found a file to compare with the folder {folder}, expected a folder too", where=file)
    old, new = _document(before), _document(after)
    if isinstance(old, Plan) and isinstance(new, Plan):
        return _plans(old, new, after)
    _require_same(_kind(old), _kind(new), after)
    return Comparison(f"documents of kind {_kind(old)}", {"content": _or_any(differences(old, new), old, new)})


def compare_plans(before: Plan, after: Plan) -> dict[str, list[Change]]:
    """The changes of every part of two plans of one pass, the decisions in the words of that pass. Inputs come first:
    predictions of plans for different ones do not compare."""
    decisions = pass_of(before).differences(before.decisions, after.decisions)
    if not decisions and before.decisions != after.decisions:
        decisions = differences(before.decisions, after.decisions)
    return {
        "inputs": list(_inputs(before.inputs, after.inputs)),
        "decisions": decisions,
        "prediction": _prediction(before.prediction, after.prediction),
        "certificate": list(_certificate(before.certificate, after.certificate)),
        "provenance": list(_provenance(before.provenance, after.provenance)),
    }


def _plans(before: Plan, after: Plan, where: str) -> Comparison:
    name = name_of(before.decisions)
    _require_same(f"{name} plan", f"{name_of(after.decisions)} plan", where)
    sections = compare_plans(before, after)
    if not any(sections.values()):
        sections["decisions"] = _or_any([], before, after)
    return Comparison(f"{name} plans", sections)


def _or_any(changes: list[Change], before: Document, after: Document) -> list[Change]:
    """`changes`, or one in general words if only the canonical forms differ."""
    if changes or store.digest(before) == store.digest(after):
        return changes
    return [Change("spelling", "numbers such as 1 and 1.0 of free fields differ")]


def _prediction(before: Prediction, after: Prediction) -> list[Change]:
    times = changed("time_us", before.time_us, after.time_us)
    return times + changed("peak_bytes", before.peak_bytes, after.peak_bytes)


def _certificate(before: Certificate, after: Certificate) -> Iterator[Change]:
    yield from changed("objective_ns", before.objective, after.objective)
    yield from changed("lower_bound_ns", before.lower_bound, after.lower_bound)
    if before.gap != after.gap:
        yield Change("gap", f"{before.gap:.2%} -> {after.gap:.2%}", before.gap, after.gap)
    named = ("objective", "lower_bound", "gap")
    old, new = ({**msgspec.to_builtins(each), **dict.fromkeys(named)} for each in (before, after))
    yield from differences(old, new)


def _provenance(before: Provenance, after: Provenance) -> Iterator[Change]:
    """All changes; for measured choices what was taken and how far off the model was, since times vary between runs."""
    yield from differences(msgspec.structs.replace(before, tuned=()), msgspec.structs.replace(after, tuned=()))
    old, new = ({tuned.what: tuned for tuned in each.tuned} for each in (before, after))
    for what in sorted({*old, *new}):
        if old.get(what) != new.get(what):
            yield Change(what, f"{_taken(old.get(what))} -> {_taken(new.get(what))}")


def _taken(tuned: Tuned | None) -> str:
    if tuned is None:
        return "not measured"
    return tuned.chosen if tuned.off is None else f"{tuned.chosen} (measured / predicted: {tuned.off:.3g})"


def _inputs(before: dict[str, InputRef], after: dict[str, InputRef]) -> Iterator[Change]:
    """Which inputs are other ones, by their digests."""
    for role in sorted({*before, *after}):
        old, new = before.get(role), after.get(role)
        if old is None or new is None:
            yield Change(role, f"{old.file if old else 'none'} -> {new.file if new else 'none'}")
        elif old.digest != new.digest:
            digests = f"{_brief(old)} -> {_brief(new)}"
            same = old.file == new.file
            how = f"{old.file} has changed ({digests})" if same else f"{old.file} -> {new.file} ({digests})"
            yield Change(role, how, old.digest, new.digest)
        elif old.file != new.file:
            yield Change(role, f"{old.file} -> {new.file}, with the same content", old.file, new.file)


def _brief(reference: InputRef) -> str:
    return reference.digest.removeprefix("sha256:")[:8]


def _folders(before: Path, after: Path) -> Comparison:
    """Manifests, and the plans in the folders where both have one of the same pass."""
    old, new = manifest_in(before), manifest_in(after)
    sections = {"artefacts": list(_manifests(old, new))}
    files = [folder / PLAN_NAME for folder in (before, after)]
    if all(file.is_file() for file in files):
        plans = [store.load(file, Plan) for file in files]
        sections |= _plans(plans[0], plans[1], str(files[1])).sections
    return Comparison("folders of artefacts", sections)


def _manifests(before: Artefact, after: Artefact) -> Iterator[Change]:
    old_facts, new_facts = ({**msgspec.to_builtins(each), "files": {}, "plan": {}} for each in (before, after))
    yield from differences(old_facts, new_facts)
    for name in sorted({*before.files, *after.files} - {PLAN_NAME, artefact.FILE_NAME}):
        old, new = before.files.get(name), after.files.get(name)
        if old != new:
            how = "differs" if old and new else f"only in the {'first' if old else 'second'}"
            yield Change(name, how, old, new)


def _document(path: str) -> Document:
    if store.read_text(path).lstrip("\ufeff \t\r\n").startswith("<"):
        raise InputError("found MSCCL XML, expected a document; compare the plans that generated it", where=path)
    return store.load_any(path)


def _kind(document: Document) -> str:
    return str(document.__struct_config__.tag)


def _require_same(before: str, after: str, where: str) -> None:
    if before != after:
        raise InputError(f"found a {after}, expected a {before} like the first file", where=where)
