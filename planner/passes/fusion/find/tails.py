"""Tails of tensor-parallel layers: a matrix product whose result, with bias and dropout perhaps, meets a residual.

Shared by ranks along its inner dimension, such a product leaves partial sums, which an AllReduce adds up before bias,
dropout and residual ("Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", section
3). Where the step was captured on several ranks the AllReduce stands there already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from treadle.planner.documents.trace import Op, Tensor, Trace
from treadle.planner.passes.fusion.find.matches import Match, NoMatch, dtype_of

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "t.default", "transpose.int", "permute.default",
        "contiguous.default", "expand.default", "unsqueeze.default", "squeeze.dim", "alias.default", "detach.default",
    )
)  # fmt: skip
CASTS = frozenset(("aten._to_copy.default", "prims.convert_element_type.default"))
"""Casts of weights and biases under autocast."""
PRODUCTS = {"aten.mm.default": (0, 1), "aten.addmm.default": (1, 2), "aten.linear.default": (0, 1)}
"""Places of the data and the weight among the inputs."""
SUMS = ("aten.add.Tensor", "aten.add_.Tensor")
DROPOUTS = ("aten.native_dropout.default", "aten.dropout.default")
REDUCED = ("_c10d_functional.all_reduce", "c10d_functional.all_reduce", "c10d.allreduce_")
UNREAD = "treadle.rng_state"
"""Named after the dropout whose random numbers it keeps, of which it reads no element."""
WAITED = ("_c10d_functional.wait_tensor", "c10d_functional.wait_tensor")

TEXT = """\
from treadle.fusion import *

