"""Which other calls make the results of a captured op: the catalogue that planning chooses from.

`with_implementations` rewrites a captured step without costs. `docs/implementations.md` has the table.
"""

from __future__ import annotations

from treadle.planner.documents.trace import Trace
from treadle.planner.graph.implementations.activation import with_activations
from treadle.planner.graph.implementations.convolution import with_convolutions, with_reading
from treadle.planner.graph.implementations.dropout import with_dropout
from treadle.planner.graph.implementations.inplace import with_inplace
from treadle.planner.graph.implementations.linear import with_linear
from treadle.planner.graph.implementations.normalisation import with_normalisations
from treadle.planner.graph.implementations.pooling import with_pooling

__all__ = ["with_implementations"]


def with_implementations(trace: Trace, *, to_measure: bool = False) -> Trace:
    """`trace` with every op's other implementations, and with optional ops for what some of those read.

    Convolution backward becomes two ops, so that the input may be freed between them, and so become the products of a
    linear layer's backward: the one that reads the input comes first. Pooling that emits an index becomes pooling that
    does not. All other ops stay as they are; costs are filled in afterwards. Ids of new ops and tensors follow from
    those of the old ones. `to_measure` adds those whose benefit only a measurement shows. An inference step gets
    in-place forms and pooling without an index only. A trace of unknown mode, without recorded arguments or with
    implementations comes back unchanged.
    """
    if trace.mode == "unknown" or any(op.implementations or op.intermediate_of for op in trace.ops):
        return trace
    if trace.mode == "infer":
        return with_inplace(with_pooling(trace))
    for family in (
        with_linear,
        with_convolutions,
        with_pooling,
        with_activations,
        with_normalisations,
        with_dropout,
        with_inplace,
    ):
        trace = family(trace)
    return with_reading(trace) if to_measure else trace
