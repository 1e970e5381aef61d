"""The tables that `treadle.codegen.swap.torch_swap` writes, read: what each node does to which bytes of the arena.

`compute`, `copy_in`, `copy_out`, `drop` and `T` are the words of the generated text.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from treadle import kernels
from treadle.codegen.python_form import require_form
from treadle.planner.documents.arguments import DTYPES
from treadle.planner.documents.values import Called
from treadle.planner.errors import InputError
from treadle.planner.passes.swap.problem import SwapMachine
from treadle.runtime.called import load_called


class T(str):
    """The name of a tensor among the arguments of a call."""

    __slots__ = ()


class StepNode(NamedTuple):
    """`item` is an operator for kind `compute`, else a storage. `at` are the addresses of the storages that get a place
    here, `after` the nodes that it waits for, `ends` the storages that are read here for the last time. An `early` copy
    out leaves its storage in place."""

    kind: Literal["compute", "in", "out", "drop"]
    item: str
    at: dict[str, int]
    after: tuple[int, ...]
    ends: tuple[str, ...] = ()
    early: bool = False


def compute(op: str, makes: Mapping[str, int] = {}, *, ends: Sequence[str] = (), after: Sequence[int] = ()) -> StepNode:
    """Run operator `op`; what it makes lies at the addresses `makes`, and `ends` are read here for the last time."""
    return StepNode("compute", op, dict(makes), tuple(after), tuple(ends))


def copy_in(storage: str, at: int, *, after: Sequence[int] = ()) -> StepNode:
    """Copy a storage from the host to address `at`."""
    return StepNode("in", storage, {storage: at}, tuple(after))


def copy_out(storage: str, *, early: bool = False, after: Sequence[int] = ()) -> StepNode:
    """Copy a storage to the host; its place is free afterwards. With `early` it is not: operators read on."""
    return StepNode("out", storage, {}, tuple(after), early=early)


def drop(storage: str, *, after: Sequence[int] = ()) -> StepNode:
    """Give up the place of a storage whose copy on the host is as good."""
    return StepNode("drop", storage, {}, tuple(after))


class Storage(NamedTuple):
    """`dtype`, `shape` and `stride` are those of the tensor that owns it."""

    bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def empty(self, device: torch.device | str, pinned: bool = False) -> Tensor:
        """Room for the owner's elements."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device, pin_memory=pinned)


