"""The bytes of a step, on the device and on the host, and each node as a function of no arguments on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from treadle.planner.documents.scalars import format_bytes
from treadle.planner.errors import InputError
from treadle.runtime.swap.places import Places, moved, objects_of
from treadle.runtime.swap.step import OperatorCall, StepNode, SwapStep, bound

POISON = 0xFF
"""In every byte: NaN for floating point numbers, -1 for whole ones."""
KEPT = 8
"""Forms of one node, for different objects, that are kept for later iterations."""

Action = Callable[[], Any]


class NodeActions(NamedTuple):
    """`run` does what the node is for. `spoil` overwrites the places that it fills, before it does, and `poison` those
    that it gives up, after it; `copied` is what it copies."""

    run: Action
    spoil: Action
    poison: Action
    copied: int = 0


class StepMemory:
    """The arena, and for each storage that is ever on the host its room there. Rooms of parameters and buffers are
    those of the model itself."""

    def __init__(
        self, step: SwapStep, places: Places, device: torch.device, own: Mapping[str, Tensor], pinned: bool
    ) -> None:
        self.step, self.places, self.device = step, places, device
        self.calls = step.calls(device)
        self._direct = self._tried()
        """Whether the results of a call go straight to their places."""
        try:
            self.arena = torch.empty(max(step.arena_bytes, 1), dtype=torch.uint8, device=device).fill_(POISON)
        except RuntimeError as error:  # out of memory, of which each device has its own kind
            text = f"no room on {device} for an arena of {format_bytes(step.arena_bytes)}; plan with less memory"
            raise InputError(text, where=step.name) from error
        self.host: dict[str, Tensor] = dict(own)
        """Typed where the step's caller sees it, else bytes."""
        self._typed = {*step.persistent, *step.inputs, *step.tangents}
        for storage in sorted(step.host - own.keys()):
            known = step.storages[storage]
            pin = pinned and storage in step.copied
            raw = partial(torch.empty, known.bytes, dtype=torch.uint8, pin_memory=pin)
            room = known.empty("cpu", pin) if storage in self._typed else raw()
            self.host[storage] = room.zero_() if storage in step.persistent else room
        self.objects = objects_of(step)
        self._views: dict[tuple[str, int], Tensor] = {}
        self._works: list[dict[tuple[int, ...], NodeActions]] = [{} for _ in step.nodes]

    def renew(self, own: Mapping[str, Tensor]) -> None:
        """Take other rooms on the host for `own`."""
        self.host.update(own)
        self._works = [{} for _ in self.step.nodes]

    def advance(self) -> None:
        """End the iteration: objects take the roles of the next one."""
        self.objects = moved(self.step, self.objects)

    def where(self, address: int) -> int:
        """Where in the arena the plan's `address` is in this iteration."""
        return self.objects.get(address, address)

    def tensor(self, name: str, address: int) -> Tensor:
        """Tensor `name` where its storage lies at `address` of the plan."""
        key = (name, self.where(address))
        if key not in self._views:
            self._views[key] = self.step.layouts[name].place(self.arena, key[1])
        return self._views[key]

    def raw(self, storage: str, address: int) -> Tensor:
        """The bytes of a storage."""
        start = self.where(address)
        return self.arena[start : start + self.step.storages[storage].bytes]

    def on_device(self, storage: str, address: int) -> Tensor:
        """The device's side of a copy of `storage`, in the form of the host's."""
        return self.tensor(storage, address) if storage in self._typed else self.raw(storage, address)

    def written(self) -> dict[str, int]:
        """How many operators put their results straight into their places, and how many are copied there."""
        direct = sum(self._direct.values())
        making = sum(node.kind == "compute" and bool(node.at) for node in self.step.nodes)
        return {"direct": direct, "copied": making - direct}

    def final(self, name: str) -> Tensor:
        """Tensor `name` at the end of an iteration, before `advance`; on the device or on the host."""
        layout = self.step.layouts[name]
        address = self.places.left.get(layout.storage)
        if address is not None:
            return self.tensor(name, address)
        return layout.on(self.host[layout.storage].untyped_storage())

    def work(self, number: int) -> NodeActions:
        """Node `number` as it is in this iteration."""
        used = (self.places.during[number], self.places.ending[number])
        key = tuple(self.where(address) for addresses in used for address in addresses.values())
        known = self._works[number]
        if key not in known:
            if len(known) >= KEPT:
                known.clear()
            known[key] = self._work(number, self.step.nodes[number])
        return known[key]

    def _work(self, number: int, node: StepNode) -> NodeActions:
        at = self.places.during[number]
        given_up = [self.raw(storage, address) for storage, address in self.places.ending[number].items()]
        spoil = partial(_fill, [self.raw(storage, address) for storage, address in node.at.items()])
        poison = partial(_fill, given_up)
        if node.kind == "drop":
            return NodeActions(_nothing, spoil, poison)
        if node.kind == "compute":
            return NodeActions(self._computing(self.calls[node.item], node, at), spoil, poison)
        device, host = self.on_device(node.item, at[node.item]), self.host[node.item]
        to, source = (device, host) if node.kind == "in" else (host, device)
        return NodeActions(
            partial(to.copy_, source, non_blocking=True), spoil, poison, self.step.storages[node.item].bytes
        )

    def _computing(self, call: OperatorCall, node: StepNode, at: Mapping[str, int]) -> Action:
        layouts = self.step.layouts
        values = _Values(self, at)
        args, kwargs = bound(call.args, values), bound(call.kwargs, values)
        function = call.function
        if function in _WITH_STORAGE:
            function = partial(_on_its_own, function)
        makes = [
            self.tensor(output, at[layouts[output].storage])
            if output is not None and output in layouts and layouts[output].storage in node.at
            else None
            for output in call.outputs
        ]
        if all(target is None for target in makes):
            return partial(function, *args, **kwargs)
        writer = out_variant(call.function)
        if writer is None or not self._direct.get(call.name):
            return partial(_copied, function, args, kwargs, makes)
        return partial(writer.function, *args, **kwargs, **dict(zip(writer.names, makes, strict=True)))

    def _tried(self) -> dict[str, bool]:
        """By operator with an `out` overload: whether that makes no result larger meanwhile, as `mse_loss` does.
        Each is run once on zeros, before the arena takes the memory."""
        found = {}
        with torch.random.fork_rng([] if self.device.type == "cpu" else [self.device]):
            for node in self.step.nodes:
                call = self.calls[node.item] if node.kind == "compute" else None
                if call is not None and call.name not in found and _gives_places(call, node):
                    found[call.name] = self._fits(call)
        return found

    def _fits(self, call: OperatorCall) -> bool:
        writer = out_variant(call.function)
        assert writer is not None
        zeros = _Zeros(self.step, self.device)
        makes = [zeros[str(output)] for output in call.outputs]
        into = [torch.empty(0, dtype=make.dtype, device=make.device) for make in makes]
        try:
            writer.function(
                *bound(call.args, zeros), **bound(call.kwargs, zeros), **dict(zip(writer.names, into, strict=True))
            )
        except (RuntimeError, IndexError):  # what does not work on zeros
            return False
        return all(map(_alike, makes, into))


