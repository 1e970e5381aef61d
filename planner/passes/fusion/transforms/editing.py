"""What all transformations share: looking stages up, names that are free, and putting a program in order again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from graphlib import CycleError
from itertools import groupby
from typing import NoReturn

from treadle.planner.passes.fusion.infer import retyped
from treadle.planner.passes.fusion.layouts import Replicated
from treadle.planner.passes.fusion.naming import canonical
from treadle.planner.passes.fusion.program import Node, Program
from treadle.planner.passes.fusion.refusal import InvalidTransform
from treadle.planner.passes.fusion.stages import Stage, behind, home_of, kind, launches, ordered, stage_of


@dataclass(frozen=True)
class Rewrite:
    """The program after a transformation, and the names of what it made."""

    program: Program
    made: tuple[str, ...] = ()
    gathers: Mapping[str, str] = field(default_factory=dict)
    """By the old name of a value that a reorder moved: the collective that makes it whole again."""


def refuse(transform: str, code: str, witness: str, message: str) -> NoReturn:
    """Raises InvalidTransform."""
    raise InvalidTransform(transform, code, witness, message)


def launched(program: Program, transform: str, name: str) -> Stage:
    """The stage called `name`. Raises InvalidTransform: unknown, view, fused, overlapped."""
    for overlap in program.overlaps:
        if name in overlap.members:
            refuse(transform, "overlapped", overlap.name, f"found {name} inside {overlap.name}, expected overlap last")
    homes = home_of(program)
    value = program.by_name.get(name)
    if isinstance(value, Node) and kind(value) == "view":
        refuse(transform, "view", name, f"found {name}, a view that no launch makes, expected an operation or kernel")
    home = homes.get(name) or next((k.name for k in program.kernels if name in k.members), name)
    if home != name:
        refuse(transform, "fused", home, f"found {name} inside {home}, expected the whole of it")
    if name not in homes.values():
        refuse(transform, "unknown", name, f"found no operation or kernel {name!r} in {program.name}")
    return stage_of(program, name, homes)


def single(program: Program, transform: str, name: str) -> Node:
    """The operation that is a launch of its own, `name`. Raises InvalidTransform as `launched`."""
    stage = launched(program, transform, name)
    if stage.kernel is not None:
        refuse(transform, "fused", name, f"found the kernel {name}, expected an operation that no kernel holds")
    return stage.nodes[-1]


def distinct(transform: str, names: Iterable[str]) -> None:
    """Raises InvalidTransform, repeated."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            refuse(transform, "repeated", name, f"found {name} twice, expected every operation once")
        seen.add(name)


class Names:
    """Names that nothing in the program has yet."""

    def __init__(self, program: Program) -> None:
        self.taken = {*program.by_name, *(x.name for x in program.kernels), *(x.name for x in program.overlaps)}

    def fresh(self, stem: str) -> str:
        name, number = stem, 1
        while name in self.taken:
            number += 1
            name = f"{stem}_{number}"
        self.taken.add(name)
        return name

    def given(self, transform: str, name: str | None, stem: str) -> str:
        """`name`, which must be free, or one made from `stem`."""
        if name is None:
            return self.fresh(stem)
        if name in self.taken:
            refuse(transform, "name", name, f"found the name {name} taken, expected another")
        self.taken.add(name)
        return name


def redirected(nodes: Iterable[Node], names: Mapping[str, str]) -> tuple[Node, ...]:
    """The nodes reading these other values instead."""
    return tuple(
        replace(node, inputs=tuple(names.get(x, x) if isinstance(x, str) else x for x in node.inputs)) for node in nodes
    )


def materialises(program: Program, gather: Node) -> str | None:
    """The Replicated input that a gather makes whole again after its Update, None when it has no such duty."""
    made = program.by_name.get(str(gather.inputs[0]))
    if gather.op != "AllGather" or not isinstance(made, Node) or made.op != "Update":
        return None
    target = str(made.inputs[0])
    return target if isinstance(program.by_name[target].type.layout, Replicated) else None


def settled(transform: str, program: Program) -> Program:
    """The program with its nodes in an order in which they may run, named canonically and typed again.

    An Update follows all who read its target from before. Raises InvalidTransform: anti-dependence, cycle.
    """
    waits: dict[str, set[str]] = {node.name: set() for node in program.nodes}
    for node in program.nodes:
        for name in node.reads:
            if name in waits:
                waits[node.name].add(name)
            update = program.updates.get(behind(program, name))
            if update is not None and update.name != node.name:
                waits[update.name].add(node.name)
    position = {node.name: number for number, node in enumerate(program.nodes)}
    nodes = {node.name: node for node in program.nodes}
    try:
        order = tuple(nodes[name] for name in ordered(waits, position))
    except CycleError as error:
        path = " -> ".join(error.args[1])
        refuse(transform, "anti-dependence", path, f"found a value read after its tensor is overwritten ({path})")
    whole = retyped(canonical(replace(program, nodes=order)))
    circle = cycle(whole)
    if circle:
        refuse(transform, "cycle", circle, f"found launches that would wait for each other ({circle})")
    return whole


def cycle(program: Program) -> str | None:
    """Launches of the program that wait for each other, as `a -> b -> a`; None when it can run."""
    try:
        launches(program, home_of(program))
    except CycleError as error:
        return " -> ".join(error.args[1])
    return None


def path_between(
    waits: Mapping[str, set[str]], inside: Iterable[str], sources: Iterable[str], homes: Mapping[str, str]
) -> str | None:
    """A path from `inside` or `sources` through others into `inside`, as `a -> x -> b`; None when there is none.

    `waits`: for every name, after all names it waits for, those names. `homes`: how the path calls them.
    """
    held, starts = set(inside), {*inside, *sources}
    via: dict[str, str] = {}
    for name, before in waits.items():
        through = next((x for x in sorted(before) if x in via), None)
        start = through or next((x for x in sorted(before) if x in starts), None)
        if name in held and through is not None:
            path = [name, through]
            while path[-1] in via:
                path.append(via[path[-1]])
            return " -> ".join(home for home, _ in groupby(homes[x] for x in reversed(path)))
        if name not in held and start is not None:
            via[name] = start
    return None
