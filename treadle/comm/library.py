"""The algorithms of a folder, and which of them serves a call."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.emit import text_digest
from treadle.planner.documents import store
from treadle.planner.documents.artefact import FILE_NAME
from treadle.planner.documents.plan import Plan, Shots
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.selection import FILE_NAME as SELECTION_NAME
from treadle.planner.documents.selection import Selection
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.direct import is_in_switch
from treadle.runtime.collective.compare import predict
from treadle.runtime.collective.messages import in_switch_program, plan_in, programs_in, symmetric_of


@dataclass(frozen=True)
class LoadedAlgorithm:
    """One program. `min_bytes` and `max_bytes` are call bytes; a maximum of 0 is without limit."""

    name: str
    program: CollectiveProgram
    decisions: CollectiveDecisions | None
    method: str = ""
    symmetric: Shots | None = None
    """How a plan that was priced for it is done over symmetric memory, in place of its program."""

    @property
    def switched(self) -> bool:
        """Whether a switch executes it, and no program of messages can."""
        return self.decisions is not None and bool(self.decisions.switched)

    def serves(self, call_bytes: int) -> bool:
        most = self.program.max_bytes
        return self.program.min_bytes <= call_bytes and (not most or call_bytes <= most)

    @property
    def range(self) -> str:
        low, high = self.program.min_bytes, self.program.max_bytes
        if not low and not high:
            return "any size"
        return f"{format_bytes(low)} to {format_bytes(high)}" if high else f"{format_bytes(low)} and more"

    def predicted_us(self, input_bytes: int) -> float | None:
        """On the hardware of its plan, None for programs without one."""
        if self.switched:
            return None
        seconds = predict(self.program, self.decisions, input_bytes)
        return None if seconds is None else seconds * 1e6


@dataclass(frozen=True)
class Choice:
    """What a call does: `algorithm` by its name, or None and `reason`, why the framework's collective runs instead."""

    collective: str
    input_bytes: int
    algorithm: str | None
    reason: str
    predicted_us: float | None = None
    others: tuple[str, ...] = ()
    """Algorithms that were not taken."""

    def __str__(self) -> str:
        size = format_bytes(self.input_bytes)
        if self.algorithm is None:
            return f"{self.collective} of {size}: torch.distributed, {self.reason}"
        time = "" if self.predicted_us is None else f", predicted {self.predicted_us:.1f} us"
        return f"{self.collective} of {size}: {self.algorithm}, {self.reason}{time}"


@dataclass
class Library:
    """The algorithms of one folder, all for one number of ranks."""

    ranks: int
    algorithms: tuple[LoadedAlgorithm, ...]
    predictions: dict[tuple[str, int], float | None] = field(default_factory=dict)

    def alone(self) -> Library:
        """Every program with one instance: more give a GPU threadblocks, on a CPU they would only cut messages."""
        return Library(self.ranks, tuple(with_one_instance(one) for one in self.algorithms if not one.switched))

    def of(self, collective: str) -> list[LoadedAlgorithm]:
        return [one for one in self.algorithms if named(one) == collective]

    def choose(
        self, collective: str, input_bytes: int, *, inplace: bool, root: int | None = None
    ) -> tuple[LoadedAlgorithm | None, Choice]:
        """The algorithm for a call, or None; in both cases why. Of several that serve a size the one with the least
        predicted time is taken, the first of equals by name."""
        known = self.of(collective)
        if not known:
            return None, Choice(collective, input_bytes, None, f"there is no plan for {collective}")
        if root is not None:
            fitting = [one for one in known if (one.program.root or 0) == root]
            if not fitting:
                roots = ", ".join(sorted({str(one.program.root or 0) for one in known}))
                return None, Choice(collective, input_bytes, None, f"the plan is for root {roots}, not {root}")
            known = fitting
        call = call_bytes(collective, input_bytes, self.ranks)
        serving = [one for one in known if one.serves(call)]
        if not serving:
            low = format_bytes(min(one.program.min_bytes for one in known))
            high = format_bytes(max(one.program.max_bytes for one in known))
            reason = f"the plans are for calls of {low} to {high}, this is one of {format_bytes(call)}"
            return None, Choice(collective, input_bytes, None, reason)
        usable = [one for one in serving if one.program.inplace == inplace] or serving
        best = min(usable, key=lambda one: (self._time(one, input_bytes), one.name))
        others = tuple(one.name for one in usable if one is not best)
        reason = f"for {best.range}" if not others else f"the shortest predicted of {len(usable)}"
        if best.method:
            reason += f", {best.method}"
        time = self._time(best, input_bytes)
        return best, Choice(collective, input_bytes, best.name, reason, None if time == float("inf") else time, others)

    def _time(self, algorithm: LoadedAlgorithm, input_bytes: int) -> float:
        key = (algorithm.name, input_bytes)
        if key not in self.predictions:
            self.predictions[key] = algorithm.predicted_us(input_bytes)
        time = self.predictions[key]
        return float("inf") if time is None else time


