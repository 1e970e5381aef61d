"""Which placements an operator of PyTorch may read and make along one axis of a mesh, asked of DTensor's own rules.

DTensor's propagator is asked on a mesh of one axis that has no processes behind it. It lists strategies for placements
that it is given, so it is asked for each placement of each input; each strategy that it lists is then asked again as it
stands, and is a rule if it needs no redistribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema, OpStrategy, TupleStrategy
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from treadle.capture.costs.counting import dtype_of, layout_of
from treadle.capture.operator_calls import decode, operator
from treadle.planner.documents.arguments import named_tensors
from treadle.planner.documents.trace import Op, Tensor
from treadle.planner.passes.tiling.problem import TilingRule
from treadle.runtime.tiling.own_rules import BESIDE, own_rules

REFUSALS = (NotImplementedError, RuntimeError, AssertionError, ValueError, LookupError, TypeError, AttributeError)
"""What DTensor raises where it has no rule."""
Reads = tuple[str, ...]
"""A placement of each input of a call."""


def rules_of(op: Op, tensors: Mapping[str, Tensor], size: int) -> tuple[TilingRule, ...]:
    """The rules of a call along an axis of `size` workers, all replicated first; empty for an unknown operator.

    A result that the call does not make has the placement R. P is a sum of what the workers have; where DTensor makes
    a mean of it, the runtime divides what each worker has by their number.
    """
    own = own_rules(op, tensors)
    if own and op.target not in BESIDE:
        return own
    results = [tensors[name] if name is not None else None for name in op.outputs]
    pending, rules = [*_questions([tensors[name].shape or () for name in op.inputs])], dict[TilingRule, None]()
    asked = set[Reads]()
    while pending:
        reads = pending.pop(0)
        if reads in asked:
            continue
        asked.add(reads)
        try:
            schema = _schema(op, tensors, reads, size)
            made = _made(schema, results)
            if made is not None:
                rules[TilingRule(inputs=reads, outputs=made)] = None
            pending.extend(_named(op, listed) for listed in _listed(schema))
        except REFUSALS:
            continue
    return tuple(dict.fromkeys((*rules, *own)))


def _questions(shapes: Sequence[tuple[int, ...]]) -> Iterator[Reads]:
    """All replicated; each cut, and a partial sum, of all inputs and of each of them."""
    yield ("R",) * len(shapes)
    ranks = [len(shape) for shape in shapes]
    for word, least in (*((f"S{axis}", axis) for axis in range(max(ranks, default=0))), ("P", -1)):
        yield tuple(word if rank > least else "R" for rank in ranks)
        for place, rank in enumerate(ranks):
            if rank > least and len(shapes) > 1:
                yield ("R",) * place + (word,) + ("R",) * (len(shapes) - place - 1)


def _schema(op: Op, tensors: Mapping[str, Tensor], reads: Reads, size: int) -> OpSchema:
    """The call on tensors of these placements, as DTensor describes it."""
    specs = {
        name: DTensorSpec(_mesh(size), (_placement(word),), tensor_meta=_meta(tensors[name]))
        for name, word in zip(op.inputs, reads, strict=True)
    }
    called = operator(op.target)
    args = tuple(decode(tree, specs) for tree in op.args or ())
    kwargs = {key: decode(tree, specs) for key, tree in (op.kwargs or {}).items()}
    known = _propagator()
    info = known.op_to_schema_info.get(called) or known.op_to_schema_info_for_single_dim_strategy.get(called)
    return OpSchema(called, args, kwargs, info)


def _made(schema: OpSchema, results: Sequence[Tensor | None]) -> tuple[str, ...] | None:
    """Placements of the results of a call on its inputs as they are; None where they have to be redistributed."""
    found = _Propagator(schema, results).propagate_op_sharding_non_cached(schema)
    other = found.redistribute_schema
    if found.needs_redistribute and other is not None:
        given, wanted = ([spec.placements for spec in each.args_spec] for each in (schema, other))
        if given != wanted:
            return None
    listed: Any = found.output_spec
    specs = listed if isinstance(listed, Sequence) else [listed]
    words = [word for spec in specs if (word := _word(spec.placements[0] if spec is not None else None))]
    return tuple(words) if len(words) == len(results) else None


def _listed(schema: OpSchema) -> Iterator[Sequence[Placement | None]]:
    """What each tensor of the call is read in by the strategies that DTensor lists; found as the propagator does it."""
    known = _propagator()
    wrapped = known._wrap_with_op_strategy(schema)
    single = known.op_single_dim_strategy_funcs.get(schema.op)
    if single is not None:
        yield from single.func(schema.op, wrapped.args_meta, wrapped.kwargs_meta)
        return
    function = known.op_strategy_funcs.get(schema.op)
    strategy = function(wrapped) if function is not None else None
    if isinstance(strategy, TupleStrategy):
        children: Sequence[Any] = strategy.children
        for together in zip(*(child.strategies for child in children), strict=False):
            yield [each.input_spec(0).placements[0] for each in together]
    elif isinstance(strategy, OpStrategy):
        for each in strategy.strategies:
            yield [spec.placements[0] for spec in each.input_specs or [each.output_spec]]


def _named(op: Op, listed: Sequence[Any]) -> Reads:
    """`listed` ends with a placement of each tensor in the order of the call; here one of each input, or a word that no
    rule has."""
    named = [*named_tensors([*(op.args or ()), *(op.kwargs or {}).values()])]
    words = [_word(placement) or "" for placement in listed[-len(named) :]]
    placed = dict(zip(named, words, strict=True))
    return tuple(placed[name] for name in op.inputs)


def _word(placement: Any) -> str | None:
    """None for placements that no plan has: cut in stripes, partial maxima and the like."""
    if placement is None or isinstance(placement, Replicate):
        return "R"
    if type(placement) is Shard or type(placement).__name__ == "_ShardingPlaceholder":
        return f"S{placement.dim}"
    is_sum = type(placement) is Partial and placement.reduce_op in ("sum", "avg")
    return "P" if is_sum else None


def _placement(word: str) -> Placement:
    """Raises LookupError for a word that is no placement."""
    if word[:1] == "S":
        return Shard(int(word[1:]))
    return {"R": Replicate(), "P": Partial()}[word]


def _meta(tensor: Tensor) -> TensorMeta:
    shape, stride = layout_of(tensor)
    return TensorMeta(torch.Size(shape), stride, dtype_of(tensor))


class _Propagator(ShardingPropagator):
    """DTensor's own, with shapes of results as the trace has them: to find each anew takes most of its time."""

    def __init__(self, schema: OpSchema, results: Sequence[Tensor | None]) -> None:
        self.__dict__.update(_propagator().__dict__)
        metas = [_meta(result) if result is not None else None for result in results]
        kinds = schema.op._schema.returns
        if len(kinds) == 1:
            self.results: Any = metas if isinstance(kinds[0].type, torch.ListType) else metas[0]
        else:
            self.results = tuple(metas)

    def _propagate_tensor_meta_non_cached(self, op_schema: OpSchema) -> Any:
        return self.results


@cache
def _mesh(size: int) -> DeviceMesh:
    return DeviceMesh("cpu", [*range(size)], _init_backend=False, _rank=0)


def _propagator() -> Any:
    return DTensor._op_dispatcher.sharding_propagator