class TensorLayout(NamedTuple):
    """Where a tensor lies in its storage; `offset` in elements."""

    storage: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    def place(self, arena: Tensor, address: int) -> Tensor:
        """The tensor where its storage lies at `address` of the bytes `arena`. Raises InputError where elements of its
        type cannot lie there."""
        start, rest = divmod(address, self.dtype.itemsize)
        if rest:
            kind = str(self.dtype).removeprefix("torch.")
            raise InputError(
                f"found {self.storage!r} at address {address}, where no {kind} can lie; plan with --allocator pool"
            )
        return self.on(arena.untyped_storage(), start)

    def on(self, storage: torch.UntypedStorage, start: int = 0) -> Tensor:
        """The tensor in `storage`, that it lies in from element `start` on."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, start + self.offset, self.shape, self.stride)


class OperatorCall(NamedTuple):
    """An operator call; `outputs` are the names of its results, None for what is not used."""

    name: str
    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    outputs: list[str | None]

    def run(self, values: Mapping[str, Any]) -> list[Any]:
        """Its results on the tensors `values`."""
        result = self.function(*bound(self.args, values), **bound(self.kwargs, values))
        return list(result) if isinstance(result, list | tuple) else [result] if self.outputs else []


def bound(tree: Any, values: Mapping[str, Any]) -> Any:
    """The arguments `tree` with tensors in the place of their names."""
    return tree_map(lambda leaf: values[leaf] if type(leaf) is T else leaf, tree)


def tensors_of(call: OperatorCall) -> list[str]:
    """The names of the tensors among the arguments of `call`."""
    found: list[str] = []
    tree_map(lambda leaf: found.append(str(leaf)) if type(leaf) is T else None, (call.args, call.kwargs))
    return found


@dataclass(frozen=True)
class SwapStep:
    """A generated step. Names of parameters and so on lead to their storages."""

    name: str
    text: str
    arena_bytes: int
    machine: SwapMachine
    predicted_ns: int
    parameters: dict[str, str]
    buffers: dict[str, str]
    optimizer: dict[str, str]
    inputs: list[str]
    tangents: list[str]
    outputs: list[str]
    updates: list[list[str]]
    gradients: dict[str, str]
    evaluating: list[str]
    training: bool
    autocast: str | None
    storages: dict[str, Storage]
    aliases: dict[str, list[Any]]
    pool: list[list[int]]
    initial: dict[str, int]
    final: dict[str, int]
    nodes: list[StepNode]
    returned: Callable[[list[Tensor]], Any]
    make_calls: Callable[[torch.device], dict[str, tuple[Any, ...]]]
    called: Called | None
    """What the step is called with, over the numbers of its inputs; None for the inputs in their order."""

    def calls(self, device: torch.device) -> dict[str, OperatorCall]:
        """Every call by name, in the order of the model."""
        return {name: OperatorCall(name, *fields) for name, fields in self.make_calls(device).items()}

    @cached_property
    def persistent(self) -> dict[str, str]:
        """Storages that live from one iteration to the next, and their names."""
        groups = (self.parameters, self.buffers, self.optimizer)
        return {storage: name for group in groups for name, storage in group.items()}

    @cached_property
    def host(self) -> set[str]:
        """Storages that are copied in either direction, or lie on the host all the time."""
        return self.copied | self.persistent.keys() | {*self.inputs, *self.tangents}

    @cached_property
    def copied(self) -> set[str]:
        """Storages that are copied in either direction; those are pinned."""
        return {node.item for node in self.nodes if node.kind in ("in", "out")}

    @cached_property
    def layouts(self) -> dict[str, TensorLayout]:
        """Where in its storage each tensor lies: views are run on tensors without memory. Raises InputError where a
        call cannot be run so, or makes something else than the plan has."""
        computed = {node.item for node in self.nodes if node.kind == "compute"}
        found = {name: TensorLayout(name, each.dtype, each.shape, each.stride) for name, each in self.storages.items()}
        shapes = {name: each.empty("meta") for name, each in self.storages.items()}
        known = {tensor.untyped_storage()._cdata: (name, 0) for name, tensor in shapes.items()}
        for call in self.calls(torch.device("meta")).values():
            if call.name in computed and not any(output in self.aliases for output in call.outputs):
                continue
            results = dict(zip(call.outputs, self._shaped(call, shapes), strict=True))
            owned = {output: result for output, result in results.items() if output in self.storages}
            beside = {x.untyped_storage()._cdata: (name, -x.storage_offset()) for name, x in owned.items()}
            for output, result in results.items():
                if output is None or output in found:
                    continue
                owner, shift = {**beside, **known}.get(result.untyped_storage()._cdata, (None, 0))
                if owner is None:
                    text = f"found {output!r}, made by {call.name!r}, in memory of its own, expected a view; plan again"
                    raise InputError(text, where=self.name)
                offset = result.storage_offset() + shift
                found[output] = TensorLayout(owner, result.dtype, tuple(result.shape), result.stride(), offset)
                shapes[output] = found[output].on(shapes[owner].untyped_storage())
        return found

    def _shaped(self, call: OperatorCall, shapes: dict[str, Tensor]) -> list[Any]:
        """The results of `call` without memory, which share storages as the true ones do."""
        results = self._in_place(call, shapes)
        if results is not None:
            return results
        try:
            return call.run(shapes)
        except (RuntimeError, NotImplementedError, TypeError, KeyError) as error:
            text = f"operator {call.name!r} cannot be run without memory: {' '.join(str(error).split())[:200]}"
            raise InputError(text, where=self.name) from error

    def _in_place(self, call: OperatorCall, shapes: dict[str, Tensor]) -> list[Tensor | None] | None:
        """Results that are arguments written in place, each with the layout of that argument."""
        results: list[Tensor | None] = []
        for output in call.outputs:
            if output in self.storages:
                results.append(shapes[output])
            elif output is None:
                results.append(None)
            else:
                alias, dtype, shape, stride = self.aliases.get(output, (None, None, None, None))
                base = shapes.get(alias) if alias is not None and alias not in call.outputs else None
                if base is None or [str(base.dtype)[6:], [*base.shape], [*base.stride()]] != [dtype, shape, stride]:
                    return None
                results.append(base)
        return results


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name) if name in DTYPES else None
    if not isinstance(found, torch.dtype):
        raise InputError(f"found dtype {name!r}, expected one that this PyTorch has", where="<treadle swap step>")
    return found


def load_swap_step(text: str) -> SwapStep:
    """Execute a generated text. Raises InputError for one that treadle does not generate, or where it calls operators
    that this PyTorch does not have, or anything else."""
    names: dict[str, Any] = {}
    file = "<treadle swap step>"
    require_form("torch-swap", text, file)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names)
    storages = {
        key: Storage(size, _dtype(dtype), tuple(shape), tuple(stride))
        for key, (size, dtype, shape, stride) in names["STORAGES"].items()
    }
    step = SwapStep(
        name=names["NAME"],
        text=text,
        arena_bytes=names["ARENA_BYTES"],
        machine=SwapMachine(**names["MACHINE"]),
        predicted_ns=names["PREDICTED_NS"],
        parameters=names["PARAMETERS"],
        buffers=names["BUFFERS"],
        optimizer=names["OPTIMIZER"],
        inputs=names["INPUTS"],
        tangents=names["TANGENTS"],
        outputs=names["OUTPUTS"],
        updates=names["UPDATES"],
        gradients=names.get("GRADIENTS", {}),
        evaluating=names["EVALUATING"],
        training=names["TRAINING"],
        autocast=names.get("AUTOCAST"),
        storages=storages,
        aliases=names.get("ALIASES", {}),
        pool=names.get("POOL", []),
        initial=names["INITIAL"],
        final=names["FINAL"],
        nodes=names["NODES"],
        returned=names["returned"],
        make_calls=names["calls"],
        called=load_called(names.get("CALLED"), len(names["INPUTS"]), names["NAME"]),
    )
    try:
        calls = step.calls(torch.device("cpu"))
    except AttributeError as error:
        raise InputError(f"{error}; expected operators that this PyTorch has", where=step.name) from error
    ours = {id(getattr(kernels, name)) for name in kernels.__all__}
    for call in calls.values():
        if not isinstance(call.function, torch._ops.OpOverload) and id(call.function) not in ours:
            raise InputError(f"found a call of {call.function!r}, expected operators and kernels", where=step.name)
    return step
