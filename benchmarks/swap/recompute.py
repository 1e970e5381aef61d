"""Copies, recomputation, and both together, in half the memory.

Costs are the roofline's on the machine of SwapAdvisor (one V100 with 16 GB, 12 GB/s to and from the host). Half the
memory is half of what the trace's order needs without any copy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from benchmarks.common import Row, Table, progress
from benchmarks.swap.networks import HARDWARE, HOST_BYTES, trained
from treadle.passes.swap.command import repeated
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InfeasibleError, InputError, LimitError
from treadle.planner.job.recompute_swap.memory_runs import allowed
from treadle.planner.job.recompute_swap.planning import JointOptions, JointProblem, plan_joint
from treadle.planner.job.recompute_swap.programs import memory_alone, sides
from treadle.planner.job.recompute_swap.scoring import Scorer
from treadle.planner.passes.memory.planning import MemoryOptions
from treadle.planner.passes.swap.extract import machine_of
from treadle.planner.passes.swap.planning import SwapOptions, SwapTask, inplace_problem, plan_swap, with_memory
from treadle.planner.passes.swap.problem import SwapMachine
from treadle.probe.resolve import load_hardware

MODELS = {
    "ResNet-50, 184": ("examples.models.resnet50:resnet50", 184),
    "Inception-4, 16": ("examples.models.inception_v4:training", 16),
    "Inception-4, 64": ("examples.models.inception_v4:training", 64),
    "WResNet-152-4, 64": ("examples.models.wide_resnet152:training_4", 64),
    "WResNet-152-10, 64": ("examples.models.wide_resnet152:training", 64),
    "NasNet-25, 16": ("examples.models.nasnet_a:training", 16),
    "BRNN-4-8K, 128": ("examples.models.recurrent:brnn_4_8k", 128),
    "RNN-8-8K, 256": ("examples.models.recurrent:rnn_8_8k", 256),
    "GPT-2 XL, 1": ("examples.models.gpt2:xl", 1),
}
SHARE = Fraction(1, 2)
OPTIONS = JointOptions(swap=SwapOptions(time_limit_s=120.0, workers=1))
MEMORY_S = 120.0
"""Seconds for the memory pass, as many as for the others."""
NOTES = (
    "Simulated time of one iteration, ms. ideal: all operators by their own calls. swap: `plan swap`, in-place calls "
    "included. memory: only the memory pass; parameters, and tensors of its plan too large for the pool, are copied. "
    "both: `plan swap --with-recompute`. bound: no plan with copies and recomputation is faster.",
    "ahead: time saved, compared with the faster of swap and memory. again: runs of operators that ran before.",
    f"Half the memory of each, {OPTIONS.swap.time_limit_s:.0f} s for each search, one process.",
)


def tables() -> Iterator[Table]:
    """Simulated step time in half the memory: only copies, only recomputation, and both."""
    rows = []
    for name, (spec, batch) in MODELS.items():
        progress(f"swap.recompute: {name}")
        rows.append({"model, batch": name, **compared(trained(spec, batch))})
    yield Table("Copies, recomputation, or both, in half the memory", rows, NOTES)


def compared(
    trace: Trace,
    share: Fraction = SHARE,
    options: JointOptions = OPTIONS,
    memory_s: float = MEMORY_S,
) -> Row:
    """One model: each pass, then both."""
    machine = machine_of(load_hardware(HARDWARE), None, HOST_BYTES)
    whole = inplace_problem(trace, machine)
    problem = with_memory(whole.problem, share)
    machine = problem.machine
    try:
        swap = plan_swap(SwapTask(problem, whole.runs), options=options.swap).decisions.time_ns / 1e6
    except (InfeasibleError, LimitError):
        swap = None
    memory = _memory_ms(trace, machine, options, memory_s)
    both = plan_joint(JointProblem(trace, machine), options=options)
    ours, others = both.decisions.time_ns / 1e6, [found for found in (swap, memory) if found is not None]
    return {
        "GiB": machine.memory_bytes / 2**30,
        "ideal": problem.ideal_ns / 1e6,
        "swap": swap,
        "memory": memory,
        "both": ours,
        "bound": both.certificate.lower_bound / 1e6,
        "ahead": f"{100 * (1 - ours / min(others)):.1f} %" if others else "",
        "again": len(repeated(both.decisions)),
        "GiB copied": (both.decisions.in_bytes + both.decisions.out_bytes) / 2**30,
        "found by": both.provenance.method,
    }


def _memory_ms(trace: Trace, machine: SwapMachine, options: JointOptions, seconds: float) -> float | None:
    chosen, until = allowed(trace, options.families), time.monotonic() + seconds
    memory: MemoryOptions = replace(options.memory, families=None)
    try:
        runs = memory_alone(sides(chosen, machine, 0), memory, until, lambda: time.monotonic() > until)
    except (InputError, InfeasibleError, LimitError):
        return None
    found = Scorer(chosen, machine, 0, options.swap.allocator).score(runs, "memory plan")
    return None if found is None else found.time_ns / 1e6
