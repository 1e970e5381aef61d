"""How each collective kernel of a schedule runs: algorithm, protocol, channels, as the plan priced or measured it.

Every launch has its own choice; stages that overlap share one (CoCoNet, section 5.2). A choice that no kernel supports
has stand-ins; the first that works is taken and recorded in `Lowered.changed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.fusion import phased
from treadle.codegen.fusion.algorithms import ProgramFactory, chosen, named, planned
from treadle.codegen.fusion.context import Protocol
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.anatomy import PROGRAMS, anatomy_of
from treadle.planner.passes.fusion.decisions import StageChoice
from treadle.planner.passes.fusion.stages import Stage

NAMES = {"hierarchical": "two-level", "tree": "double-tree"}
"""Algorithms of the price model by the names of the planner's templates, where they differ."""
WITHOUT = {"send": "direct"}
"""Collectives that no algorithm is chosen for."""


@dataclass(frozen=True)
class Carried:
    """The algorithm of a collective plan in `file`, instead of one by name. `digest` is the plan's."""

    file: str
    digest: str
    program: CollectiveProgram


@dataclass(frozen=True)
class CollectiveChoice:
    """`channels` copies of `algorithm`, by its name in treadle.codegen.fusion.algorithms, on nodes of `per_node` ranks;
    what is `carried` runs on its own."""

    algorithm: str | ProgramFactory = "ring"
    protocol: Protocol = "Simple"
    channels: int = 1
    per_node: int | None = None
    carried: tuple[Carried, ...] = ()

    @cached_property
    def made(self) -> ProgramFactory:
        """Raises InputError for an unknown name."""
        usual = named(self.algorithm, self.per_node) if isinstance(self.algorithm, str) else self.algorithm
        given = {each.program.collective: planned(each.program) for each in self.carried}
        return chosen(given, usual) if given else usual

    def described(self, collectives: Sequence[str]) -> str:
        """The algorithm of these collectives in words: `ring, LL, 2 channels`."""
        files = {each.program.collective: f"plan {each.file}" for each in self.carried}
        usual = self.algorithm if isinstance(self.algorithm, str) else "an algorithm of the caller"
        usual = "all-pairs" if "alltoall" in collectives and usual == "ring" else usual
        names = " and ".join(dict.fromkeys(files.get(each) or WITHOUT.get(each, usual) for each in collectives))
        return f"{names}, {self.protocol}, {self.channels} channel{'s' if self.channels > 1 else ''}"


Choices = Mapping[str, tuple[CollectiveChoice, ...]]
"""The choice of each stage and its stand-ins, in order."""


def with_stand_ins(choice: CollectiveChoice) -> tuple[CollectiveChoice, ...]:
    """A ring carries all that any algorithm does, and Simple all that any protocol does."""
    ring = replace(choice, algorithm="ring")
    return tuple(dict.fromkeys((choice, replace(choice, protocol="Simple"), ring, replace(ring, protocol="Simple"))))


def choices_of(
    stages: Sequence[Stage], priced: Sequence[StageChoice], per_node: int, carried: Sequence[Carried]
) -> dict[str, tuple[CollectiveChoice, ...]]:
    """The choices of a plan for each stage with a collective. A plan that is `carried` has no stand-in. Raises
    InputError, which names the file, for a carried plan of a collective that no stage has, or that two are for."""
    used = {stage.name: collectives_of(stage) for stage in stages if collectives_of(stage)}
    have = sorted({each for collectives in used.values() for each in collectives})
    for number, plan in enumerate(carried):
        kind = plan.program.collective
        if kind not in have:
            message = f"found a plan for {kind}, expected one for {', '.join(have) or 'nothing'}"
            raise InputError(message, where=plan.file)
        if kind in [other.program.collective for other in carried[:number]]:
            raise InputError(f"found another plan for {kind}, expected one", where=plan.file)
    choices = {stage.name: stage for stage in priced}
    found: dict[str, tuple[CollectiveChoice, ...]] = {}
    for name, collectives in used.items():
        stage = choices.get(name)
        algorithm, protocol, channels = (
            (stage.algorithm or "ring", stage.protocol or "Simple", stage.channels or 1)
            if stage is not None
            else ("ring", "Simple", 1)
        )
        choice = CollectiveChoice(NAMES.get(algorithm, algorithm), protocol, channels, per_node, tuple(carried))
        mine = [plan.program for plan in carried if plan.program.collective in collectives]
        if mine:
            # The plan was made for its protocol, and says itself how many channels it has.
            found[name] = (replace(choice, protocol=_protocol(mine[0]), channels=mine[0].channels),)
        else:
            found[name] = with_stand_ins(choice)
    return found


def collectives_of(stage: Stage) -> tuple[str, ...]:
    """The programs that a stage runs, by the names of `Program.collective`; none without a collective."""
    alone = tuple(PROGRAMS[node.op] for node in stage.nodes if node.op in PROGRAMS)
    return (anatomy_of(stage).collective,) if len(alone) > 1 and not phased.fits(stage) else alone


def _protocol(program: CollectiveProgram) -> Protocol:
    return program.protocol if program.protocol in ("Simple", "LL", "LL128") else "Simple"  # type: ignore[return-value]
