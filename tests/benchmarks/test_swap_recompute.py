"""The table of copies and recomputation: both together are no slower than either, and nothing beats the bound."""

from __future__ import annotations

from fractions import Fraction

from benchmarks.swap.recompute import MODELS, compared
from tests.planner.job.recompute_swap.steps import captured
from treadle.planner.job.recompute_swap.planning import JointOptions
from treadle.planner.passes.memory.planning import MemoryOptions
from treadle.planner.passes.swap.planning import SwapOptions


def test_a_row() -> None:
    swap = SwapOptions(population=4, generations=1, patience=1, time_limit_s=20.0)
    options = JointOptions(swap, memory=MemoryOptions(method="heuristic"), evaluations=8, starts=1, finalists=1)
    row = compared(captured("convnet"), Fraction(3, 4), options)
    assert row["bound"] <= row["both"] <= min(row["swap"], row["memory"])
    assert row["ahead"] == f"{100 * (1 - row['both'] / min(row['swap'], row['memory'])):.1f} %"
    assert row["again"] > 0


def test_the_models_are_those_of_swapadvisor_and_two_more() -> None:
    modules = {spec.partition(":")[0].rpartition(".")[2] for spec, _ in MODELS.values()}
    assert modules == {"resnet50", "inception_v4", "wide_resnet152", "nasnet_a", "recurrent", "gpt2"}
