"""Which ops of a trace stand at the same place of repeated blocks of the model, such as the layers of a transformer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from treadle.planner.documents.trace import Op, Tensor

Instance = tuple[str, int]
"""The name of a list of modules, and the number of one of them."""


def blocks_of(ops: Sequence[Op], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """A word such as `blocks.*/17` for each op, and for each parameter and buffer, of a block that occurs again.

    The trace states modules of the forward pass only: an op of the backward pass belongs to the block of the first
    tensor of the forward pass that it reads, else to that of its last input. Blocks are the same where the sequences of
    their calls are, targets and shapes.
    """
    homes: dict[str, Instance] = {}
    members: dict[Instance, list[tuple[str, str]]] = defaultdict(list)
    for tensor in tensors.values():
        home = _instance(tensor.name or "")
        if home is not None and tensor.role in ("parameter", "buffer"):
            homes[tensor.id] = home
            members[home].append((tensor.id, f"{tensor.name} {tensor.shape}".split(f"{home[1]}.", 1)[-1]))
    forward = {*homes}
    for op in ops:
        home = _instance(op.modules[-1]) if op.modules else _inherited(op, homes, forward)
        if home is None:
            continue
        homes.update((name, home) for name in op.outputs if name is not None)
        if op.phase == "forward":
            forward.update(name for name in op.outputs if name is not None)
        members[home].append((op.id, _form(op, tensors)))
    return _words(members)


def _instance(module: str) -> Instance | None:
    """`blocks.3.norm1` is in (`blocks.*`, 3)."""
    parts = module.split(".")
    place = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    return (".".join((*parts[:place], "*")), int(parts[place])) if place is not None else None


def _inherited(op: Op, homes: Mapping[str, Instance], forward: set[str]) -> Instance | None:
    known = [name for name in op.inputs if name in homes]
    first = next((name for name in known if name in forward), None)
    return homes[first or known[-1]] if known and op.phase != "forward" else None


def _form(op: Op, tensors: Mapping[str, Tensor]) -> str:
    shapes = [tensors[name].shape for name in (*op.inputs, *op.outputs) if name is not None]
    return f"{op.target} {shapes}"


def _words(members: Mapping[Instance, Sequence[tuple[str, str]]]) -> dict[str, str]:
    alike: dict[tuple[str, tuple[str, ...]], list[Instance]] = defaultdict(list)
    for home, calls in members.items():
        alike[home[0], tuple(form for _, form in calls)].append(home)
    words: dict[str, str] = {}
    kinds: dict[str, int] = defaultdict(int)
    for (name, _), homes in alike.items():
        if len(homes) > 1:
            kinds[name] += 1
            kind = name if kinds[name] == 1 else f"{name}#{kinds[name]}"
            for home in homes:
                words.update((each, f"{kind}/{place}") for place, (each, _) in enumerate(members[home]))
    return words
