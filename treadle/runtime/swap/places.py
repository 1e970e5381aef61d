"""Where every storage lies while each node runs, and what lies where when an iteration ends.

The addresses of a plan are those of its first iteration. Where residents end in other objects of their class than they
start in, the objects change roles from one iteration to the next: `moved` gives the object at each address of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from treadle.planner.errors import InputError
from treadle.runtime.swap.step import SwapStep, tensors_of


@dataclass(frozen=True)
class Places:
    """`during[n]` are the addresses of the storages that node n touches, `ending[n]` those whose place it gives up.
    `left` are the storages on the device when the iteration ends."""

    during: tuple[dict[str, int], ...]
    ending: tuple[dict[str, int], ...]
    left: dict[str, int]


def places_of(step: SwapStep) -> Places:
    """Follow every storage through the nodes of `step`. Raises InputError where a node reads what is not on the device,
    or where the iteration does not end with the residents that it says."""
    calls = step.calls(torch.device("meta"))
    layouts = step.layouts
    empty = {name: 0 for name, storage in step.storages.items() if not storage.bytes}
    here = empty | step.initial
    during, ending = [], []
    for number, node in enumerate(step.nodes):
        if node.kind == "compute":
            names = {layouts[name].storage for name in tensors_of(calls[node.item])}
            for storage in sorted(names - here.keys()):
                text = f"node {number} runs {node.item!r}, which reads {storage!r}; it is not on the device then"
                raise InputError(text, where=step.name)
        elif node.kind == "in":
            names = set()
        elif node.item in here:
            names = {node.item}
        else:
            text = f"node {number} takes {node.item!r} off the device, where it is not"
            raise InputError(text, where=step.name)
        here.update(node.at)
        during.append({name: here[name] for name in sorted(names | node.at.keys())})
        gone = node.kind in ("out", "drop") and not node.early
        ends = node.ends if node.kind == "compute" else (node.item,) if gone else ()
        ending.append({name: here.pop(name) for name in ends if name not in empty})
    resident = {name: at for name, at in here.items() if name in step.persistent and name not in empty}
    final = {name: at for name, at in step.final.items() if name not in empty}
    if resident != final or step.final.keys() != step.initial.keys():
        says = ", ".join(sorted(final.keys() ^ resident.keys()) or sorted(final.keys() ^ step.initial.keys()) or final)
        text = f"the iteration ends with other residents than it says, or elsewhere: {says}; it could not run again"
        raise InputError(text, where=step.name)
    if not step.pool and step.final != step.initial:
        name = next(name for name in step.final if step.final[name] != step.initial[name])
        text = f"found {name!r} at another address when the iteration ends, expected the same; plan again"
        raise InputError(text, where=step.name)
    return Places(tuple(during), tuple(ending), here)


def objects_of(step: SwapStep) -> dict[int, int]:
    """The address of each object of the pool, as the object that stands there."""
    return {start + size * number: start + size * number for start, size, count in step.pool for number in range(count)}


def moved(step: SwapStep, objects: Mapping[int, int]) -> dict[int, int]:
    """Which object stands at each address of the plan in the iteration after the one with `objects`: residents are
    found where the plan has them at the start, the other objects of a class fill up in order."""
    after = {step.initial[name]: objects[at] for name, at in step.final.items() if at in objects}
    if all(objects[at] == there for at, there in after.items()):
        return dict(objects)
    for start, size, count in step.pool:
        addresses = [start + size * number for number in range(count)]
        taken = {after[at] for at in addresses if at in after}
        rest = iter([objects[at] for at in addresses if objects[at] not in taken])
        after.update({at: next(rest) for at in addresses if at not in after})
    return after