def named(algorithm: LoadedAlgorithm) -> str:
    """The collective; the plan says it where the file only says custom."""
    return algorithm.program.collective if algorithm.decisions is None else algorithm.decisions.collective


def call_bytes(collective: str, input_bytes: int, ranks: int) -> int:
    """What the public runtimes compare with a file's range: the output of an allgather, one rank's part of a scatter,
    else the input."""
    return {"allgather": input_bytes * ranks, "scatter": input_bytes // ranks}.get(collective, input_bytes)


def load(folder: Path | str, ranks: int) -> Library:
    """The algorithms in `folder`: artefacts of a plan or of a selection, one MSCCL XML file, or a folder of those.

    Raises InputError when there are none, when one was changed since it was generated or is for another number of
    ranks; CheckFailed for a foreign file that fails its check.
    """
    path = Path(folder)
    found = _found(path)
    for algorithm in found:
        if len(algorithm.program.ranks) != ranks:
            raise InputError(
                f"found an algorithm for {len(algorithm.program.ranks)} ranks, expected one for {ranks}",
                where=str(path / algorithm.name) if path.is_dir() else str(path),
            )
    return Library(ranks, tuple(found))


def load_fitting(folder: Path | str, ranks: int) -> Library:
    """Those of the algorithms in `folder` that are for `ranks`, maybe none; raises as `load` does."""
    return Library(ranks, tuple(one for one in _found(Path(folder)) if len(one.program.ranks) == ranks))


def programs(library: Library) -> list[tuple[str, str]]:
    """Names and digests, for comparison: ranks with different programs would wait for each other's messages forever."""
    return [(one.name, text_digest(repr(one.program))) for one in library.algorithms]


def _found(path: Path) -> list[LoadedAlgorithm]:
    if not path.is_dir() or (path / FILE_NAME).is_file():
        return _in_folder(path, "")
    inner = sorted(sub for sub in path.iterdir() if (sub / FILE_NAME).is_file())
    if not inner:
        raise InputError(f"found no {FILE_NAME}, expected a folder that `treadle generate` wrote, or a folder of "
                         "such folders", where=str(path))  # fmt: skip
    return [algorithm for sub in inner for algorithm in _in_folder(sub, f"{sub.name}/")]


def _in_folder(path: Path, prefix: str) -> list[LoadedAlgorithm]:
    plan = plan_in(path) if path.is_dir() else None
    if plan is not None and is_in_switch(plan.decisions):
        program = in_switch_program(plan.decisions)
        return [LoadedAlgorithm(f"{prefix}{program.name}", program, plan.decisions, symmetric=symmetric_of(plan))]
    programs = programs_in(path)
    if path.is_file():
        for name, program in programs.items():
            if findings := check_program.check(program):
                raise CheckFailed(
                    f"{path}: not loaded, its check failed", tuple(f"{name}: {text}" for text in findings)
                )
        return [LoadedAlgorithm(name, program, None) for name, program in sorted(programs.items())]
    if (path / SELECTION_NAME).is_file():
        return _of_selection(path, prefix, programs)
    decisions, symmetric = (None, None) if plan is None else (plan.decisions, symmetric_of(plan))
    return [
        LoadedAlgorithm(prefix + name, program, decisions, symmetric=symmetric)
        for name, program in sorted(programs.items())
    ]


def _of_selection(path: Path, prefix: str, programs: dict[str, CollectiveProgram]) -> list[LoadedAlgorithm]:
    """Programs are named by the number of their entry: `00-allreduce.xml`."""
    selection = store.load(path / SELECTION_NAME, Selection)
    found = []
    for name, program in sorted(programs.items()):
        entry = selection.entries[int(name.split("-")[0])]
        file = path / entry.plan.file
        plan = require_pass(store.load(file, Plan), CollectiveDecisions, str(file))
        decisions = replace(plan.decisions, instances=entry.instances, protocol=entry.protocol)
        found.append(LoadedAlgorithm(prefix + name, program, decisions, entry.method, symmetric_of(plan)))
    return found


def with_one_instance(algorithm: LoadedAlgorithm) -> LoadedAlgorithm:
    """The same plan lowered with one instance."""
    program, decisions = algorithm.program, algorithm.decisions
    if decisions is None or decisions.instances == 1:
        return algorithm
    decisions = replace(decisions, instances=1)
    alone = lower(decisions, inplace=program.inplace)
    alone = dataclasses.replace(alone, min_bytes=program.min_bytes, max_bytes=program.max_bytes)
    return dataclasses.replace(algorithm, program=alone, decisions=decisions)
