"""Products by a library: never slower than the program as written, reported, checked, and absent from older plans."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import pytest

from benchmarks.fusion.schedules import program
from tests.planner.machine.machines import profile, shipped
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.machine.rates import Machine, machine_of
from treadle.planner.passes.fusion import language as cc
from treadle.planner.passes.fusion.check import check
from treadle.planner.passes.fusion.consistency import check_prices
from treadle.planner.passes.fusion.decisions import AS_WRITTEN, COMPUTATION_FUSED, FusionDecisions
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.planning import plan_fusion
from treadle.planner.passes.fusion.price import price
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.ranking import FusionProblem, Ranking, Space, rank, rank_schedules, search, useful

EXAMPLES = sorted(path for path in (Path(__file__).parents[4] / "examples" / "fusion").glob("[a-z]*.py"))
MACHINES = {"mesh4": 1, "dgx1": 1, "dgx2": 2, "ndv5": 1}
SLOW = ("mesh4", "dgx2")
"""Machines for muon, whose thousands of schedules take 10 s on each: one node, and two."""
CASES = [
    pytest.param(path, name, id=f"{path.stem}-{name}", marks=pytest.mark.slow if path.stem == "muon" else ())
    for path in EXAMPLES
    for name in (SLOW if path.stem == "muon" else MACHINES)
]
SIZES = (64, 1024, 4096)


def gathered(dim: int, dtype: str = cc.f16) -> Program:
    """A layer whose weights are kept in slices: gathered, then multiplied."""
    t, h, f = cc.dims("T", "H", "F")
    x, w = cc.Tensor("x", dtype, [t, h], cc.Local), cc.Tensor("w", dtype, [h, f], cc.Sliced(dim))
    whole = cc.AllGather(w)
    out = cc.MatMul(x, whole)
    return cc.Execute("gathered", [x, w], [out])


SQUARE = Bindings({"T": 4096, "H": 4096, "F": 4096}, 4)


@cache
def space(path: Path) -> Space:
    program = parse(path.read_text(encoding="utf-8"), path.name)
    return search(program, useful(program))


def bindings_of(program: Program, machine: Machine, size: int) -> Bindings:
    names = {name for value in program.inputs for extent in value.type.shape for name in extent.names}
    groups = 2 if any(node.op == "Send" for node in program.nodes) else 1
    return Bindings({name.split(".")[0]: size for name in sorted(names)}, machine.ranks // groups, groups)


@pytest.mark.parametrize(("path", "name"), CASES)
def test_no_plan_is_slower_than_its_program_as_written_on_a_library(path: Path, name: str) -> None:
    found, machine = space(path), shipped(name, MACHINES[name])
    for size in SIZES:
        bindings = bindings_of(found.program, machine, size)
        plan = Ranking(found, bindings, machine, rank(found, bindings, machine))
        for peer in found.peers:
            for other in (machine, machine.with_library):
                assert plan.chosen.price.total_us <= price(peer.program, bindings, other).total_us + 1e-3


def test_a_gathered_weight_is_multiplied_by_a_library() -> None:
    """It came out at 0.52 times the speed of the program as written, when products were our own kernels alone."""
    for dim in (0, 1):
        plan = plan_fusion(FusionProblem(gathered(dim), SQUARE, profile("mesh4")))
        decisions = plan.decisions
        assert decisions.library
        assert [stage.own_ns is not None for stage in decisions.stages] == [False, True]
        assert decisions.own_ns - decisions.time_ns == (decisions.stages[1].own_ns or 0) - decisions.stages[1].time_ns
        assert decisions.own_ns > 1.5 * decisions.time_ns
        assert {rival.time_ns for rival in decisions.rivals[-2:]} == {decisions.time_ns}
        assert plan.certificate.lower_bound <= decisions.time_ns
        assert check(decisions) == []
        assert list(check_prices(decisions, profile("mesh4"))) == []


def test_overlaps_are_weighed_against_a_library() -> None:
    """On V100 generated products in f16 use no tensor cores: no overlap makes up for that. In f32 it does."""
    t, h = cc.dims("T", "H")
    for dtype, name in ((cc.f16, "MM; AR"), (cc.f32, "ol(MM, AR)")):
        x, w = cc.Tensor("x", dtype, [t, h], cc.Sliced(1)), cc.Tensor("w", dtype, [h, h], cc.Sliced(0))
        total = cc.AllReduce("+", cc.MatMul(x, w, name="y"), name="total")
        program = cc.Execute("summed", [x, w], [total])
        plan = rank_schedules(FusionProblem(program, Bindings({"T": 4096, "H": 4096}, 16), shipped("dgx2")))
        assert plan.chosen.name == name
        assert (plan.chosen.price.stages[0].own_us is None) == (dtype == cc.f32)
        own = rank_schedules(FusionProblem(program, plan.bindings, plan.machine.without_library))
        assert own.chosen.name == "ol(MM, AR)"
        assert own.chosen.time_ns >= plan.chosen.time_ns


def made() -> FusionDecisions:
    return plan_fusion(FusionProblem(gathered(0), SQUARE, profile("mesh4"))).decisions


def test_what_a_plan_tells_of_a_library_is_checked() -> None:
    decisions = made()
    gather, product = decisions.stages
    replace = msgspec.structs.replace

    def findings(**changes: object) -> str:
        return " ".join(check(replace(decisions, **changes)))

    elsewhere = replace(gather, own_ns=gather.time_ns + 1)
    assert "whole is a call of a library, expected one for a product" in findings(stages=(elsewhere, product))
    assert "in a plan that may have them" in findings(library=False)
    slower = replace(product, own_ns=product.time_ns)
    assert "our own kernel takes" in findings(stages=(gather, slower))
    peer = decisions.rivals[-2]
    faster = replace(peer, time_ns=decisions.time_ns - 1)
    assert "less than the plan's" in findings(rivals=(*decisions.rivals[:-2], faster, decisions.rivals[-1]))
    other = replace(product, own_ns=(product.own_ns or 0) + 5000)
    reported = list(check_prices(replace(decisions, stages=(gather, other)), profile("mesh4")))
    assert len(reported) == 1
    assert "in our own kernel, on the hardware" in reported[0]
    ours = replace(product, own_ns=None)
    assert "fastest as a library call" in " ".join(
        check_prices(replace(decisions, stages=(gather, ours)), profile("mesh4"))
    )


def test_plans_of_before_load_and_are_checked_as_they_were_made() -> None:
    """Such plans have our own kernels only, and next to them the program as written with a library's products only."""
    machine = machine_of(profile("mesh4"))
    plan = plan_fusion(FusionProblem(gathered(0), SQUARE, machine.without_library))
    text = store.dumps(plan)
    assert '"library"' not in text
    assert '"own_ns"' not in text
    decisions = store.loads(text, "old.plan.json", Plan).decisions
    assert decisions.own_ns == decisions.time_ns
    assert decisions.rivals[-2].name.startswith(AS_WRITTEN)
    assert decisions.rivals[-1].name.startswith(COMPUTATION_FUSED)
    assert decisions.rivals[-2].time_ns < decisions.time_ns
    assert check(decisions) == []
    assert list(check_prices(decisions, profile("mesh4"))) == []


def test_a_convolution_may_be_a_library_s_too() -> None:
    n, c = cc.dims("N", "C")
    x = cc.Tensor("x", cc.f32, [n, c, 16, 16], cc.Sliced(0))
    w = cc.Tensor("w", cc.f32, [c, c, 3, 3], cc.Replicated)
    program = cc.Execute("convolved", [x, w], [cc.Conv2d(x, w, padding=1, name="y")])
    plan = rank_schedules(FusionProblem(program, Bindings({"N": 64, "C": 256}, 8), shipped("ndv4")))
    (stage,) = plan.chosen.price.stages
    assert stage.own_us is not None
    assert stage.own_us > 2 * stage.total_us


def test_what_one_has_without_the_search_multiplies_with_a_library() -> None:
    machine, bindings = shipped("ndv4"), Bindings({"B": 8, "S": 1024, "H": 3072}, 8)
    plan = plan_fusion(FusionProblem(program("attention"), bindings, machine))
    (written, _) = plan.decisions.rivals[-2:]
    assert written.time_ns == pytest.approx(
        price(program("attention"), bindings, machine.with_library).total_us * 1e3, abs=9
    )
