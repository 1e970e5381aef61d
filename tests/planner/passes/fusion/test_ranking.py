"""Plans: prunings that lose nothing, prices that add up, winners by size, reasons for all that was done or not."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace as with_fields

from benchmarks.fusion.schedules import overlap_choices
from tests.planner.passes.fusion.by_hand import adam, attention, by_hand, pipeline, sgd
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.store import load
from treadle.planner.errors import InputError
from treadle.planner.machine.collectives import Tuning
from treadle.planner.machine.rates import Machine, machine_of
from treadle.planner.passes.fusion import language as cc
from treadle.planner.passes.fusion.candidates import AllowedTransforms
from treadle.planner.passes.fusion.canonical import canonical_hash
from treadle.planner.passes.fusion.check import check
from treadle.planner.passes.fusion.counts import counts
from treadle.planner.passes.fusion.enumerate import enumerate_schedules
from treadle.planner.passes.fusion.explanations import decisions
from treadle.planner.passes.fusion.overlaps import chains
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.planning import plan_of
from treadle.planner.passes.fusion.price import price
from treadle.planner.passes.fusion.program import Bindings, Overlap, Program
from treadle.planner.passes.fusion.prune import PRUNED, Prunings, idle, pointwise_first, undominated
from treadle.planner.passes.fusion.ranking import (
    FusionOptions,
    FusionProblem,
    Ranking,
    Space,
    rank,
    rank_schedules,
    search,
    useful,
)
from treadle.planner.passes.fusion.refusal import InvalidTransform
from treadle.planner.passes.fusion.stages import stages
from treadle.planner.passes.fusion.sweep import sweep
from treadle.planner.passes.fusion.transform_calls import replay
from treadle.planner.search.clock import Clock

ROOT = Path(__file__).resolve().parents[4]
PROGRAMS: dict[str, tuple[Program, AllowedTransforms]] = {
    "sgd": (sgd("ar"), AllowedTransforms(one_sided_fuse=True)),
    "attention": (attention("ar"), AllowedTransforms(computation_fuse=True)),
    "adam": (adam("ar"), AllowedTransforms(as_slice=True)),
    "pipeline": (pipeline("ar c p"), AllowedTransforms(slice_intro=True, send_fuse=True)),
}


UNPRUNED = Prunings(pointwise_first=False, idle_splits=False, lone_slices=True, dominated=False)
STAY = AllowedTransforms(split=False, reorder=False, all_reduce_fuse=False)
QUICK = Tuning(algorithms=("ring",), channels=(8, 16), chunks=(131072,))
OPTIONS = FusionOptions(tuning=QUICK)


@pytest.fixture(scope="module")
def machine() -> Machine:
    return machine_of(with_fields(load(ROOT / "profiles" / "dgx2.yaml", Hardware), nodes=2))


def sizes(fixture: str, factor: int) -> Bindings:
    extents = {"N": factor * 1024} if fixture in ("sgd", "adam") else {"B": 1, "S": 1 + factor // 4, "H": 1024}
    return Bindings(extents, ranks=8, groups=2 if fixture == "pipeline" else 1)


@cache
def space(fixture: str, prunings: Prunings, apart: bool = False) -> Space:
    """`apart`: computations may be fused by the search (those of Adam are too many for a test)."""
    program, allowed = PROGRAMS[fixture]
    allowed = replace(allowed, computation_fuse=allowed.computation_fuse or (apart and fixture != "adam"))
    return search(program, allowed, FusionOptions(prunings=prunings, tuning=QUICK))


@pytest.mark.parametrize("switch", ["pointwise_first", "idle_splits", "lone_slices", "dominated"])
@pytest.mark.parametrize("fixture", PROGRAMS)
def test_no_pruning_loses_the_best_schedule(fixture: str, switch: str, machine: Machine) -> None:
    whole = replace(UNPRUNED, lone_slices=False)
    apart = switch == "pointwise_first"
    prunings = (whole, replace(whole, **{switch: True}))
    both = [space(fixture, each, apart) for each in prunings]
    for factor in (1, 4096):
        best, pruned = (rank(each, sizes(fixture, factor), machine) for each in both)
        assert best[0].time_ns == pruned[0].time_ns
        assert len(pruned) <= len(best)


@pytest.mark.parametrize("fixture", PROGRAMS)
def test_prunings_together_lose_nothing_and_leave_less(fixture: str, machine: Machine) -> None:
    for factor in (64, 16384):
        pruned, whole = (rank(space(fixture, each), sizes(fixture, factor), machine) for each in (PRUNED, UNPRUNED))
        assert pruned[0].time_ns == whole[0].time_ns
        assert len(pruned) < len(whole)


def test_idle_splits_are_those_without_anything_between() -> None:
    names = {name for name, program in by_hand("sgd extended").items() if idle(program)}
    assert names == {"rs ag c"}
    assert {name for name, program in by_hand("attention apart").items() if idle(program)} == {"rs ag c", "rs ag c+"}


def test_domination_compares_schedules_of_one_structure_alone() -> None:
    programs = by_hand("attention apart")
    counted = [counts(program) for program in programs.values()]
    left = undominated(list(programs.values()), counted, Bindings({"B": 1, "S": 2, "H": 4}, ranks=2))
    names = {list(programs)[at] for at in left}
    assert names == {"ar+", "rs c ag+", "fused", "fused+"}


@pytest.mark.parametrize("fixture", ["attention", "pipeline"])
def test_the_overlaps_chosen_are_the_best_of_all(fixture: str, machine: Machine) -> None:
    bindings = sizes(fixture, 4096)
    for ranked in rank(space(fixture, PRUNED), bindings, machine):
        every = overlap_choices(ranked.found.program)
        least = min(price(made, bindings, machine, QUICK).total_us for _, made in every)
        assert ranked.price.total_us == pytest.approx(least, abs=2e-3)
        assert price(ranked.program, bindings, machine, QUICK).total_us == ranked.price.total_us


def test_overlaps_that_no_kernels_run_are_refused_and_priced_as_they_run(machine: Machine) -> None:
    """A product takes its left operand row by row and needs all of its right one, so that gather ends first."""
    h = cc.dims("H")
    x, w = cc.Tensor("x", cc.f16, [h, h], cc.Local), cc.Tensor("w", cc.f16, [h, h], cc.Sliced(0))
    whole = cc.AllGather(w)
    y = cc.MatMul(x, whole)
    program, bindings = cc.Execute("gathered", [x, w], [y]), Bindings({"H": 4096}, 8)
    plan = rank_schedules(FusionProblem(program, bindings, machine), options=OPTIONS)
    assert plan.chosen.name == "AG; MM"
    (reason,) = (each for each in decisions(plan).refused if each.transform == "overlap")
    assert (reason.code, reason.witness) == ("in-turn", "whole -> y")
    (alone,) = chains(program).programs.values()
    assert price(alone, bindings, machine, QUICK).total_us == plan.chosen.price.total_us
    computed = rank_schedules(
        FusionProblem(sgd("rs c ag"), sizes("sgd", 4096), machine), options=replace(OPTIONS, allowed=STAY)
    )
    assert {reason.code for reason in decisions(computed).refused} == {"computation"}


def test_schedules_are_ranked_and_can_be_replayed(machine: Machine) -> None:
    plan = rank_schedules(
        FusionProblem(adam("ar"), sizes("adam", 64), machine),
        options=replace(OPTIONS, allowed=AllowedTransforms(as_slice=True)),
    )
    times = [ranked.time_ns for ranked in plan.ranked]
    assert times == sorted(times)
    for ranked in plan.ranked:
        assert canonical_hash(replay(adam("ar"), ranked.calls)) == canonical_hash(ranked.program)
    again = rank_schedules(
        FusionProblem(adam("ar"), sizes("adam", 64), machine),
        options=replace(OPTIONS, allowed=AllowedTransforms(as_slice=True)),
    )
    assert [ranked.name for ranked in again.ranked] == [ranked.name for ranked in plan.ranked]


def test_small_and_large_sizes_have_different_winners(machine: Machine) -> None:
    """As in CoCoNet, section 6.1, on 256 ranks: AllReduce and Adam for few elements, one kernel for many."""
    bindings, allowed = replace(sizes("adam", 1), ranks=256), AllowedTransforms(as_slice=True)
    machine = replace(machine, nodes=16)
    swept = sweep(
        adam("ar"),
        bindings,
        "N",
        [1 << power for power in (10, 20, 28)],
        machine,
        options=FusionOptions(allowed=allowed),
    )
    assert (swept.plans[0].chosen.name, swept.plans[-1].chosen.name) == ("AR; C", "fuse(RS-C-AG)")
    assert [crossover.above for crossover in swept.crossovers][-1:] == ["fuse(RS-C-AG)"]
    for crossover in swept.crossovers:
        sides = [replace(bindings, extents={"N": extent}) for extent in (crossover.at - 1, crossover.at)]
        below, above = (
            rank_schedules(FusionProblem(adam("ar"), each, machine), options=FusionOptions(allowed=allowed)).chosen.name
            for each in sides
        )
        assert below == crossover.below
        assert above != crossover.below


def test_sweeps_refuse_what_has_no_order(machine: Machine) -> None:
    bindings = Bindings({"N": 1024}, ranks=8)
    with pytest.raises(InputError, match="dimension 'M'"):
        sweep(sgd("ar"), bindings, "M", [1, 2], machine)
    with pytest.raises(InputError, match="ascending"):
        sweep(sgd("ar"), bindings, "N", [2, 2], machine)
    with pytest.raises(InputError, match="several tensors"):
        sweep(sgd("ar"), replace(bindings, parts={"N": (24, 1000)}), "N", [1, 2], machine)
    with pytest.raises(InputError, match="ranks"):
        rank_schedules(FusionProblem(sgd("ar"), Bindings({"N": 1024}, ranks=64), machine))
    with pytest.raises(InputError, match="'N' without a value"):
        rank_schedules(FusionProblem(sgd("ar"), Bindings({}, ranks=8), machine))


@pytest.mark.parametrize("fixture", PROGRAMS)
def test_the_document_of_a_plan_passes_its_check(fixture: str, machine: Machine) -> None:
    program, allowed = PROGRAMS[fixture]
    plan = rank_schedules(FusionProblem(program, sizes(fixture, 64), machine), options=FusionOptions(allowed=allowed))
    document = decisions(plan)
    assert check(document) == []
    assert canonical_hash(parse(document.schedule, "schedule")) == canonical_hash(plan.chosen.program)
    assert document.time_ns == plan.chosen.time_ns == document.stages[-1].end_ns
    assert len(document.taken) == len(document.transforms)
    assert len(document.rivals) == document.considered - 1
    for reason in document.refused:
        assert reason.code
        assert reason.witness
    assert len({(x.transform, x.code, x.witness, x.on) for x in document.refused}) == len(document.refused)


def test_reasons_say_what_changes_and_what_stands_in_the_way(machine: Machine) -> None:
    plan = rank_schedules(
        FusionProblem(adam("ar"), sizes("adam", 1 << 16), machine),
        options=FusionOptions(overlap=False, allowed=AllowedTransforms(as_slice=True)),
    )
    assert plan.chosen.name == "fuse(RS-C-AG)"
    document = decisions(plan)
    by_what = {(reason.transform, reason.on[0]): reason.why for reason in document.taken}
    assert "traffic 9N to 9N+2N/n" in by_what["split ARSplitRSAG", "a"]
    assert "state 3N to 2N+N/n" in by_what["as_slice", "m"]
    assert "volume 4N-4N/n to 3N-3N/n" in by_what["dead", "ag_m"]
    assert "launches 3 to 1" in by_what["fuse AllReduceFuse", "rs"]
    refused = {(reason.transform, reason.code) for reason in document.refused}
    assert {("as_slice", "output"), ("as_slice", "read-whole"), ("fuse AllReduceFuse", "gathers")} <= refused


def examples() -> list[str]:
    """Without adam_f32, which `test_the_document_of_a_plan_passes_its_check` plans, and muon, which takes long."""
    return sorted({path.stem for path in (ROOT / "examples" / "fusion").glob("[a-z]*.py")} - {"adam_f32", "muon"})


@pytest.mark.parametrize("name", examples())
def test_shipped_programs_have_few_schedules_and_checked_plans(name: str, machine: Machine) -> None:
    program = parse((ROOT / "examples" / "fusion" / f"{name}.py").read_text(), name)
    allowed = useful(program)
    assert (0 in allowed.dims) == (name == "rmsnorm")
    assert allowed.slice_intro == (name == "pipeline")
    space = search(program, allowed, OPTIONS)
    assert space.enumeration.complete
    assert 1 <= len(space.kept) <= 60
    extents = {key: 4096 for value in program.inputs for extent in value.type.shape for key in extent.names}
    parts = {"N": (1500, 1024, 10, 1562)} if name == "lamb" else {}
    bindings = Bindings(extents, ranks=8, groups=2 if name == "pipeline" else 1, parts=parts)
    plan = Ranking(space, bindings, machine, rank(space, bindings, machine))
    assert check(decisions(plan)) == []


def test_products_that_all_ranks_make_alike_are_cut_by_rows(machine: Machine) -> None:
    """An iteration of Muon: each rank makes its rows of every product, and gathers them while the product runs."""
    m, n = cc.dims("M", "N")
    g, h = cc.Tensor("g", cc.bf16, [m, n], cc.Sliced(0)), cc.Tensor("h", cc.bf16, [n, m], cc.Sliced(0))
    w = cc.Tensor("w", cc.f32, [m, n], cc.Sliced(0))
    x, y = cc.AllGather(g), cc.AllGather(h)
    a = cc.MatMul(x, y)
    s = cc.MatMul(a, a)
    b = a * -4.775 + s * 2.0315
    u = cc.MatMul(b, x)
    x1 = x * 3.4445 + u
    w_ = cc.Update(w, w - cc.Cast(cc.f32, cc.Slice(x1, 0)))
    program, bindings = cc.Execute("muon", [g, h, w], [w_]), Bindings({"M": 4096, "N": 4096}, 8)
    own = rank_schedules(FusionProblem(program, bindings, machine.without_library), options=OPTIONS)
    assert own.chosen.name == "AG(g); AG(h); ol(MM1', AG(a_s)); ol(MM2', fuse(C1-AG(b_s))); MM3'; C2'; C3'"
    plan = rank_schedules(FusionProblem(program, bindings, machine), options=OPTIONS)
    assert plan.space.enumeration.complete
    assert plan.chosen.name == "AG(g); AG(h); MM1'; AG(a_s); MM2'; fuse(C1-AG(b_s)); MM3'; C2'; C3'"
    assert plan.chosen.time_ns < own.chosen.time_ns
    whole = rank(search(program, replace(useful(program), cut_products=False), OPTIONS), bindings, machine)[0]
    assert plan.chosen.time_ns < whole.time_ns / 2
    assert check(decisions(plan)) == []


def test_a_program_keeps_its_kernels_and_overlaps_and_may_merge_its_halves(machine: Machine) -> None:
    bindings = sizes("sgd", 64)
    fresh, halves, fused = (
        rank_schedules(FusionProblem(sgd(form), bindings, machine), options=OPTIONS)
        for form in ("ar", "rs ag c", "fused")
    )
    assert {ranked.name for ranked in halves.ranked} == {ranked.name for ranked in fresh.ranked}
    assert [ranked.name for ranked in fused.ranked] == ["fuse(RS-C-AG)"]
    rs_c_ag = sgd("rs c ag")
    rs, computed, gather = (stage.name for stage in stages(rs_c_ag))
    chained = replace(rs_c_ag, overlaps=(Overlap("ol", (rs, computed)),))
    assert [ranked.name for ranked in rank_schedules(FusionProblem(chained, bindings, machine)).ranked] == [
        "ol(RS, C'); AG"
    ]
    assert gather in rs_c_ag.outputs


def test_kernels_that_a_program_has_already_are_validated(machine: Machine) -> None:
    fused = sgd("fused")
    (kernel,) = fused.kernels
    headless = replace(fused, kernels=(replace(kernel, members=kernel.members[1:]),))
    with pytest.raises(InvalidTransform, match="found 0 operations ReduceScatter"):
        rank_schedules(FusionProblem(headless, sizes("sgd", 64), machine))


def test_a_program_of_which_nothing_can_be_made_is_its_own_best_schedule(machine: Machine) -> None:
    bare = sgd("rs ag c")
    none = AllowedTransforms(split=False, reorder=False, all_reduce_fuse=False)
    plan = rank_schedules(FusionProblem(bare, sizes("sgd", 64), machine), options=replace(OPTIONS, allowed=none))
    assert [ranked.calls for ranked in plan.ranked] == [plan.chosen.calls]
    assert plan.chosen.found.program == bare


def test_an_unfused_start_reaches_what_the_fused_start_reaches() -> None:
    allowed = AllowedTransforms(computation_fuse=True)
    apart = enumerate_schedules(attention("ar"), allowed)
    start, _ = pointwise_first(attention("ar"))
    fused = enumerate_schedules(start, allowed)
    assert {of.hash for of in fused.schedules} < {of.hash for of in apart.schedules}


def test_outputs_are_no_views() -> None:
    text = 'N = dims("N")\np = Tensor("p", f32, [N], Replicated)\nold = Slice(p)\np_ = Update(p, p * 2)\n'
    program = parse(f'{text}program = Execute("view", [p], [old, p_])\n', "view")
    with pytest.raises(InputError, match="view: found the output old, a view of p, expected one that is computed"):
        search(program, AllowedTransforms())


@pytest.mark.parametrize("limit", [0, 5, 60])
def test_wherever_the_limit_fires_there_is_a_plan_and_it_says_so(machine, limit):
    """At each look at the clock it moves by a second; the program as it stands is looked at in any case."""
    clock = Clock(float(limit), 0.0, map(float, itertools.count()).__next__, limit_s=float(limit))
    found = rank_schedules(FusionProblem(adam("ar"), sizes("adam", 64), machine), options=OPTIONS, clock=clock)
    whole = rank_schedules(FusionProblem(adam("ar"), sizes("adam", 64), machine), options=OPTIONS)
    plan = plan_of(found, {})
    assert found.limit_fired
    assert 1 <= len(found.ranked) < len(whole.ranked)
    assert (plan.provenance.limit_fired, plan.provenance.options) == (True, {"time_limit_s": float(limit)})
    assert check(plan.decisions) == []


def test_a_limit_that_does_not_fire_changes_nothing(machine):
    found = [
        rank_schedules(FusionProblem(adam("ar"), sizes("adam", 64), machine), options=OPTIONS, clock=clock)
        for clock in (None, Clock(1.0, 0.0, lambda: 0.5))
    ]
    assert found[0].ranked == found[1].ranked
    assert not found[1].limit_fired


def test_a_sweep_has_a_plan_for_every_size_at_its_limit(machine):
    clock = Clock(0.0, 0.0, map(float, itertools.count()).__next__)
    swept = sweep(adam("ar"), sizes("adam", 64), "N", (1024, 4096, 2**20), machine, options=OPTIONS, clock=clock)
    assert [plan.limit_fired for plan in swept.plans] == [True] * 3
