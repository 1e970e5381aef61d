"""Training steps for tests of swapping and recomputation together."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from tests.treadle.runtime.models import STEPS
from treadle.capture.costs import with_roofline
from treadle.capture.graph import capture
from treadle.capture.optimizer import with_optimizer
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.trace import Costs, Op, Tensor, Trace
from treadle.planner.graph.implementations import with_implementations
from treadle.planner.passes.swap.extract import problem_from_trace
from treadle.planner.passes.swap.minimum import least_memory
from treadle.planner.passes.swap.planning import footprint
from treadle.planner.passes.swap.problem import SwapMachine

MIB = 2**20


@cache
def captured(name: str, optimizer: str = "") -> Trace:
    """A small model's step with the calls that planners choose between, timed for one V100."""
    hardware = store.load(resources.locate("profiles", "ndv2"), Hardware)
    trace = with_implementations(capture(STEPS[name], name))
    return with_roofline(with_optimizer(trace, optimizer) if optimizer else trace, hardware)


def machine_for(trace: Trace, share: float, copies: float = 1.0) -> SwapMachine:
    """A machine with `share` of the trace's footprint, or the least for a pool, that copies everything there is in
    `copies` times the step."""
    endless = SwapMachine(memory_bytes=2**50, in_bandwidth=1, out_bandwidth=1)
    problem = problem_from_trace(trace, endless)
    whole = footprint(problem)
    speed = max(1, round(whole * 10**9 / (copies * problem.ideal_ns)))
    memory = max(round(whole * share), least_memory(problem).memory_bytes)
    return SwapMachine(memory_bytes=memory, in_bandwidth=speed, out_bandwidth=speed, together=(5, 6))


def chain(layers: int, *, time_ns: int = 1000, size: int = MIB) -> Trace:
    """Layers whose outputs the backward pass reads in reverse, each of `size` bytes and `time_ns`."""
    tensors = [Tensor(id="a0", role="input", bytes=size), Tensor(id="w", role="parameter", bytes=size)]
    ops: list[Op] = []
    for i in range(1, layers + 1):
        tensors.append(Tensor(id=f"a{i}", role="output" if i == layers else "activation", bytes=size))
        inputs = (f"a{i - 1}", "w")
        ops.append(Op(id=f"f{i}", target="f", phase="forward", inputs=inputs, outputs=(f"a{i}",), time_ns=time_ns))
    tensors.append(Tensor(id=f"g{layers}", role="tangent", bytes=size))
    for i in range(layers, 0, -1):
        tensors.append(Tensor(id=f"g{i - 1}", role="gradient", bytes=size))
        inputs = (f"g{i}", f"a{i - 1}", "w")
        ops.append(
            Op(id=f"b{i}", target="b", phase="backward", inputs=inputs, outputs=(f"g{i - 1}",), time_ns=2 * time_ns)
        )
    tensors[-1] = replace(tensors[-1], gradient_of="w")
    return Trace(
        version=1, name="chain", mode="train", source="hand", costs=Costs(model="recorded"), tensors=tuple(tensors),
        ops=tuple(ops), inputs=("a0",), outputs=(f"a{layers}",), tangents=(f"g{layers}",),
    )  # fmt: skip
