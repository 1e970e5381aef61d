"""A trace, indexed for rewriting, and the rewriting itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from treadle.planner.documents.trace import Implementation, Op, Tensor, Trace
from treadle.planner.graph.gradients import finals
from treadle.planner.graph.index import Graph


class Index(Graph):
    """Which ops make and read each tensor of `trace`, and which tensors the caller holds."""

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """For each storage the places of the ops that read it, through any view and by any of their calls."""
        found: dict[str, list[int]] = {}
        for place, op in enumerate(self.trace.ops):
            for storage in dict.fromkeys(self.owner[tensor] for call in op.variants for tensor in call.inputs):
                found.setdefault(storage, []).append(place)
        return found

    @cached_property
    def held(self) -> frozenset[str]:
        """Storages that the caller of the step holds: outputs, new buffer values, tangents, final gradients."""
        trace = self.trace
        named = (*trace.outputs, *trace.tangents, *(tensor for pair in trace.updates for tensor in pair))
        return frozenset(self.owner[tensor] for tensor in (*named, *finals(trace)))

    @cached_property
    def taken(self) -> set[str]:
        """Ids of ops and tensors."""
        return {op.id for op in self.trace.ops} | self.tensors.keys()

    def fresh(self, wanted: str) -> str:
        """An id that nothing has yet: `wanted`, or with a number behind it."""
        name, count = wanted, 1
        while name in self.taken:
            name, count = f"{wanted}_{count}", count + 1
        self.taken.add(name)
        return name

    def shape(self, tree: Any) -> tuple[int, ...] | None:
        """Shape of the tensor that an argument names; None if the trace lacks it."""
        name = tensor_of(tree)
        return self.tensors[name].shape if name is not None else None

    def makes(self, tree: Any, target: str) -> Op | None:
        """The forward op of that target whose first result the argument is."""
        op = self.producer.get(tensor_of(tree) or "")
        if op is None or op.target != target or op.phase != "forward" or op.outputs[0] != tensor_of(tree):
            return None
        return op if op.args is not None else None


def tensor_of(tree: Any) -> str | None:
    """The id that an argument names, None where it is no tensor."""
    return tree["tensor"] if isinstance(tree, dict) and "tensor" in tree else None


def named(args: Iterable[Any]) -> tuple[str, ...]:
    """The tensors among the arguments of a call, each once."""
    found = (tensor_of(tree) for tree in args)
    return tuple(dict.fromkeys(name for name in found if name is not None))


def tensor(name: str) -> dict[str, str]:
    """The argument that names a tensor."""
    return {"tensor": name}


def implementation(
    name: str, family: str, target: str, outputs: Sequence[str | None], args: Sequence[Any], **fields: Any
) -> Implementation:
    """One whose inputs are the tensors among its arguments."""
    return Implementation(
        name=name,
        family=family,
        target=target,
        inputs=named(args),
        outputs=tuple(outputs),
        args=tuple(args),
        **fields,
    )


def optional_op(name: str, target: str, output: str, args: Sequence[Any], creator: str) -> Op:
    """An op that runs only where a plan wants what it makes of what `creator` made in the same stage."""
    return Op(
        id=name,
        target=target,
        phase="forward",
        inputs=named(args),
        outputs=(output,),
        args=tuple(args),
        intermediate_of=creator,
    )


def byte_tensor(name: str, shape: Sequence[int]) -> Tensor:
    """A new contiguous tensor of bytes."""
    stride, cells = [], 1
    for size in reversed(shape):
        stride.append(cells)
        cells *= max(size, 1)
    count = 0 if 0 in shape else cells
    return Tensor(
        id=name, role="activation", bytes=count, shape=tuple(shape), stride=tuple(reversed(stride)), dtype="uint8"
    )


def substituted(
    trace: Trace, ops: Mapping[str, Sequence[Op]], added: Iterable[Tensor] = (), removed: Collection[str] = ()
) -> Trace:
    """`trace` with other ops in the place of some, more tensors, and without those of the ids `removed`."""
    if not ops:
        return trace
    left = {old: tuple(op.id for op in new if op.intermediate_of is None) for old, new in ops.items()}

    def mended(op: Op) -> Op:
        after = tuple(new for old in op.after for new in left.get(old, (old,)))
        return op if after == op.after else replace(op, after=after)

    return replace(
        trace,
        ops=tuple(mended(new) for op in trace.ops for new in ops.get(op.id, (op,))),
        tensors=(*(tensor for tensor in trace.tensors if tensor.id not in removed), *added),
    )
