"""Work at equal measured peak: plans, PyTorch's partitioner and checkpointing, on a small GPT.

4 layers of width 256, 128 tokens, batch 8, 1000 words, attention written out (`gpt` in execution.py). Peaks are
measured: live bytes of all tensors in forward and backward, without parameters. Work is counted while the step runs:
FLOPs of matrix products. The measured peak of a peer is the budget of a plan; their work is compared.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from functools import partial

import torch
from msgspec.structs import replace
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.common import Row, Table, progress
from benchmarks.memory import execution
from benchmarks.memory.execution import Variant, gpt, memory_plan, partitioned
from treadle.capture.costs.counting import with_counts
from treadle.capture.graph import capture
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.graph.implementations import with_implementations
from treadle.planner.passes.memory.search.attempts import MemoryOptions

BUDGETS = (0.9, 0.7, 0.5, 0.4, 0.3, 0.25, 0.2, 0.1, 0.05, 0.0)
SOLVERS = ("dp", "greedy", "ilp", "dp_knapsack_sliding_hirschberg", "dynamic_memory_budget_dp")
MIB = 2**20
OPTIONS = MemoryOptions(time_limit_s=20.0, gap=0.001, workers=2)


def tables() -> Iterator[Table]:
    """GFLOP of a small GPT's step at equal measured peak: PyTorch's partitioner, its solvers, SAC, and plans."""
    torch.set_num_threads(1)
    model, inputs, _ = gpt()
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    trace = by_work(with_implementations(capture(gpt, "gpt", "train")))
    rows: list[Row] = []
    peaks: dict[int, Row] = {}
    for peer in peers():
        progress(f"memory.partitioner: {peer.name}")
        peer.measure_peak(inputs)
        work = flops(peer)
        if peer.peak_bytes not in peaks:
            peaks[peer.peak_bytes] = planned(trace, peer.peak_bytes, parameters)
        ours = peaks[peer.peak_bytes]
        rows.append(
            {"peer": peer.name, "peak MiB": (peer.peak_bytes - parameters) / MIB, "GFLOP": work / 1e9}
            | ours
            | ({"ours / peer": ours["our GFLOP"] / (work / 1e9)} if "our GFLOP" in ours else {})
        )
    note = "Peaks without the 14.2 MiB of parameters. Ours: the plan for that peak, run with all implementations."
    yield Table("4-layer GPT: work at the peer's measured peak", rows, (note,))
    lowest = min(peaks)
    rows = []
    for percent in (95, 90, 85, 80, 75, 70):
        progress(f"memory.partitioner: {percent} % of the lowest peer")
        peak = parameters + (lowest - parameters) * percent // 100
        rows.append(
            {"of the lowest peer %": percent, "peak MiB": (peak - parameters) / MIB} | planned(trace, peak, parameters)
        )
    yield Table("4-layer GPT: below every peer", rows)


def by_work(trace: Trace) -> Trace:
    """`trace` with FLOPs as times: 1 ns for 1000 FLOPs, and 1 ns for 100,000 bytes moved."""
    counted = with_counts(trace)

    def cost(flops: int | None, moved: int | None) -> int:
        return (flops or 0) // 1000 + (moved or 0) // 100_000

    return replace(
        counted,
        ops=tuple(
            replace(
                op,
                time_ns=cost(op.flops, op.bytes_moved),
                workspace_bytes=0,
                implementations=tuple(
                    replace(one, time_ns=cost(one.flops, one.bytes_moved), workspace_bytes=one.workspace_bytes or 0)
                    for one in op.implementations
                ),
            )
            for op in counted.ops
        ),
    )


def peers() -> Iterator[Variant]:
    """Every peer at every setting."""
    model, inputs, loss = gpt()
    yield Variant("eager", model, lambda: loss(model, *inputs))
    wrapped = gpt(True)[0]
    yield Variant("checkpoint per block", wrapped, lambda: loss(wrapped, *inputs))
    selected = copy.deepcopy(model)
    products = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
    contexts = partial(create_selective_checkpoint_contexts, products)
    for place, block in enumerate(selected.blocks):
        selected.blocks[place] = checkpoint_wrapper(block, context_fn=contexts)
    yield Variant("SAC, matrix products saved", selected, lambda: loss(selected, *inputs))
    for solver, budget in itertools.product(SOLVERS, BUDGETS):
        own = copy.deepcopy(model)
        yield Variant(f"PyTorch {solver} {budget}", own, partitioned(own, inputs, loss, budget, solver))


def planned(trace: Trace, peak: int, parameters: int) -> Row:
    """The plan for `peak` bytes, run: its measured peak and work."""
    try:
        plan = memory_plan(trace, peak, options=OPTIONS)
    except (InfeasibleError, LimitError) as error:
        return {"ours": type(error).__name__}
    model, inputs, _ = gpt()
    variant = execution.planned("ours", model, inputs, plan, trace).measure_peak(inputs)
    assert variant.peak_bytes <= peak
    return {"our peak MiB": (variant.peak_bytes - parameters) / MIB, "our GFLOP": flops(variant) / 1e9}


def flops(variant: Variant) -> int:
    """FLOPs of matrix products in one step."""
    variant.model.zero_grad(set_to_none=True)
    with FlopCounterMode(display=False) as counter:
        variant.step().backward()
    return int(counter.get_total_flops())
