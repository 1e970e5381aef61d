"""Whether each rival of a plan is what its name says, from the names and their options written down once more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from treadle.planner.passes.compression.decisions import CompressionRival
from treadle.planner.passes.compression.problem import CompressionProblem

UNCOMPRESSED = "uncompressed"
Form = tuple[str | None, tuple[str, ...]]
"""A compressor and its steps."""


class RivalKind(NamedTuple):
    """What the groups of a rival are: gradients `alone`, with one of `forms` if those are fixed, else with one of the
    `compressors`, None for groups that go as they are."""

    alone: bool
    forms: tuple[Form, ...] = ()
    compressors: tuple[str | None, ...] = ()


def plain_steps(problem: CompressionProblem) -> tuple[str, ...]:
    """How a gradient goes as it is."""
    if problem.machines > 1 and problem.devices > 1:
        return ("reduce-scatter@intra", "allreduce@inter", "allgather@intra")
    return ("allreduce@flat",)


def wrong_rivals(problem: CompressionProblem, rivals: Sequence[CompressionRival]) -> Iterator[tuple[str, str, str]]:
    """(path, found, expected) for what a rival's name does not promise, a name that is none, a rival that comes twice,
    and no rival without compression, which every speed-up is stated against."""
    known, seen = kinds(problem), set()
    for place, rival in enumerate(rivals):
        path = f"$.decisions.rivals[{place}]"
        if rival.name in seen:
            yield f"{path}.name", f"{rival.name!r} again", "each rival once"
        seen.add(rival.name)
        if rival.name not in known:
            yield f"{path}.name", repr(rival.name), f"one of {', '.join(map(repr, known))}"
            continue
        kind = known[rival.name]
        for number, group in enumerate(rival.groups):
            within = f"{path}.groups[{number}]"
            if kind.alone and group.last > group.first:
                yield within, f"gradients {group.first} to {group.last}", f"one gradient in a group of {rival.name}"
            form = group.compressor, group.steps
            if kind.forms and form not in kind.forms:
                forms = " or ".join(f"{', '.join(steps)} ({name or 'as it is'})" for name, steps in kind.forms)
                yield within, ", ".join(group.steps), f"{forms} in {rival.name}"
            elif not kind.forms and group.compressor not in kind.compressors:
                names = " or ".join(name or "none" for name in kind.compressors)
                yield f"{within}.compressor", str(group.compressor), f"{names} in {rival.name}"
    if problem.ranks > 1 and UNCOMPRESSED not in seen:
        yield "$.decisions.rivals", f"none called {UNCOMPRESSED!r}", "the one that the speed-up is stated against"


def kinds(problem: CompressionProblem) -> dict[str, RivalKind]:
    """The rivals that a plan of this problem may have, by name."""
    names = problem.names
    plain: Form = None, plain_steps(problem)
    found = {
        UNCOMPRESSED: RivalKind(True, (plain,)),
        "espresso, published": RivalKind(True, compressors=(None, *names[:1])),
        "espresso": RivalKind(True, compressors=(None, *names)),
        "groups, uncompressed": RivalKind(False, (plain,)),
    }
    for name in names:
        gathered: Form = name, _gathered(problem, name)
        ending = f", {name}" if len(names) > 1 else ""
        found |= {
            f"espresso, published{ending}": RivalKind(True, compressors=(None, name)),
            f"GRACE{ending}": RivalKind(True, (gathered,)),
            f"HiTopKComm{ending}": RivalKind(True, (gathered,)),
            f"all compression{ending}": RivalKind(True, compressors=(name,)),
            f"groups, {name}": RivalKind(False, (gathered,)),
            f"groups, {name} or uncompressed": RivalKind(False, (plain, gathered)),
            f"algorithm 5.1, {name}": RivalKind(False, (gathered,)),
        }
    grouped = {name: kind for name, kind in found.items() if name.startswith("groups, ")}
    return found | {f"{name}, decoding ignored": kind for name, kind in grouped.items()}


def _gathered(problem: CompressionProblem, name: str) -> tuple[str, ...]:
    """Payloads gathered between nodes, or between all ranks of one level; on the device where the compressor is."""
    places = [cost.place for cost in problem.compressors if cost.name == name]
    place = "device" if "device" in places else "host"
    encode, decode = f"compress@{place}", f"decompress@{place}"
    if problem.machines > 1 and problem.devices > 1:
        return ("reduce-scatter@intra", encode, "allgather@inter", decode, "allgather@intra")
    return (encode, "allgather@flat", decode)
