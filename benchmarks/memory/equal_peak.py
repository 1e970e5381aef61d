"""Seven networks at equal measured peak: a treadle plan, a checkpoint around each block, PyTorch's activation budget.

The peers run first. The measured peak of each is the budget of a plan, so that times compare at equal memory. Among
PyTorch's budgets (a share, and not monotone) the fastest within the peak of the checkpoints is taken, else the one of
least peak; PyTorch's planner gets the same whole operators. All run in turns in one process on one thread. Times are
the least processor time of a step, which other work disturbs least, as ratios to plain PyTorch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch

from benchmarks.common import Row, Table, progress
from benchmarks.memory.execution import (
    PYTORCH_BUDGETS,
    Variant,
    difference,
    gradients,
    in_turns,
    measured_trace,
    memory_plan,
    partitioned,
    planned,
)
from benchmarks.memory.varied import MODELS, Step
from treadle.capture.whole import whole_operators
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.memory.planning import MemoryOptions

OPTIONS = MemoryOptions(time_limit_s=20.0, workers=2)
REPEATS = 7
NOTES = (
    "peak x, time x: against plain PyTorch; parameters and gradients are in all peaks. time / peer: against the peer "
    "whose measured peak is the plan's budget; below 1 the plan is ahead.",
)


def tables() -> Iterator[Table]:
    """Plans, hand checkpoints and PyTorch's budget at equal measured peak, on seven kinds of network."""
    torch.set_num_threads(1)
    yield Table("Seven networks at equal peak", [row for name in MODELS for row in compared(name)], NOTES)


def compared(name: str) -> list[Row]:
    """One network: plain, its peers, and a plan at the peak of each."""
    make = MODELS[name]
    torch.manual_seed(0)
    model, inputs, loss = make()
    progress(f"memory.equal_peak: {name}: peers")
    plain = Variant("plain", model, lambda: loss(model, *inputs)).measure_peak(inputs)
    checked = make(True)[0]
    checked.load_state_dict(model.state_dict())
    by_hand = Variant("checkpoint per block", checked, lambda: loss(checked, *inputs)).measure_peak(inputs)
    peers = [by_hand, *budgeted(make, plain, by_hand, inputs)]
    progress(f"memory.equal_peak: {name}: measuring its operators")
    trace = measured_trace(make, name)
    plans = []
    for peer in peers:
        progress(f"memory.equal_peak: {name}: planning as {peer.name}")
        try:
            plan = memory_plan(trace, peer.peak_bytes, options=OPTIONS)
        except (InfeasibleError, LimitError) as error:
            progress(f"memory.equal_peak: {name}: {error}")
            continue
        variant = planned(f"treadle, as {peer.name}", model, inputs, plan, trace, peer)
        plans.append(variant.measure_peak(inputs))
    variants = [plain, *peers, *plans]
    in_turns(variants, REPEATS)
    reference = gradients(plain)
    return [row(name, variant, plain, reference) for variant in variants]


def budgeted(
    make: Callable[..., Step], plain: Variant, by_hand: Variant, inputs: tuple[torch.Tensor, ...]
) -> Iterator[Variant]:
    """The step under PyTorch's budget; nothing if none of its peaks is below plain PyTorch's."""
    found = []
    for budget in PYTORCH_BUDGETS[1:]:
        own = copy.deepcopy(plain.model)
        step = partitioned(own, inputs, make()[2], budget)
        try:
            with whole_operators():
                variant = Variant(f"PyTorch budget {budget}", own, step).measure_peak(inputs)
        except Exception as error:
            progress(f"memory.equal_peak: PyTorch budget {budget}: {type(error).__name__}: {error}")
            continue
        variant.times.append(min(variant.once() for _ in range(2)))
        found.append(variant)
    low = [variant for variant in found if variant.peak_bytes <= by_hand.peak_bytes]
    best = min(low, key=lambda v: v.seconds) if low else min(found, key=lambda v: v.peak_bytes, default=None)
    if best is not None and best.peak_bytes < plain.peak_bytes:
        yield best


def row(name: str, variant: Variant, plain: Variant, reference: list[torch.Tensor]) -> Row:
    seconds, peer = min(variant.times), variant.peer
    return {
        "network": name,
        "step": variant.name,
        "peak MiB": variant.peak_bytes / 2**20,
        "peak x": variant.peak_bytes / plain.peak_bytes,
        "CPU ms": seconds * 1e3,
        "time x": seconds / min(plain.times),
        "peak / peer": variant.peak_bytes / peer.peak_bytes if peer else None,
        "time / peer": seconds / min(peer.times) if peer else None,
        "gradients": difference(variant, reference),
    }
