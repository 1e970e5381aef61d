"""The whole pass: checked plans of each method, limits, interrupts and the errors without a plan."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from itertools import count, pairwise

import pytest
from msgspec.structs import replace

from tests.oracles.exact_compression import OneLink
from tests.planner.passes.compression import one_link
from tests.planner.passes.compression.small_problems import FLAT, every_plan, random_problem
from treadle.planner.documents import store
from treadle.planner.documents.compression_costs import CompressorCost, Curve, DecodeCurve
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.compression import joint as joint_method
from treadle.planner.passes.compression import local_search
from treadle.planner.passes.compression.candidates import inter_allgather
from treadle.planner.passes.compression.check import check
from treadle.planner.passes.compression.decided import described, plain_groups, plain_option
from treadle.planner.passes.compression.decisions import CompressionDecisions, GradientGroup, Groups
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.joint import joint
from treadle.planner.passes.compression.local_search import improved, shaken
from treadle.planner.passes.compression.palette import palette
from treadle.planner.passes.compression.planning import UNCOMPRESSED, CompressionOptions, plan_compression
from treadle.planner.passes.compression.problem import CompressionProblem, Gradient
from treadle.planner.passes.compression.timeline_of import time_ns
from treadle.planner.search.clock import Clock
from treadle.planner.solver import Progress

SLOW, FAST = 3000.0, 1.0
"""us for a MiB."""


@pytest.fixture(autouse=True)
def few_shakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_search, "SHAKES", 4)


def model(
    beta: float, *, machines: int = 4, devices: int = 1, names: tuple[str, ...] = ("efsignsgd",)
) -> CompressionProblem:
    """Six layers of a weight and a bias."""
    line = Curve(points=((1, 30_000), (10**6, 300_000)))
    decode = (DecodeCurve(pieces=1, points=((1, 10_000), (10**6, 100_000))),)
    return CompressionProblem(
        version=1,
        name="layers",
        machines=machines,
        devices=devices,
        forward_ns=10**6,
        gradients=tuple(
            Gradient(name=f"w{place}", elements=(200_000, 500)[place % 2], backward_ns=(300_000, 10_000)[place % 2])
            for place in range(12)
        ),
        intra=GradientLink(alpha_us=2, beta_us_per_MB=10),
        inter=GradientLink(alpha_us=20, beta_us_per_MB=beta),
        compressors=tuple(CompressorCost(name=name, encode=line, decode=decode) for name in names),
        pack=Curve(points=((1, 2000), (10**6, 100_000))),
    )


def planned(problem: CompressionProblem, **options: object) -> Plan[CompressionDecisions]:
    return plan_compression(problem, options=CompressionOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("beta", [FAST, SLOW])
@pytest.mark.parametrize("as_published", [False, True])
def test_cupcake_groups_gradients(beta: float, as_published: bool) -> None:
    plan = planned(model(beta), method="cupcake", as_published=as_published)
    decisions, made = plan.decisions, plan.provenance
    assert check(decisions) == []
    assert made.known.candidates_ns[made.method] == decisions.time_ns == plan.certificate.objective
    assert made.options["decoding"] == ("ignore" if as_published else "fold")
    used = {group.compressor for group in decisions.groups}
    assert used == {"efsignsgd"} if as_published else ("efsignsgd" in used) == (beta == SLOW)
    assert len(decisions.groups) < 12
    assert plan.certificate.lower_bound <= decisions.time_ns
    assert store.dumps(plan) == store.dumps(planned(model(beta), method="cupcake", as_published=as_published))


def test_joint_is_never_worse_than_what_it_begins_from() -> None:
    for problem in (model(SLOW), model(300, machines=2, devices=2, names=("fp16",))):
        plan = planned(problem)
        assert plan.decisions.time_ns <= min(plan.provenance.known.candidates_ns.values())
        assert plan.decisions.time_ns < plan.decisions.uncompressed_ns
        assert not plan.provenance.limit_fired
        times = plan.provenance.known.candidates_ns
        assert all(times[rival.name] == rival.time_ns for rival in plan.decisions.rivals)
        assert {"uncompressed", "espresso", "espresso, published"} < {rival.name for rival in plan.decisions.rivals}
        assert {"HiPress", "BytePS-Compress"} & times.keys()
        assert plan.certificate.gap < 0.2


def test_joint_with_several_compressors_is_never_worse_than_the_papers_with_one() -> None:
    problem = model(SLOW, machines=2, devices=2, names=("efsignsgd", "fp16"))
    plan = planned(problem)
    for cost in problem.compressors:
        alone = replace(problem, compressors=(cost,))
        for method in ("espresso", "cupcake"):
            paper = planned(alone, method=method, as_published=True).decisions.time_ns
            assert plan.decisions.time_ns <= paper
            if method == "espresso":
                assert plan.provenance.known.candidates_ns[f"espresso, published, {cost.name}"] == paper


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("method", ["espresso", "cupcake"])
def test_every_method_has_rivals_that_the_checker_knows(method: str, as_published: bool) -> None:
    problem = model(SLOW, names=("efsignsgd", "fp16"))
    plan = planned(problem, method=method, as_published=as_published)
    assert check(plan.decisions) == []
    assert len(plan.decisions.rivals) > 1


@pytest.mark.parametrize("as_published", [False, True])
def test_espresso_takes_each_gradient_on_its_own(as_published: bool) -> None:
    plan = planned(model(SLOW), method="espresso", as_published=as_published)
    times = plan.provenance.known.candidates_ns
    assert plan.decisions.time_ns == times[plan.provenance.method]
    if as_published:
        assert times.keys() == {UNCOMPRESSED, "espresso, published"}
        assert plan.provenance.method == "espresso, published"
        assert plan.provenance.options["espresso, published"]["baseline"] is None
    else:
        assert plan.decisions.time_ns == min(times.values())
        assert "all compression" in times


def test_joint_has_no_paper() -> None:
    with pytest.raises(InputError, match="--as-published: found a method without a paper"):
        CompressionOptions(as_published=True)


def test_compress_nothing_is_a_plan_and_is_said() -> None:
    plan = planned(model(FAST))
    assert {group.compressor for group in plan.decisions.groups} == {None}
    assert described(plan.decisions).startswith("compress nothing: 12 gradients in ")
    named = plan.decisions.groups[0]
    mixed = replace(plan.decisions, groups=(replace(named, compressor="efsignsgd"), *plan.decisions.groups[1:]))
    assert "efsignsgd for 1" in described(mixed)


def test_joint_is_exact_for_a_few_gradients() -> None:
    for number in range(12):
        rng = random.Random(number)
        problem = random_problem(rng, rng.randint(1, 3))
        problem = replace(problem, compressors=problem.compressors[:1])
        plan = planned(problem)
        evaluator = Evaluator(problem)
        least = min(evaluator.time(groups) for groups in every_plan(len(problem.gradients), FLAT[:2]))
        assert plan.certificate.optimal
        assert plan.certificate.objective == plan.decisions.time_ns <= least
        assert "search of all groups" in plan.certificate.argument or plan.certificate.terms_ns


@pytest.mark.parametrize(
    ("case", "least"),
    [
        (OneLink((2, 2, 2), (3, 3, 6), (1, 1, 2), 1, 2), 9),
        (OneLink((2, 6), (3, 4), (1, 1), 1, 1), 10),
        (OneLink((2, 2, 2, 2), (8, 8, 8, 8), (2, 2, 2, 2), 1, 2), 12),
        (OneLink((1, 1, 4), (9, 9, 9), (3, 3, 3), 1, 2), 11),
    ],
    ids=["three gradients", "bubble", "offload", "Lemma 4.1 fails"],
)
def test_joint_is_at_least_as_good_as_the_best_choice_for_single_gradients(case: OneLink, least: int) -> None:
    assert min(case.time(choice) for choice in case.choices("ngc")) == least
    plan = planned(one_link.problem_of(case))
    assert plan.decisions.time_ns <= least
    assert plan.decisions.time_ns <= min(plan.provenance.known.candidates_ns.values())


def test_limits_of_the_problem_hold() -> None:
    problem = replace(model(SLOW), group_bytes=2_000_000, compressions=1)
    plan = planned(problem)
    for group in plan.decisions.groups:
        inside = problem.gradients[group.first : group.last + 1]
        assert len(inside) == 1 or 4 * sum(gradient.elements for gradient in inside) <= 2_000_000
        assert sum(step.startswith("compress@") for step in group.steps) <= 1
    never = planned(replace(problem, compressions=0))
    assert {group.compressor for group in never.decisions.groups} == {None}
    assert (
        planned(replace(problem, compressions=0), method="cupcake", as_published=True).provenance.method == UNCOMPRESSED
    )


def test_an_interrupt_ends_the_search_with_the_best_plan() -> None:
    stop = threading.Event()
    seen: list[Plan[CompressionDecisions]] = []

    def on_plan(plan: Plan[CompressionDecisions]) -> None:
        seen.append(plan)
        stop.set()

    plan = plan_compression(model(SLOW), clock=Clock(stop=stop), on_plan=on_plan)
    assert seen[0].provenance.interrupted
    assert plan.provenance.interrupted
    assert check(plan.decisions) == []
    assert plan.decisions.time_ns <= seen[0].decisions.time_ns


def test_a_limit_is_recorded() -> None:
    plan = plan_compression(model(SLOW), clock=Clock.of(0.0))
    assert plan.provenance.limit_fired
    assert plan.provenance.method != "joint"
    assert plan.certificate.lower_bound == plan.certificate.terms_ns["forward"] + plan.certificate.terms_ns["backward"]


@pytest.mark.parametrize("ends", [60, 900])
def test_rivals_that_a_limit_cut_are_marked_and_others_are_whole(ends: int) -> None:
    """On a clock that advances by one whenever it is read."""
    problem = model(300, names=("efsignsgd", "fp16"))
    whole = {each.name: each for each in planned(problem).decisions.rivals}
    readings = count()
    clock = Clock(ends=ends, began=0, now=lambda: float(next(readings)))
    plan = plan_compression(problem, clock=clock)
    assert plan.provenance.limit_fired
    assert check(plan.decisions) == []
    for rival in plan.decisions.rivals:
        if not rival.cut and rival.name in whole:
            assert rival == whole[rival.name]
    assert any(rival.cut for rival in plan.decisions.rivals)


def test_progress_names_what_is_at_work() -> None:
    seen: list[Progress] = []
    plan = plan_compression(model(SLOW), on_progress=seen.append)
    assert all((one.incumbent or 0) >= (other.incumbent or 0) for one, other in pairwise(seen))
    assert seen[-1].incumbent == plan.decisions.time_ns
    assert seen[0].method == UNCOMPRESSED


def test_the_local_search_finds_what_is_hidden_from_its_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_method, "through_boundaries", lambda *given: iter(()))
    problem = model(SLOW)
    evaluator = Evaluator(problem)
    found = joint(
        problem,
        evaluator,
        {"plain": plain_groups(problem)},
        palette(problem, evaluator),
        stopped=lambda: False,
        offer=lambda *found: None,
    )
    assert found.ns == time_ns(problem, found.groups)
    assert found.ns < 0.7 * time_ns(problem, plain_groups(problem))
    assert any(isinstance(group, GradientGroup) and group.last > group.first for group in found.groups)


def test_random_changes_lead_out_of_a_local_optimum() -> None:
    problem = model(SLOW)
    evaluator = Evaluator(problem)
    named = [(None, plain_option(problem)), ("efsignsgd", inter_allgather(problem, "device"))]

    def found(search: Callable[..., Groups], start: Groups) -> Groups:
        return search(problem, evaluator, start, named, stopped=lambda: False, offer=lambda groups, ns: None)

    local = found(improved, plain_groups(problem))
    best = found(shaken, local)
    assert evaluator.time(best) <= evaluator.time(local)
    assert best == found(shaken, local)
    assert local == found(improved, local)


def test_a_problem_that_is_not_sound_is_refused() -> None:
    with pytest.raises(InputError, match=r"compression problem: \$\.gradients: found none, expected at least one"):
        plan_compression(replace(model(FAST), gradients=()))