B, S, K, H = dims("B", "S", "K", "H")
x = Tensor("x", {dtype}, [B, S, K], Sliced(2))
w = Tensor("w", {dtype}, [K, H], Sliced(0))
{inputs}r = Tensor("r", {residual}, [B, S, H], Replicated)
layer = MatMul(x, w)
total = AllReduce("+", layer)
{steps}out = {last} + r
tail = Execute("{name}", [x, w, {names}r], [out])
"""


@dataclass(frozen=True)
class _Tail:
    """One product and what follows it, up to the sum with the residual."""

    product: Op
    rows: tuple[int, int]
    inner: int
    width: int
    dtype: str
    residual: str
    """Element type of the stream of residuals, which autocast leaves wide."""
    bias: bool
    dropout: float
    reduced: bool

    @property
    def shape(self) -> tuple[object, ...]:
        return self.rows, self.inner, self.width, self.dtype, self.residual, self.bias, self.dropout, self.reduced


def tails(trace: Trace, ranks: int) -> tuple[tuple[Match, ...], tuple[NoMatch, ...]]:
    """The tails of `trace` for layers that `ranks` ranks share, equal ones counted together, and those passed over."""
    alike: dict[tuple[object, ...], list[_Tail]] = defaultdict(list)
    passed = []
    for each in _search(trace):
        if isinstance(each, NoMatch):
            passed.append(each)
        elif ranks < 2 and not each.reduced:
            passed.append(NoMatch(_place(each.product), "one rank has each layer to itself"))
        elif each.inner < ranks:
            why = f"its inner dimension of {each.inner} is less than {ranks} ranks"
            passed.append(NoMatch(_place(each.product), why))
        else:
            alike[each.shape].append(each)
    found = []
    for number, same in enumerate(alike.values()):
        name = "tail" if len(alike) == 1 else f"tail_{number + 1}"
        found.append(_program(name, same[0], len(same), ranks))
    return tuple(found), tuple(passed)


def _program(name: str, tail: _Tail, count: int, ranks: int) -> Match:
    dtype = dtype_of(tail.dtype, "a layer")
    place = _place(tail.product)
    last, steps = "total", ""
    if tail.bias:
        steps, last = "s = total + b\n", "s"
    if tail.dropout:
        steps += f'd = Dropout({last}, p={tail.dropout!r}, key="{place}")\n'
        last = "d"
    residual = dtype_of(tail.residual, "a residual")
    text = TEXT.format(
        dtype=dtype,
        residual=residual,
        inputs=f'b = Tensor("b", {dtype}, [H], Replicated)\n' if tail.bias else "",
        steps=steps,
        last=last if dtype == residual else f"Cast({residual}, {last})",
        names="b, " if tail.bias else "",
        name=name,
    )
    inner = tail.inner * (ranks if tail.reduced else 1)
    extents = {"B": tail.rows[0], "S": tail.rows[1], "K": inner, "H": tail.width}
    assumed = "" if tail.reduced else f"the layer is shared by {ranks} ranks along its inner dimension"
    return Match(name, text, extents, "tensor", count, place, assumed=assumed)


class _Graph:
    """The ops that make and read the tensors of a trace, views looked through."""

    def __init__(self, trace: Trace) -> None:
        self.tensors = {tensor.id: tensor for tensor in trace.tensors}
        self.makers = {output: op for op in trace.ops for output in op.outputs if output is not None}
        self.readers: dict[str, list[Op]] = defaultdict(list)
        for op in trace.ops:
            for name in dict.fromkeys(op.inputs if op.target != UNREAD else ()):
                self.readers[name].append(op)

    def source(self, name: str) -> Tensor:
        """What `name` is a view of, or a copy in another element type."""
        while name in self.makers and self.makers[name].target in VIEWS | CASTS:
            name = self.makers[name].inputs[0]
        return self.tensors[name]

    def onward(self, name: str) -> list[tuple[str, Op]]:
        """Forward operators that read `name` or a view of it, each with the name by which it does."""
        found: list[tuple[str, Op]] = []
        for op in self.readers[name]:
            if op.phase != "backward" and op.target in VIEWS and op.outputs[0] is not None:
                found += self.onward(op.outputs[0])
            elif op.phase != "backward":
                found.append((name, op))
        return found


def _search(trace: Trace) -> Iterator[_Tail | NoMatch]:
    graph = _Graph(trace)
    for op in trace.ops:
        if op.target in PRODUCTS and op.phase != "backward" and op.outputs[0] is not None:
            data, weight = (graph.source(op.inputs[place]) for place in PRODUCTS[op.target])
            if weight.role == "parameter" and data.role != "parameter":
                yield _follow(graph, op, weight)


def _follow(graph: _Graph, product: Op, weight: Tensor) -> _Tail | NoMatch:
    """Follow the result of `product` step by step until it meets the residual."""
    place = _place(product)
    name = product.outputs[0]
    bias = len(product.inputs) > 2
    dropout, reduced = 0.0, False
    while name is not None:
        readers = graph.onward(name)
        if len(readers) != 1:
            after = ", ".join(sorted({op.target for _, op in readers})) or "nothing"
            return NoMatch(
                place, f"its result is read {len(readers)} times, by {after}, expected one sum with a residual"
            )
        name, reader = readers[0]
        if reader.target.startswith(REDUCED):
            reduced = True
        elif reader.target in DROPOUTS:
            dropout = _probability(reader)
        elif reader.target in SUMS:
            others = [other for other in reader.inputs if other != name]
            added = graph.tensors[others[0] if others else name]
            other = graph.source(added.id)
            if other.role == "parameter" and len(other.shape or ()) == 1:
                bias = True
            elif len({graph.tensors[each].shape for each in reader.inputs}) == 1:
                *rows, width = graph.tensors[name].shape or (0,)
                batch, last = (prod(rows[:-1]), rows[-1]) if rows else (1, 1)
                dtype = graph.tensors[name].dtype or "unknown"
                inner = prod(weight.shape or ()) // max(1, width)
                residual = added.dtype or "unknown"
                return _Tail(product, (batch, last), inner, width, dtype, residual, bias, dropout, reduced)
            else:
                return NoMatch(place, f"its result meets {other.id} of another shape in a sum")
        elif not reader.target.startswith(WAITED):
            return NoMatch(place, f"its result goes to {reader.target}, not into a sum with a residual")
        name = reader.outputs[0]
    return NoMatch(place, "nothing is made of its result")


def _probability(dropout: Op) -> float:
    numbers = [arg for arg in dropout.args or () if isinstance(arg, float)]
    return numbers[0] if numbers else 0.0


def _place(op: Op) -> str:
    return op.modules[-1] if op.modules else op.id
