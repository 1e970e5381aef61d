"""The workload of an index plan: drawn as a document says, or read from files of keys and operations."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.index_model import IndexModel
from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.sources import SHIPPED, beside, load_named
from treadle.planner.errors import InputError
from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.operations import Workload, digest_of_file, payloads_of, read_keys, read_operations
from treadle.planner.passes.index.problem import DrawnWorkload, IndexProblem, WorkloadFiles
from treadle.planner.passes.index.workload import IndexWorkload


class GivenWorkload(NamedTuple):
    """A workload, what it is called, where it comes from, and the documents that the plan names as its inputs."""

    name: str
    source: WorkloadFiles | DrawnWorkload
    workload: Workload
    inputs: dict[str, InputRef]


def drawn_from(file: str) -> GivenWorkload:
    """The workload that the document in `file` describes. Raises InputError for a file that holds another thing."""
    document = store.load(file, IndexWorkload)
    inputs = {"workload": InputRef(file=Path(file).name, digest=store.digest(document))}
    return GivenWorkload(document.name, document.draw, drawn(document.draw), inputs)


def read_from(keys: str, operations: str) -> GivenWorkload:
    """The workload in two files. Raises InputError for what is wrong with them."""
    source = WorkloadFiles(keys=reference_of(keys), operations=reference_of(operations))
    return GivenWorkload(f"{Path(keys).stem}, {Path(operations).stem}", source, _loaded(keys, operations), {})


def evaluator(name: str | None) -> tuple[IndexModel, InputRef]:
    """The model of a shipped name (`index/` may precede it, as in `profile show`) or a file, by default the first that
    ships. Raises InputError for another name."""
    shipped = resources.names(SHIPPED[IndexModel])
    if name is None and not shipped:
        raise InputError("found none that ships, expected one; see `treadle profile measure --index`", where="--model")
    chosen = shipped[0] if name is None else name
    if chosen.removeprefix("index/") in shipped and not Path(chosen).exists():
        chosen = chosen.removeprefix("index/")
    model = load_named(IndexModel, chosen)
    return model, InputRef(file=chosen if chosen in shipped else Path(chosen).name, digest=store.digest(model))


def workload_of(problem: IndexProblem, plan_file: Path) -> Workload:
    """The trace subset of a plan again. Its files, if any, are next to the plan, next to the plan's folder or in the
    current one. Raises InputError where one is missing or has other bytes than those the plan was made from, and where
    keys and operations are not as many as the plan says."""
    of = problem.workload
    if isinstance(of, DrawnWorkload):
        whole = drawn(of)
    else:
        whole = _loaded(*(_same_file(each, plan_file) for each in (of.keys, of.operations)))
    subset = whole.first(problem.operations)
    found = {"whole": len(whole.operations.ops), "bulk": len(subset.keys), **subset.counts()._asdict()}
    for name, count in {**found, "keys_at_end": subset.keys_at_end()}.items():
        if (planned := getattr(problem, name)) != count:
            text = f"found {planned}, its workload has {count}; plan again"
            raise InputError(text, where=str(plan_file), path=f"$.decisions.problem.{name}")
    return subset


def reference_of(file: str) -> InputRef:
    """The name of a file and the digest of its bytes. Raises InputError for one that cannot be read."""
    return InputRef(file=Path(file).name, digest=digest_of_file(file))


def _loaded(keys: str, operations: str) -> Workload:
    found = read_keys(keys)
    return Workload(found, payloads_of(found), read_operations(operations))


def _same_file(wanted: InputRef, plan_file: Path) -> str:
    near = beside(plan_file, wanted.file)
    places = dict.fromkeys((near, str(plan_file.parent.resolve().parent / wanted.file)))
    found = next((place for place in places if Path(place).is_file()), None)
    if found is None:
        text = f"found no {wanted.file!r} next to the plan, next to its folder or here, from which the plan was made"
        raise InputError(text, where=str(plan_file))
    if reference_of(found).digest != wanted.digest:
        raise InputError("found other bytes than those that the plan was made from; plan again", where=found)
    return found
