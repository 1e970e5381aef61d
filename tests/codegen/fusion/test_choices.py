"""Every launch runs on the algorithm, protocol and channels of the plan; what cannot is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.codegen.fusion.sessions import compare, integers, optimizer_scalars
from tests.planner.passes.fusion.by_hand import adam, sgd
from treadle.codegen.collective.lower import lower as lower_collective
from treadle.codegen.fusion.algorithms import TEMPLATES, _request
from treadle.codegen.fusion.choices import Carried, CollectiveChoice, choices_of, collectives_of, with_stand_ins
from treadle.codegen.fusion.lower import Lowered, lower, with_headers
from treadle.planner.errors import InputError
from treadle.planner.machine.collectives import Tuning
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.fusion.decisions import StageChoice
from treadle.planner.passes.fusion.layouts import RingTile, Sliced
from treadle.planner.passes.fusion.price import supported
from treadle.planner.passes.fusion.program import Bindings, Node, Program
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.stages import stages

FOUR = Bindings({"N": 37}, 4)


def stage_choices(program: Program, **choices: tuple[str, str, int]) -> list[StageChoice]:
    """Stages as a plan has them."""
    return [
        StageChoice(
            name=stage.name, kind=stage.kind, members=stage.named, time_ns=0, start_ns=0, end_ns=0,
            **dict(zip(("algorithm", "protocol", "channels"), choices[stage.name], strict=True) if stage.name in choices
                   else ()),
        )
        for stage in stages(program)
    ]  # fmt: skip


def made(program: Program, carried: tuple[Carried, ...] = (), **choices: tuple[str, str, int]) -> Lowered:
    given = choices_of(stages(program), stage_choices(program, **choices), 4, carried)
    return lower(program, FOUR, choices=given)


def planned(collective: str, algorithm: str, ranks: int = 4) -> Carried:
    root = 0 if collective in ("broadcast", "reduce") else None
    draft = TEMPLATES[algorithm](_request(collective, ranks, ranks, root), Effort())
    return Carried(f"{algorithm}.json", "sha256:" + algorithm, lower_collective(decisions_of(draft, 1, "LL")))


def collective_stages(program: Program) -> list[str]:
    return [stage.name for stage in stages(program) if collectives_of(stage)]


def test_every_stage_runs_on_its_own_choice() -> None:
    program = sgd("rs c ag")
    scatter, gather = collective_stages(program)
    lowered = made(program, **{scatter: ("all-pairs", "LL", 2), gather: ("ring", "Simple", 3)})
    assert lowered.ran == {scatter: "all-pairs, LL, 2 channels", gather: "ring, Simple, 3 channels"}
    assert not lowered.changed
    for ran in lowered.ran.values():
        assert f"//     by {ran}\n" in lowered.text
    blocks = {kernel.name: kernel.blocks for launch in lowered.launches for kernel in launch}
    assert blocks[gather] == 3, "a ring has a threadblock for each channel"
    assert blocks[scatter] > 3
    assert compare(lowered, optimizer_scalars(integers(program, FOUR)), orders=range(20), seed=1, step=0) == []


@pytest.mark.parametrize(
    ("choice", "ran", "why"),
    [
        (("tree", "LL", 2), "ring, LL, 2 channels", "in slices, expected tensors that every rank has whole"),
        (("hierarchical", "Simple", 1), "ring, Simple, 1 channel", ""),
    ],
)
def test_what_no_kernel_carries_falls_back_and_is_told(choice: tuple[str, str, int], ran: str, why: str) -> None:
    program = adam("fused")
    (name,) = collective_stages(program)
    lowered = made(program, **{name: choice})
    assert lowered.ran[name] == ran
    assert why in lowered.changed[name].why
    assert lowered.changed[name].ran == ran
    assert lowered.changed[name].wanted.split(",")[0] in ("double-tree", "two-level")


def test_stand_ins_are_in_order_and_none_twice() -> None:
    tree = CollectiveChoice("double-tree", "LL", 2)
    assert [(each.algorithm, each.protocol) for each in with_stand_ins(tree)] == [
        ("double-tree", "LL"), ("double-tree", "Simple"), ("ring", "LL"), ("ring", "Simple"),
    ]  # fmt: skip
    assert with_stand_ins(CollectiveChoice()) == (CollectiveChoice(),)


def test_the_digest_is_of_the_choices_and_the_carried_plan() -> None:
    program = sgd("ar")
    (name,) = collective_stages(program)
    plan = planned("allreduce", "all-pairs")
    digests = {
        made(program, **{name: ("ring", "Simple", 1)}).digest,
        made(program, **{name: ("all-pairs", "Simple", 1)}).digest,
        made(program, **{name: ("ring", "LL", 1)}).digest,
        made(program, **{name: ("ring", "Simple", 2)}).digest,
        made(program, carried=(plan,)).digest,
        made(program, carried=(replace(plan, digest="sha256:other"),)).digest,
    }
    assert len(digests) == 6
    assert made(program, carried=(plan,)).digest == made(program, carried=(plan,)).digest


def test_a_carried_plan_brings_its_protocol_and_has_no_stand_in() -> None:
    plain, fused = sgd("ar"), adam("fused")
    plan = planned("allreduce", "double-tree")
    lowered = made(plain, carried=(plan,))
    assert [ran.split(", ")[:2] for ran in lowered.ran.values()] == [[f"plan {plan.file}", "LL"]]
    assert f"// Collective plan {plan.file}: {plan.digest}." in lowered.text
    with pytest.raises(TypeRefusal, match="in slices"):
        made(fused, carried=(plan,))


def test_plans_that_no_stage_can_use_are_refused() -> None:
    program = sgd("ar")
    with pytest.raises(InputError, match="found a plan for broadcast, expected one for allreduce"):
        made(program, carried=(planned("broadcast", "binomial"),))
    with pytest.raises(InputError, match="found another plan for allreduce, expected one"):
        made(program, carried=(planned("allreduce", "ring"), planned("allreduce", "all-pairs")))


def test_texts_carry_the_headers_that_they_include() -> None:
    texts = with_headers({"x.cu": '#include "treadle_gemm.h"\n'})
    assert {"treadle_gemm.h", "treadle_fusion.h", "treadle_device.h", "x.cu"} <= set(texts)
    assert "treadle_collective.h" not in texts
    assert with_headers({"x.yaml": "a: 1"}) == {"x.yaml": "a: 1"}


def test_plans_promise_only_what_kernels_carry() -> None:
    plain, fused = sgd("ar"), adam("fused")
    assert supported(plain, stages(plain), Tuning()) == Tuning()
    assert "tree" not in supported(fused, stages(fused), Tuning()).algorithms
    tiles = Sliced(map=RingTile(2, 4))

    def moved(node: Node) -> Node:
        return replace(node, type=replace(node.type, layout=tiles)) if node.op == "ReduceScatter" else node

    tiled = replace(fused, nodes=tuple(map(moved, fused.nodes)))
    able = supported(tiled, stages(tiled), Tuning())
    assert (able.algorithms, able.channels) == (("ring",), (2,))
    assert supported(tiled, stages(tiled), Tuning(algorithms=("all-pairs",))).algorithms == ()
