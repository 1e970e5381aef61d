"""The checker accepts what the planner prices and decides, and refuses each kind of corruption."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import pytest
from msgspec.structs import replace

from tests.planner.passes.sparse.random_problems import random_problem
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.sparse_costs import SparseWork
from treadle.planner.passes.sparse.check import beaten, check, sound
from treadle.planner.passes.sparse.decided import decided
from treadle.planner.passes.sparse.decisions import GradientPlan, HashSlots, SchemeCost, SparseDecisions, Sums
from treadle.planner.passes.sparse.problem import VERSION, BlockCounts, SparseGradient, SparseProblem
from treadle.planner.passes.sparse.room import PASS
from treadle.planner.passes.sparse.schemes import BY_NAME, SCHEMES

Change = Callable[[SparseDecisions], SparseDecisions]


@pytest.mark.parametrize("seed", range(8))
def test_plans_of_any_problems_are_accepted_as_the_planner_prices_them(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        problem = random_problem(rng)
        assert not list(problem.problems())
        sums: Sums = rng.choice(("worker", "same"))
        assert check(decided(problem, sums)) == []


@cache
def good(sums: Sums = "worker") -> SparseDecisions:
    """Four machines, and gradients for which four different schemes are cheapest."""
    skewed = SparseGradient(
        name="skewed",
        form="coo",
        unit="row",
        units=100_000,
        width=4,
        occurrences=14_000,
        unions=(10_000, 17_000, 22_000, 25_000),
        even=(8_000, 12_000, 16_000, 19_000),
        hashed=(2_600, 4_350, 5_600, 6_400),
        densest=13_000,
        blocks=BlockCounts(size=8, push=2_000, pull=3_000),
    )
    even = replace(skewed, name="even", even=(2_550, 4_300, 5_550, 6_300), blocks=None)
    full = replace(
        even,
        name="full",
        form="dense",
        unions=(90_000, 100_000, 100_000, 100_000),
        even=(25_000,) * 4,
        hashed=(25_000, 25_400, 25_400, 25_400),
        densest=95_000,
        occurrences=90_000,
    )
    apart = replace(
        even,
        name="apart",
        unions=(1_000, 1_700, 2_300, 2_900),
        even=(700, 1_200, 1_700, 2_000),
        hashed=(270, 450, 590, 750),
    )
    problem = SparseProblem(
        version=VERSION,
        name="four gradients",
        machines=4,
        devices=1,
        gradients=(skewed, even, full, apart),
        inter=GradientLink(alpha_us=2.0, beta_us_per_MB=800.0),
        work=SparseWork(
            scan_per_value=0.1,
            coalesce_per_entry=0.4,
            coalesce_per_value=0.3,
            hash_per_index=2.0,
            extract_per_word=0.5,
            gather_per_entry=0.3,
            gather_per_value=0.2,
            add_per_entry=0.2,
            add_per_value=0.3,
            bitmap_per_unit=0.1,
            write_per_entry=0.1,
            write_per_value=0.1,
            call=500.0,
        ),
    )
    return decided(problem, sums)


def field(**changes: object) -> Change:
    return lambda plan: replace(plan, **changes)


def gradient(number: int, **changes: object) -> Change:
    """The plan with other decisions for one gradient."""
    return lambda plan: _with_gradient(plan, number, replace(plan.gradients[number], **changes))


def _with_gradient(plan: SparseDecisions, number: int, new: GradientPlan) -> SparseDecisions:
    return replace(plan, gradients=(*plan.gradients[:number], new, *plan.gradients[number + 1 :]))


def costs(number: int, change: Callable[[tuple[SchemeCost, ...]], tuple[SchemeCost, ...]]) -> Change:
    """The plan with other costs of one gradient."""
    return lambda plan: gradient(number, costs=change(plan.gradients[number].costs))(plan)


def cost(number: int, scheme: str, **more: int) -> Change:
    """The plan whose figures of one scheme are more than they are."""

    def changed(found: SchemeCost) -> SchemeCost:
        if found.scheme != scheme:
            return found
        return replace(found, **{name: getattr(found, name) + by for name, by in more.items()})

    return costs(number, lambda found: tuple(map(changed, found)))


def problem(**changes: object) -> Change:
    return lambda plan: replace(plan, problem=replace(plan.problem, **changes))


def counts(number: int, **changes: object) -> Change:
    """The plan of a problem with other counts of one gradient."""

    def changed(plan: SparseDecisions) -> SparseDecisions:
        given = [*plan.problem.gradients]
        given[number] = replace(given[number], **changes)
        return problem(gradients=tuple(given))(plan)

    return changed


def by(number: int, scheme: str) -> Change:
    """The plan that exchanges one gradient by another scheme, with the total of that."""

    def changed(plan: SparseDecisions) -> SparseDecisions:
        times = {each.scheme: each.time_ns for each in plan.gradients[number].costs}
        more = times[scheme] - times[plan.gradients[number].scheme]
        memory = plan.gradients[number].memory if BY_NAME[scheme].balance == "balanced" else None
        return replace(
            gradient(number, scheme=scheme, memory=memory)(plan),
            time_ns=plan.time_ns + more,
        )

    return changed


def rates(**changes: float) -> Change:
    return lambda plan: problem(work=replace(plan.problem.work, **changes))(plan)


def memory(**changes: int) -> Change:
    """The plan with another hash memory of the skewed gradient."""

    def changed(plan: SparseDecisions) -> SparseDecisions:
        slots = plan.gradients[0].memory
        assert slots is not None
        return gradient(0, memory=replace(slots, **changes))(plan)

    return changed


CORRUPTIONS: dict[str, tuple[Change, str]] = {
    "a gradient without a plan": (
        lambda plan: replace(plan, gradients=plan.gradients[:2]),
        "gradients: found plans of 2, expected one for each of the problem's 4 gradients",
    ),
    "gradients in another order": (
        lambda plan: replace(plan, gradients=plan.gradients[::-1]),
        "gradients[0].name: found 'apart', expected 'skewed', as in the problem",
    ),
    "a gradient twice": (
        lambda plan: _with_gradient(plan, 1, plan.gradients[0]),
        "gradients[1].name: found 'skewed', expected 'even'",
    ),
    "a gradient of another name": (gradient(2, name="bias"), "gradients[2].name: found 'bias', expected 'full'"),
    "an unknown scheme": (gradient(0, scheme="best"), "gradients[0].scheme: found 'best', expected one of dense, "),
    "a scheme that is not the cheapest": (by(0, "sparse-ps"), "gradients[0].scheme: found sparse-ps, expected zen, "),
    "dense where sparse is cheaper": (by(0, "dense"), "gradients[0].scheme: found dense, expected zen, "),
    "sparse where dense is cheaper": (by(2, "ranges"), "gradients[2].scheme: found ranges, expected dense, "),
    "a scheme without a price": (
        gradient(1, scheme="omnireduce", memory=None),
        "gradients[1].scheme: found omnireduce, expected a scheme with a price",
    ),
    "a scheme that is missing": (
        costs(2, lambda found: found[:-1]),
        "gradients[2].costs: found 17 schemes, expected 18 that can be priced: dense, agsparse, ",
    ),
    "a scheme left out in between": (
        costs(0, lambda found: (*found[:3], *found[4:])),
        "gradients[0].costs[3].scheme: found 'sparcml', expected 'balanced'",
    ),
    "a scheme priced twice": (costs(0, lambda found: (*found, found[-1])), "costs: found 20 schemes, expected 19"),
    "schemes in another order": (
        costs(0, lambda found: (found[1], found[0], *found[2:])),
        "gradients[0].costs[0].scheme: found 'agsparse', expected 'dense', in the order of schemes",
    ),
    "a price of blocks that the problem lacks": (
        costs(1, lambda found: (*found[:16], replace(found[16], scheme="omnireduce"), *found[16:])),
        "gradients[1].costs[16].scheme: found 'omnireduce', expected 'ranges'",
    ),
    "no prices": (
        costs(2, lambda found: ()),
        "gradients[2].costs: found none of dense, expected those of every scheme",
    ),
    "other bytes": (cost(0, "zen", bytes=4), "gradients[0].costs[18].bytes: found "),
    "bytes of the expanded bitmap": (cost(0, "zen", bytes=3 * 3 * 12_500), "gradients[0].costs[18].bytes: found "),
    "another time on links": (cost(1, "dense", link_ns=-1), "gradients[1].costs[0].link_ns: found "),
    "another time": (cost(2, "agsparse", time_ns=1), "gradients[2].costs[1].time_ns: found "),
    "another least time": (gradient(0, least_ns=17), "gradients[0].least_ns: found 17, expected "),
    "the other case": (
        gradient(0, favours="hierarchy"),
        "gradients[0].favours: found 'hierarchy', expected 'balanced'",
    ),
    "no hash memory": (gradient(0, memory=None), "gradients[0].memory: found none, expected 6500 slots and 650 serial"),
    "less hash memory": (memory(slots=5000), "gradients[0].memory.slots: found 5000, expected 6500"),
    "no place for collisions": (memory(serial=1), "gradients[0].memory.serial: found 1, expected 650"),
    "hash memory of a scheme that hashes nothing": (
        gradient(1, memory=HashSlots(slots=1, serial=1)),
        "gradients[1].memory: found hash memory, expected none, since ranges hashes nothing",
    ),
    "one seed": (field(seeds=(1,)), "seeds: found 1 seeds, expected at least 2"),
    "the same seed twice": (field(seeds=(5, 6, 5)), "seeds[2]: found 5 again, expected seeds that occur once"),
    "another time of all": (field(time_ns=17), "time_ns: found 17, expected "),
    "another time of dense gradients": (field(dense_ns=17), "dense_ns: found 17, expected "),
    "sums in other orders that are not allowed": (
        lambda plan: replace(good("same"), sums="worker"),
        "gradients[3].scheme: found sparcml, order of sums 'tree', expected one for sums='worker'",
    ),
    "a cheaper scheme that is allowed": (
        field(sums="same"),
        "gradients[3].scheme: found hierarchy-one-shot-centralized, expected sparcml, the cheapest with sums='same': ",
    ),
    "sums that differ between participants": (
        by(3, "ring-incremental-centralized"),
        "gradients[3].scheme: found ring-incremental-centralized, order of sums 'none', expected one for",
    ),
    "a faster link": (problem(inter=GradientLink(beta_us_per_MB=1.0)), "gradients[0].costs[0].link_ns: found "),
    "no link": (problem(inter=None), "problem.inter: found nothing, expected the link between 4 nodes"),
    "another cost of kernels": (rates(hash_per_index=9000.0), "gradients[0].costs[3].time_ns: found "),
    "more machines": (problem(machines=5), "problem.gradients[0].unions: found 4 counts, expected one for each of 1"),
    "another overlap": (counts(0, unions=(10_001, 17_000, 22_000, 25_000)), "gradients[0].costs[1].bytes: found "),
    "unions that shrink": (
        counts(0, unions=(10_000, 17_000, 15_000, 25_000)),
        "problem.gradients[0].unions[2]: found 15000",
    ),
    "a denser participant": (counts(0, densest=20_000), "gradients[0].memory.slots: found 6500, expected 10000"),
}


def test_the_plan_that_is_corrupted_is_good() -> None:
    plan = good()
    assert check(plan) == []
    assert [each.scheme for each in plan.gradients] == ["zen", "ranges", "dense", "hierarchy-one-shot-centralized"]
    assert [each.favours for each in plan.gradients] == ["balanced", "balanced", "balanced", "hierarchy"]
    assert check(good("same")) == []
    assert good("same").gradients[3].scheme == "sparcml"


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_plan_is_refused(name: str) -> None:
    change, message = CORRUPTIONS[name]
    findings = check(change(good()))
    assert any(line.startswith("$.decisions.") and message in line for line in findings), findings


def test_a_scheme_that_is_beaten_may_run() -> None:
    """Links of another day make other schemes the cheapest; the plan then is not the best one, but sound."""
    plan = by(0, "sparse-ps")(good())
    assert sound(plan) == []
    assert [line.split(":")[0] for line in beaten(plan)] == ["$.decisions.gradients[0].scheme"]
    assert PASS.check(plan) == []
    assert PASS.findings(plan) == beaten(plan)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("name", ["bytes", "link_ns", "time_ns"])
def test_every_figure_of_every_scheme_is_counted_again(name: str, scheme: object) -> None:
    place = SCHEMES.index(scheme)  # type: ignore[arg-type]
    findings = check(cost(0, SCHEMES[place].name, **{name: 1})(good()))
    assert [line.split(": ")[0] for line in findings] == [f"$.decisions.gradients[0].costs[{place}].{name}"]
