"""One price for copying and for making again."""

from __future__ import annotations

from msgspec.structs import replace

from tests.planner.job.recompute_swap.steps import MIB, chain
from treadle.planner.graph.unrolling import plain_runs
from treadle.planner.job.recompute_swap.prices import cheaper, prices
from treadle.planner.job.recompute_swap.sets import OpSequence
from treadle.planner.passes.swap.problem import SwapMachine


def test_prices_of_a_chain_with_one_slow_layer() -> None:
    trace = chain(5)
    trace = replace(trace, ops=tuple(replace(op, time_ns=9000) if op.id == "f2" else op for op in trace.ops))
    machine = SwapMachine(memory_bytes=100, in_bandwidth=MIB * 10**6 // 2, out_bandwidth=MIB * 10**6)
    program = OpSequence(trace, plain_runs(trace))
    found = {price.value.tensor: price for price in prices(program, machine)}
    assert {name: (price.again_ns, price.copy_ns, price.bytes) for name, price in found.items()} == {
        "a1": (1000, 3000, MIB),
        "a2": (9000, 3000, MIB),
        "a3": (1000, 3000, MIB),
    }
    assert [value.tensor for value in cheaper(program, machine)] == ["a1", "a3"]
