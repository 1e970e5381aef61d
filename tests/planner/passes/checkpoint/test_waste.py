"""What failures waste, how often checkpoints are made, and the bound: by hand, by trying, and as the paper has it."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from msgspec.structs import replace

from benchmarks.checkpoint.failures import simulated
from benchmarks.checkpoint.papers import GPT2_100B, failing
from benchmarks.checkpoint.published import ratios, survivals, times, variants
from tests.planner.passes.checkpoint.checkpoint_plans import PROBLEM
from tests.planner.passes.checkpoint.random_problems import random_problem
from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.checkpoint.bound import least_overflow_ns, lower_bound
from treadle.planner.passes.checkpoint.decided import decided
from treadle.planner.passes.checkpoint.interval import best_every, failures_per_ns
from treadle.planner.passes.checkpoint.placement import published
from treadle.planner.passes.checkpoint.planning import plan_checkpoint
from treadle.planner.passes.checkpoint.problem import Persistent, Recovery, Variant
from treadle.planner.passes.checkpoint.survival import survival
from treadle.planner.passes.checkpoint.waste import in_memory, on_storage, survives, wasted

SECOND = 10**9


@pytest.mark.parametrize(("kept", "seconds"), [(Fraction(1), 96), (Fraction(112, 120), 513.8), (Fraction(0), 6362.56)])
def test_what_lost_machines_waste(kept: Fraction, seconds: float) -> None:
    """GPT-2 100B, whose transfer takes 3 s; without a copy left, a checkpoint of storage every 3 hours."""
    problem = replace(GPT2_100B, link_rate=GPT2_100B.state_bytes // 3)
    memory = in_memory(problem, 0, 1, kept)
    assert memory.software_ns == 93 * SECOND
    assert memory.hardware_ns / SECOND == pytest.approx(seconds, abs=0.05)


def test_the_figures_of_the_evaluation_are_those_of_plans() -> None:
    ours = {row[""]: row["ours"] for row in (*survivals(), *times(), *ratios(), *variants())}
    assert ours["2 lost, groups, %"] == pytest.approx(93.33, abs=0.01)
    assert ours["3 lost, groups, %"] == pytest.approx(80)
    assert ours["3 lost, less in a ring, %"] == pytest.approx(100 - 35200 / 448)
    assert ours["iterations from one checkpoint on storage to the next"] == 8
    assert ours["checkpoints / those every 3 hours"] > 170
    assert ours["storage / memory, 400 Gbit/s"] > 250
    assert ours["wasted, one after the other / memory"] > 13
    assert ours["15 failures per day, in memory"] == pytest.approx(0.911, abs=0.001)
    assert ours["in memory / one after the other"] > 1.5
    assert ours["15 failures per day, every 3 hours"] == 0
    assert [ours[variant] for variant in ("blocking", "no-pipeline", "planned")] == ["+10.1 %", "+3.5 %", "+0.0 %"]
    assert "2.328 GiB" in ours["naive"]


def test_an_interval_is_never_shorter_than_a_checkpoint_takes() -> None:
    slow = Persistent(rate=100, interval_ns=SECOND // 2)
    storage = on_storage(replace(PROBLEM, persistent=slow), slow, often=False)
    assert storage.checkpoint_ns == storage.interval_ns == 60 * SECOND // 100


def test_a_lost_rack_counts_as_often_as_it_is_lost() -> None:
    problem = replace(PROBLEM, machines=4, domains=(0, 0, 1, 2), domain_ppm=250_000)
    found = survival(problem, published(4, 2)[1])
    assert survives(problem, found) == Fraction(3, 4) + Fraction(1, 4) * Fraction(2, 3)
    assert survives(replace(problem, domains=()), survival(replace(problem, domains=()), published(4, 2)[1])) == 1


def test_a_machine_that_stands_by_spares_the_wait_for_one() -> None:
    failed = replace(failing(15.0), hardware_ppm=1_000_000)
    waiting = replace(failed, recovery=Recovery(standby=0))
    ready = replace(failed, recovery=Recovery(standby=1))
    spared = wasted(ready, 0, 1, Fraction(1))[0].ratio - wasted(waiting, 0, 1, Fraction(1))[0].ratio
    assert spared == pytest.approx(15 * Recovery().replace_ns / (86_400 * SECOND))


@pytest.mark.parametrize("per_day", [1.0, 8.0])
def test_failures_one_by_one_leave_the_share_that_is_planned(per_day: float) -> None:
    problem = failing(per_day)
    memory, _, often = plan_checkpoint(problem).decisions.waste
    assert simulated(problem, memory, days=1000) == pytest.approx(memory.ratio, abs=0.003)
    assert simulated(problem, often, days=1000) == pytest.approx(often.ratio, abs=0.02)


def test_without_failures_nothing_is_lost() -> None:
    assert wasted(failing(0.0), 0, 1, Fraction(1))[0].ratio == 1


def test_the_interval_costs_least_of_all_that_are_tried() -> None:
    chance = random.Random(5)
    for _ in range(100):
        problem = replace(PROBLEM, iteration_ns=chance.randint(1, 1000), failures_per_day=chance.uniform(1, 1e14))
        overflow = chance.randint(1, 10_000)
        rate, period = failures_per_ns(problem), problem.iteration_ns

        def cost(every: int) -> Fraction:
            return Fraction(overflow, every) + rate * every * period**2 / 2  # noqa: B023

        every = best_every(problem, overflow)
        assert every >= 1
        assert every == 1 or cost(every - 1) > cost(every)
        assert cost(every) <= cost(every + 1)


@pytest.mark.parametrize(("overflow", "failures"), [(0, 8.0), (10, 0.0)])
def test_without_overflow_or_failures_every_iteration_has_a_checkpoint(overflow: int, failures: float) -> None:
    assert best_every(failing(failures), overflow) == 1


def test_rare_failures_do_not_make_an_interval_that_no_document_holds() -> None:
    assert best_every(failing(1e-300), 10) * GPT2_100B.iteration_ns <= 2**61


def test_no_plan_is_below_the_bound() -> None:
    chance, compared = random.Random(6), 0
    variants: tuple[Variant, ...] = ("planned", "no-pipeline", "blocking", "naive")
    for _ in range(60):
        problem = random_problem(chance)
        name, holders = published(problem.machines, problem.copies)
        bound = lower_bound(problem).time_ns
        for variant in variants:
            for every in (None, 1, 7):
                try:
                    found = decided(problem, name, holders, variant, every)
                except (InfeasibleError, InputError):
                    continue
                compared += 1
                assert found.overflow_ns >= least_overflow_ns(problem)
                assert found.time_ns >= bound
    assert compared > 400