def _gives_places(call: OperatorCall, node: StepNode) -> bool:
    """Whether all results of a call get places, and it can be given them."""
    writer = out_variant(call.function)
    return writer is not None and len(writer.names) == len(call.outputs) and all(x in node.at for x in call.outputs)


class _Zeros(dict[str, Tensor]):
    """Tensors of zeros by name, in the layouts of a step."""

    def __init__(self, step: SwapStep, device: torch.device) -> None:
        super().__init__()
        self.step, self.device = step, device

    def __missing__(self, name: str) -> Tensor:
        layout = self.step.layouts[str(name)]
        room = torch.zeros(self.step.storages[layout.storage].bytes, dtype=torch.uint8, device=self.device)
        return layout.on(room.untyped_storage())


class _Values(dict[str, Tensor]):
    """Tensors by name where their storages lie during a node."""

    def __init__(self, memory: StepMemory, at: Mapping[str, int]) -> None:
        super().__init__()
        self.memory, self.at = memory, at

    def __missing__(self, name: str) -> Tensor:
        return self.memory.tensor(str(name), self.at[self.memory.step.layouts[name].storage])


class Writer(NamedTuple):
    """An operator that puts its results into tensors that it is given as the arguments `names`."""

    function: Callable[..., Any]
    names: tuple[str, ...]


@cache
def out_variant(function: Any) -> Writer | None:
    """The overload of an operator that takes the same arguments and writes into `out` tensors, if there is one. What
    PyTorch generates for operators that have none does not count: it makes new results and copies them."""
    if not isinstance(function, torch._ops.OpOverload) or function._schema.is_mutable:
        return None
    wanted = [(a.name, str(a.type)) for a in function._schema.arguments]
    returns = len(function._schema.returns)
    packet = function.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        arguments = other._schema.arguments
        outs = tuple(a.name for a in arguments if a.is_out)
        if torch.Tag.generated in other.tags:
            continue
        if len(outs) == returns and [(a.name, str(a.type)) for a in arguments if not a.is_out] == wanted:
            return Writer(other, outs)
    return None


_SCATTERS = ("as_strided_scatter", "diagonal_scatter", "select_scatter", "slice_scatter")
_WITH_STORAGE = {getattr(torch.ops.aten, name).default for name in ("as_strided_copy", "copy", *_SCATTERS)}
"""Calls that copy the storage of their first argument, here the whole arena, or count from its start."""


def _on_its_own(function: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    return function(tensor.clone(), *args, **kwargs)


def _copied(
    function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], makes: Sequence[Tensor | None]
) -> None:
    """For operators that only return new tensors."""
    result = function(*args, **kwargs)
    results = result if isinstance(result, list | tuple) else [result]
    for target, made in zip(makes, results, strict=True):
        if target is not None:
            target.copy_(made)


def _alike(make: Tensor, found: Tensor) -> bool:
    """Whether `found` is as `make`, in a storage no larger than that takes."""
    steps = ((a, b) for size, a, b in zip(make.shape, make.stride(), found.stride(), strict=False) if size > 1)
    return (
        make.shape == found.shape
        and all(a == b for a, b in steps)
        and found.untyped_storage().nbytes() == found.numel() * found.element_size()
    )


def _fill(given_up: list[Tensor]) -> None:
    for place in given_up:
        place.fill_(POISON)


def _nothing() -> None:
    pass
