"""Which calls of a trace return new memory only, so that a runtime which gives out addresses needs room for a copy."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from treadle.capture.operator_calls import operator, with_each_call
from treadle.planner.documents.trace import Implementation, Op, Trace
from treadle.runtime.swap.work import out_variant

Call = TypeVar("Call", Op, Implementation)


def with_results(trace: Trace) -> Trace:
    """The trace with `returns_new` of every call as PyTorch's operators are."""
    return with_each_call(trace, _noted)


def _noted(call: Call) -> Call:
    writer = None if call.target.startswith("treadle.") else out_variant(operator(call.target))
    direct = writer is not None and len(writer.names) == len(call.outputs) and None not in call.outputs
    return replace(call, returns_new=not direct)
