"""Operators, memory and tensor sizes of the swapped models, compared with SwapAdvisor's table 5.1."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.common import Row, Table, progress
from benchmarks.swap.networks import NETWORKS, problem_from, training
from treadle.planner.documents.trace import Trace
from treadle.planner.graph.index import Graph
from treadle.planner.passes.swap.planning import footprint

NOTES = (
    "ops: of the trace, views left out. plain ops: without those that MXNet 1.2 lacks: one update per parameter, the "
    "second half of a convolution's backward pass (its two gradients are two operators here) and the counter of each "
    "batch normalisation. The rest above SwapAdvisor: ReLU and sums that add gradients are nodes of their own.",
    "GB: most live bytes in the order of the trace. A functional trace frees tensors after their last read, and "
    "PyTorch saves less for the backward pass than MXNet: 7 vectors of an LSTM cell, where MXNet's makes about 25.",
    "GB kept: every tensor of the forward pass and the parameters three times (gradient and momentum), the need of a "
    "framework without reuse.",
)


def tables() -> Iterator[Table]:
    """Operators, bytes and distinct tensor sizes of SwapAdvisor's five models, and the time of capturing them."""
    yield Table("Models of swap planning and SwapAdvisor's table 5.1", [_row(name) for name in NETWORKS], NOTES)


def _row(name: str) -> Row:
    progress(f"swap.models: {name}")
    network, began = NETWORKS[name], time.process_time()
    trace = training(name)
    seconds = time.process_time() - began
    problem = problem_from(trace)
    return {
        "model": name,
        "batch": network.batch,
        "ops": len(problem.ops),
        "plain ops": len(problem.ops) - extras(trace),
        "SwapAdvisor's ops": network.ops,
        "GB": footprint(problem) / 1e9,
        "GB kept": kept_bytes(trace) / 1e9,
        "SwapAdvisor's GB": network.gigabytes,
        "sizes": len({tensor.bytes for tensor in problem.tensors} - {0}),
        "SwapAdvisor's sizes": network.sizes,
        "ideal s": problem.ideal_ns / 1e9,
        "capture CPU s": seconds,
    }


def extras(trace: Trace) -> int:
    """Operators that MXNet's graph does not have: updates, second halves of backward convolutions, counters."""
    graph = Graph(trace)
    values = {value for buffer, value in trace.updates if graph.tensors[buffer].dtype == "int64"}
    return sum(
        op.phase == "optimizer" or op.target == "treadle.conv2d_input_gradient" or bool(values & set(op.outputs))
        for op in trace.ops
        if op.intermediate_of is None
    )


def kept_bytes(trace: Trace) -> int:
    """Bytes of all results of the forward pass, and of parameters, gradients and momentum."""
    graph = Graph(trace)
    made = {key for op in trace.ops if op.phase == "forward" for key in op.outputs if key is not None}
    parameters = sum(tensor.bytes or 0 for tensor in trace.tensors if tensor.role == "parameter")
    return 3 * parameters + sum(graph.storage_bytes(key) for key in made if graph.owner[key] == key)
