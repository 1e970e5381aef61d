"""Swap plans compared with other means of swapping, all under the same simulator.

Costs are the roofline's on the machine of SwapAdvisor (one V100 with 16 GB, 12 GB/s to and from the host). Peers are
`benchmarks.swap.peers`, with the time of all operators as 100 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from benchmarks.common import Row, Table, progress
from benchmarks.swap.networks import HARDWARE, entry, trace_of
from benchmarks.swap.peers import largest_first, odswap, save_on_cpu, torchtune, vdnn
from benchmarks.swap.peers.peer import Labels, Outcome, labels_of
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.swap.decisions import Allocator
from treadle.planner.passes.swap.extract import machine_of, problem_from_trace
from treadle.planner.passes.swap.planning import SwapOptions, SwapTask, footprint, plan_swap, with_memory
from treadle.planner.passes.swap.problem import SwapProblem
from treadle.probe.resolve import load_hardware

MODELS = {
    "ResNet-50 b64": ("resnet50:resnet50", {"batch": 64}),
    "GoogLeNet b128": ("googlenet:googlenet", {"batch": 128}),
    "GPT-2 small b8": ("gpt2:small", {"batch": 8, "tokens": 1024}),
    "LSTM large b128": ("lstm_lm:large", {"batch": 128}),
}
SHARES = (Fraction(3, 4), Fraction(1, 2), Fraction(1, 4))
OPTIONS = SwapOptions(generations=60, time_limit_s=60.0, workers=2)
ALLOCATORS: tuple[Allocator, ...] = ("pool", "bytes")
PEERS: dict[str, Callable[[SwapProblem, Labels], Outcome]] = {
    "ODSwap": lambda problem, labels: odswap.plan(problem),
    "vDNN": vdnn.plan,
    "save_on_cpu": save_on_cpu.plan,
    "torchtune": torchtune.plan,
    "largest first": largest_first.plan,
}
NOTES = (
    "% of ideal: the time of all operators over that of the step. N/A: does not fit; the share is the memory needed.",
    "Memory is a share of what the trace's order needs without any copy. Optimizer: SGD, in the step.",
    "treadle: with pools, a real layout of memory like ODSwap's buddies, and with counted bytes, like the other peers; "
    f"{OPTIONS.generations} generations or {OPTIONS.time_limit_s:.0f} s. bound: what no plan of any order exceeds.",
)


def tables() -> Iterator[Table]:
    """Simulated step time of swap plans and of five baselines, as a share of the ideal."""
    for name in MODELS:
        rows = []
        trace = trained(name)
        for share in SHARES:
            progress(f"swap.baselines: {name} at {float(share)}")
            rows.append(compared(trace, share))
        yield Table(f"{name}: % of ideal by memory", rows, NOTES)


def compared(trace: Trace, share: Fraction, options: SwapOptions = OPTIONS) -> Row:
    """One model with one memory: every peer, then the plan."""

    problem = with_memory(problem_from_trace(trace, machine_of(load_hardware(HARDWARE))), share)
    labels, whole = labels_of(problem, trace), footprint(problem)
    row: Row = {
        "memory": f"{float(share):g}x",
        "GiB": problem.machine.memory_bytes / 2**30,
        "ideal ms": problem.ideal_ns / 1e6,
    }
    for name, peer in PEERS.items():
        found = peer(problem, labels)
        row[name] = (
            _percent(problem, found.decisions) if found.decisions else f"N/A ({found.needed_bytes / whole:.2f}x)"
        )
    for allocator in ALLOCATORS:
        try:
            plan = plan_swap(SwapTask(problem), options=replace(options, allocator=allocator))
        except (InfeasibleError, LimitError) as error:
            row[f"treadle {allocator}"] = f"N/A ({type(error).__name__})"
        else:
            row[f"treadle {allocator}"] = _percent(problem, plan.decisions)
            row["bound"] = f"{100 * problem.ideal_ns / plan.certificate.lower_bound:.1f}"
    return row


def trained(name: str) -> Trace:
    """One training step with plain SGD and the roofline's times."""
    spec, sizes = MODELS[name]
    return trace_of(partial(entry(f"examples.models.{spec}"), **sizes), name, "train")


def _percent(problem: SwapProblem, decisions: Any) -> str:
    return f"{100 * problem.ideal_ns / decisions.time_ns:.1f}"
