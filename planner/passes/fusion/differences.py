"""How two fusion plans differ: program, sizes, transformations and launches."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff

from treadle.planner.documents.difference import Change, changed, differences, fields_changed, more_and_less
from treadle.planner.documents.explain import short
from treadle.planner.passes.fusion.decisions import FusionDecisions, StageChoice, TransformCall

MACHINE = ("ranks", "groups", "nodes", "library")
FIGURES = ("volume", "volume_between_groups", "traffic", "state", "considered")
LAUNCH = ("kind", "algorithm", "protocol", "channels", "overlaps", "time_ns", "own_ns")


def fusion_differences(before: FusionDecisions, after: FusionDecisions) -> list[Change]:
    """What is computed first, then how it is cut into launches, and how those run."""
    return [
        *_program(before.program, after.program),
        *differences(before.extents, after.extents, "sizes"),
        *differences(before.parts, after.parts, "parts"),
        *fields_changed(before, after, MACHINE),
        *more_and_less(
            "transformations", map(_call, before.transforms), map(_call, after.transforms), "transformation"
        ),
        *_launches(before.stages, after.stages),
        *fields_changed(before, after, FIGURES),
        *differences(before.measured_ns, after.measured_ns, "measured_ns"),
    ]


def _program(before: str, after: str) -> Iterator[Change]:
    lines = list(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[3:]
    for line in lines:
        if not line.startswith("@@"):
            yield Change("program", f"{'now has' if line[0] == '+' else 'no longer has'} `{line[1:].strip()}`")


def _call(call: TransformCall) -> str:
    words = [str(value) if isinstance(value, str) else short(value) for _, value in sorted(call.arguments.items())]
    return f"{call.transform}({', '.join(words)})"


def _launches(before: tuple[StageChoice, ...], after: tuple[StageChoice, ...]) -> Iterator[Change]:
    old, new = ({stage.name: stage for stage in stages} for stages in (before, after))
    yield from more_and_less("launches", old, new, "launch")
    for name in new:
        if name in old:
            one, other = old[name], new[name]
            yield from more_and_less(f"{name} operations", one.members, other.members, "operation")
            for field in LAUNCH:
                yield from changed(f"{name} {field}", getattr(one, field), getattr(other, field))
