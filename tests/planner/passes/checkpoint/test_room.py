"""Checkpoint plans in the light of their inputs: the same holders with the links of today, the bound derived again, an
interval that was given, and how two plans differ."""

from __future__ import annotations

from functools import cache

import pytest
from msgspec.structs import replace

from tests.planner.passes.checkpoint.checkpoint_plans import COPYING, PROBLEM, decided_for
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.sources import load_named
from treadle.planner.errors import InputError
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.extract import CheckpointSetup, problem_of
from treadle.planner.passes.checkpoint.planning import CheckpointOptions, plan_checkpoint
from treadle.planner.passes.checkpoint.room import PASS
from treadle.planner.passes.checkpoint.spans import silent

DIGEST = "sha256:" + 64 * "0"
HARDWARE = replace(load_named(Hardware, "ndv4"), nodes=4)


@cache
def planned(every: int | None = None) -> Plan[CheckpointDecisions]:
    """A plan for hardware, whose checkpoints take longer than its iterations."""
    problem = problem_of("job", HARDWARE, 10**8, silent(10**6), CheckpointSetup(host_bytes=10**10, failures_per_day=8))
    inputs = {"hardware": InputRef(file="ndv4", digest=DIGEST)}
    return plan_checkpoint(problem, options=CheckpointOptions("groups", every=every), inputs=inputs)


def slower() -> Hardware:
    assert HARDWARE.network is not None
    network = replace(HARDWARE.network, beta_us_per_MB=2 * HARDWARE.network.beta_us_per_MB)
    return replace(HARDWARE, network=network)


def test_nothing_changed_where_the_hardware_is_the_same() -> None:
    assert PASS.check_inputs(planned(), {"hardware": HARDWARE}) == []
    assert PASS.check_inputs(planned(), {}) == []
    assert PASS.today(planned(), {}) is None
    assert PASS.nodes(planned().decisions, HARDWARE) == 4


def test_slower_links_are_noticed_and_the_same_holders_priced_with_them() -> None:
    (changed,) = PASS.check_inputs(planned(), {"hardware": slower()})
    assert changed.startswith("$.decisions.problem.link_rate: not what the inputs say now")
    now = PASS.today(planned(), {"hardware": slower()})
    assert now is not None
    assert now.holders == planned().decisions.holders
    assert now.overflow_ns > planned().decisions.overflow_ns
    assert PASS.check(now) == []


def test_an_interval_that_was_given_stays() -> None:
    given = planned(every=3)
    assert [*PASS.check_certificate(given)] == []
    now = PASS.today(given, {"hardware": slower()})
    assert now is not None
    assert now.every == 3
    silent_about_it = replace(given, provenance=replace(given.provenance, options={}))
    (finding,) = PASS.check_certificate(silent_about_it)
    assert finding.startswith("$.decisions.every: found 3, expected ")


def test_another_number_of_machines_needs_a_new_plan() -> None:
    plan = replace(planned(), decisions=decided_for(PROBLEM))
    with pytest.raises(InputError, match="another number of machines or copies"):
        PASS.today(plan, {"problem": COPYING})


def test_the_bound_is_derived_again() -> None:
    plan = planned()
    assert PASS.rebound(plan, {}) == ([], plan.certificate.lower_bound)
    claimed = replace(plan, certificate=replace(plan.certificate, lower_bound=plan.certificate.lower_bound + 1))
    assert PASS.rebound(claimed, {}).findings[0].startswith("certificate: lower bound ")


def test_two_plans_differ_in_words_of_checkpoints() -> None:
    lines = [str(each) for each in PASS.differences(decided_for(COPYING), decided_for(COPYING, "ring"))]
    assert "placement: groups -> ring" in lines
    assert "holders: 3 states of 6 on other machines" in lines
    assert "survival of 2 machines: 0.8 -> 0.6 (-25.00%)" in lines
    assert PASS.differences(decided_for(COPYING), decided_for(COPYING)) == []
