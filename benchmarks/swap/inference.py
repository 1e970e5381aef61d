"""ResNet-152 inference in little memory: the shape of SwapAdvisor's table 5.2."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.common import Row, Table, progress
from benchmarks.swap.networks import inference, problem_from
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.swap.planning import SwapOptions, SwapTask, footprint, plan_swap
from treadle.planner.passes.swap.problem import SwapProblem

MEGABYTES = (64, 128, 192, 256, 320, 512, 640, 1024)
BATCHES = (1, 16, 32, 64)
SWAPADVISOR = {
    1: (0.024, 0.022, 0.018, 0.017, 0.017, 0.017, 0.017, 0.017),
    16: (None, 0.077, 0.044, 0.043, 0.042, 0.040, 0.040, 0.040),
    32: (None, None, None, 0.130, 0.073, 0.067, 0.067, 0.067),
    64: (None, None, None, None, None, 0.238, 0.123, 0.121),
}
"""Times of SwapAdvisor's table, s."""
OPTIONS = SwapOptions(generations=100, patience=30, time_limit_s=60.0)


def tables() -> Iterator[Table]:
    """Time of ResNet-152 inference over device memory, for four batches."""
    steps = {batch: inference(batch) for batch in BATCHES}
    rows: list[Row] = []
    for at, size in enumerate(MEGABYTES):
        row: Row = {"MB": size}
        for batch, step in steps.items():
            problem = problem_from(step, size * 2**20)
            found = seconds(problem, batch)
            row[f"batch {batch}"] = "N/A" if found is None else f"{found:.4f} ({found * 1e9 / problem.ideal_ns:.2f}x)"
            theirs, whole = SWAPADVISOR[batch][at], SWAPADVISOR[batch][-1]
            row[f"SwapAdvisor {batch}"] = "N/A" if theirs is None else f"{theirs:.3f} ({theirs / whole:.2f}x)"
        rows.append(row)
    whole = ", ".join(f"{footprint(problem_from(step)) / 2**20:,.0f} MB" for step in steps.values())
    yield Table(
        "ResNet-152 inference: seconds (and times that of unlimited memory) by device memory",
        rows,
        (f"MB are 2^20 bytes. Without any copy the batches need {whole}.",),
    )


def seconds(problem: SwapProblem, batch: int) -> float | None:
    """Time of the plan found; None without a plan."""
    progress(f"swap.inference: batch {batch} in {problem.machine.memory_bytes / 2**20:,.0f} MB")
    try:
        plan = plan_swap(SwapTask(problem), options=OPTIONS)
    except (InfeasibleError, LimitError) as error:
        progress(f"  {error}")
        return None
    return plan.decisions.time_ns / 1e9
