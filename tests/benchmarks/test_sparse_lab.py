"""What the lab benchmark of sparse gradients plans for, what it fits, and how it judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.sparse.costs import SMALL, counts, solved
from benchmarks.sparse.lab import RATES, compared, profile, recorded
from tests.treadle.runtime.sparse.plans import decisions_of
from treadle.lab.layout import layout
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.passes.sparse.decided import decided
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.schemes import BY_NAME
from treadle.probe.resolve import load_hardware


@pytest.mark.parametrize("rate", RATES.values(), ids=str)
def test_hosts_have_links_of_the_rate(tmp_path: Path, rate: float) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(profile(8, 100, 8 * MEBIBYTE * 1e6 / rate))
    hosts = layout(load_hardware(str(file))).hosts
    assert [host.devices for host in hosts] == 8 * [1]
    assert hosts[0].interfaces[0].bits_per_second == pytest.approx(rate, rel=1e-3)


def test_recordings_are_those_of_the_batches() -> None:
    """64 samples with 4 lookups in each table; more hosts look more rows up."""
    sparsity = recorded("dlrm", 2)
    assert not list(sparsity.problems())
    assert [tensor.units for tensor in sparsity.tensors] == [50_000, 20_000, 8_000, 300]
    for tensor in sparsity.tensors:
        assert tensor.occurrences == 64 * 4
        one, two = tensor.unions[:2]
        assert one.mean < two.mean < 2 * one.mean


def test_costs_of_messages_and_rounds_are_found_again() -> None:
    counted = np.array([counts(BY_NAME[name], 8) for name in SMALL], dtype=float)
    assert solved(counted, counted @ [500.0, 2000.0]) == pytest.approx((500, 2000))
    assert min(solved(counted, counted @ [500.0, -20.0])) == 0
    assert counts(BY_NAME["dense"], 8) == (14, 2)
    assert counts(BY_NAME["sparcml"], 8) == (6, 3)


def _decisions() -> SparseDecisions:
    problem = decisions_of(("table", "zen", "coo", 1000, 8), machines=4).problem
    return decided(problem)


def _found(plan_ms: float, other_ms: float, exchange_ms: float, same: bool) -> dict[str, Any]:
    sizes = {"sent": 1000, "counted": 1000, "same": same, "busiest": 10, "planned": 11}
    return {
        "step": {"no exchange": 1.0, "DDP, sparse=True": other_ms, "plan": plan_ms},
        "exchange": {"plan": exchange_ms},
        "bytes": {"plan": sizes},
    }


def test_a_plan_that_loses_or_mispredicts_or_sends_other_bytes_is_said_to() -> None:
    decisions = _decisions()
    named = {"plan": decisions, "plan, any order": decisions}
    ms = decisions.time_ns / 1e6
    met = compared("any", _found(5.0, 4.9, 1.1 * ms, True), {**named})
    assert "met" in met.notes[1]
    assert (met.rows[2]["within 15 %"], met.rows[2]["as counted"]) == ("yes", "yes")
    lost = compared("any", _found(5.0, 4.8, 1.3 * ms, False), {**named})
    assert "MISSED" in lost.notes[1]
    assert (lost.rows[2]["within 15 %"], lost.rows[2]["as counted"]) == ("MISSED", "MISSED")
