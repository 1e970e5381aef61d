"""Schedules: derived ones equal those written by hand, mean the same, and can be replayed."""

# ruff: noqa: F403, F405, F841 (programs are written as programs are)
from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.planner.passes.fusion.schedule_builder import ScheduleBuilder
from tests.planner.passes.fusion.transform_samples import NAMES, assert_same, bindings, drawn, example, refused, values
from treadle.fusion import *
from treadle.planner.documents.scalars import Record
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.canonical import canonical_hash
from treadle.planner.passes.fusion.decisions import TransformCall
from treadle.planner.passes.fusion.parsing import parse
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.refusal import InvalidTransform
from treadle.planner.passes.fusion.stages import stages
from treadle.planner.passes.fusion.text import show
from treadle.planner.passes.fusion.transform_calls import apply, replay
from treadle.planner.passes.fusion.transforms.validate import validate

N = dims("N")
B, S, H = dims("B", "S", "H")
MOMENTS = ("avg", "m_", "v_", "m1", "v1")


def attention() -> ScheduleBuilder:
    s = ScheduleBuilder(example("attention"))
    rs, ag = s.split("sum_", "ARSplitRSAG", dim=FLAT)
    ops, g = s.reorder(ag, ["d", "out"])
    far = s.fuse([rs, *ops, g["out"]], "AllReduceFuse")
    s.overlap(["layer", far])
    return s


def optimizer(name: str, *region: str) -> ScheduleBuilder:
    s = ScheduleBuilder(example(name))
    c = s.fuse(region, "ComputationFuse")
    rs, ag = s.split(s.find("AllReduce"), "ARSplitRSAG")
    (cs,), g = s.reorder(ag, [c])
    for t in ("m", "v", "p"):
        s.as_slice(t)
        s.dead(g[t])
    s.fuse([rs, cs, g["ph"]], "AllReduceFuse")
    return s


def adam() -> ScheduleBuilder:
    return optimizer("adam", *MOMENTS, "p_", "ph_")


def lamb() -> ScheduleBuilder:
    return optimizer("lamb", *MOMENTS, "u", "norm_p", "norm_u", "p_", "ph_")


def pipeline() -> ScheduleBuilder:
    s = ScheduleBuilder(example("pipeline"))
    fs = s.fuse(["c", "o"], "SendFuse")
    rs, ag = s.split("sum_", "ARSplitRSAG")
    ss, ga = s.reorder(ag, [fs])
    s.overlap([rs, ss[0], ga["o"]])
    return s


def attention_by_hand() -> Program:
    w = Tensor("w", f16, [H, H], Sliced(0))
    b = Tensor("b", f16, [H], Replicated)
    x = Tensor("x", f16, [B, S, H], Sliced(2))
    r = Tensor("r", f16, [B, S, H], Replicated)
    layer = MatMul(x, w)
    part = ReduceScatter("+", layer)
    kept = Dropout(part + b, p=0.1, key="attention.dropout")
    tail = kept + Slice(r)
    whole = AllGather(tail)
    kernel = fuse("AllReduceFuse", part, kept, tail, whole)
    chain = overlap(layer, kernel)
    return Execute("attention", [w, x, b, r], [whole])


def optimizer_by_hand(layered: bool) -> Program:
    g = Tensor("g", f16, [N], Local)
    p = Tensor("p", f32, [N], Sliced(FLAT))
    ph = Tensor("ph", f16, [N], Replicated)
    m = Tensor("m", f32, [N], Sliced(FLAT))
    v = Tensor("v", f32, [N], Sliced(FLAT))
    lr, b1, b2, t, eps = Scalars("lr b1 b2 t eps", f32)
    decay = Scalars("decay", f32)
    part = ReduceScatter("+", g)
    mean = Cast(f32, part) / group_size(WORLD)
    first = Update(m, m * b1 + (1 - b1) * mean)
    second = Update(v, v * b2 + (1 - b2) * mean * mean)
    first_hat = first / (1 - Pow(b1, t))
    second_hat = second / (1 - Pow(b2, t))
    names = [mean, first, second, first_hat, second_hat]
    if layered:
        step = first_hat / (Sqrt(second_hat) + eps) + decay * p
        of_p, of_step = Norm(p, per="tensor"), Norm(step, per="tensor")
        master = Update(p, p - lr * (of_p / of_step) * step)
        names += [step, of_p, of_step]
    else:
        master = Update(p, p - lr * first_hat / (Sqrt(second_hat) + eps))
    copy = Update(ph, Cast(f16, master))
    whole = AllGather(copy)
    inner = fuse("ComputationFuse", *names, master, copy)
    kernel = fuse("AllReduceFuse", part, inner, whole)
    inputs = [g, p, ph, m, v, lr, b1, b2, t, eps, *([decay] if layered else [])]
    return Execute("adam", inputs, [whole])


def pipeline_by_hand() -> Program:
    y = Tensor("y", f16, [B, S, H], Local, GROUP)
    b = Tensor("b", f16, [H], Replicated, GROUP)
    r = Tensor("r", f16, [B, S, H], Replicated, GROUP)
    part = ReduceScatter("+", y)
    value = Dropout(part + b, p=0.1, key="mlp.dropout") + Slice(r)
    sent = Send(value, GroupRank(GROUP + 1, RANK))
    whole = AllGather(sent)
    send = fuse("SendFuse", value, sent)
    chain = overlap(part, send, whole)
    return Execute("pipeline", [y, b, r], [whole])


BY_HAND = {
    "attention": (attention, attention_by_hand),
    "adam": (adam, lambda: optimizer_by_hand(layered=False)),
    "lamb": (lamb, lambda: optimizer_by_hand(layered=True)),
    "pipeline": (pipeline, pipeline_by_hand),
}


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_derived_schedules_equal_those_written_by_hand(name: str) -> None:
    derived, written = (make() for make in BY_HAND[name])
    program = derived.program if isinstance(derived, ScheduleBuilder) else derived
    assert canonical_hash(program) == canonical_hash(written)


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_a_schedule_is_its_calls(name: str) -> None:
    schedule = BY_HAND[name][0]()
    assert replay(example(name), schedule.calls) == schedule.program
    assert parse(show(schedule.program), name) == schedule.program


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_the_schedules_of_section_3_mean_the_same(name: str, ranks: int) -> None:
    program, of = example(name), bindings(name, ranks)
    assert_same(program, BY_HAND[name][0]().program, of, values(program, of))


def test_schedules_written_by_hand_are_validated() -> None:
    for _, written in BY_HAND.values():
        validate(written())
    program = adam().program
    (far,) = (kernel for kernel in program.kernels if kernel.policy == "AllReduceFuse")
    short = replace(far, members=far.members[:-1])
    wrong = replace(program, kernels=tuple(short if kernel is far else kernel for kernel in program.kernels))
    refused("sinks", "AllGather", lambda: validate(wrong))
    itself = replace(program, kernels=(replace(far, members=(*far.members, far.name)),))
    refused("unknown", "fused_s", lambda: validate(itself))


def test_state_and_outputs_after_the_calls() -> None:
    program = adam().program
    assert [stage.kind for stage in stages(program)] == ["fused allreduce"]
    layouts = {value.name: value.type.layout for value in program.inputs}
    assert [layouts[name] for name in ("p", "m", "v", "ph")] == [Sliced(), Sliced(), Sliced(), Replicated()]


def test_replay_validates_every_call_again() -> None:
    calls = adam().calls
    asleep = [call for call in calls if call.transform != "as_slice"]
    refused("materialises", "m", lambda: replay(example("adam"), asleep))
    with pytest.raises(InputError, match="found transformation 'melt'"):
        replay(example("adam"), [TransformCall(transform="melt")])
    with pytest.raises(InputError, match="dead: found arguments that do not fit"):
        replay(example("adam"), [TransformCall(transform="dead", arguments={"gather": "ag"})])


def test_a_refused_call_changes_nothing() -> None:
    schedule = ScheduleBuilder(example("adam"))
    with pytest.raises(InvalidTransform):
        schedule.dead("sum_")
    assert (schedule.program, schedule.calls) == (schedule.start, ())
    with pytest.raises(InputError, match="found 0 operations Send, expected one"):
        schedule.find("Send")


def test_merge_and_slice_intro_are_recorded() -> None:
    schedule = ScheduleBuilder(example("attention"))
    ar = schedule.merge(*schedule.split("sum_", "ARSplitReduceBcast", root=1))
    ag = schedule.slice_intro(ar, dim=1)
    schedule.reorder(ag, ["d"])
    assert [call.transform for call in schedule.calls] == ["split", "merge", "slice_intro", "reorder"]
    assert isinstance(schedule.calls[0], Record)
    assert replay(example("attention"), schedule.calls) == schedule.program


def candidates(program: Program, chance: random.Random) -> list[TransformCall]:
    """A few calls of every kind on stages drawn at random, in the order in which to try them: overlaps mostly last."""
    names = [stage.name for stage in stages(program)]
    kinds = {stage.name: stage.kind for stage in stages(program)}
    gathers = [name for name in names if kinds[name] in ("allgather", "broadcast", "alltoall")]
    calls: list[tuple[str, dict[str, object]]] = []
    for name in names:
        if kinds[name] == "allreduce":
            where = {"dim": chance.choice([FLAT, FLAT, 0, 1])} if chance.random() < 0.7 else {"root": 1}
            policy = "ARSplitRSAG" if "dim" in where else "ARSplitReduceBcast"
            calls.append(("split", {"ar": name, "policy": policy, **where}))
            calls.append(("slice_intro", {"x": name, "dim": chance.choice([FLAT, 0])}))
    for gather in gathers:
        after = names[names.index(gather) + 1 :]
        calls.append(("reorder", {"gather": gather, "region": after[: chance.randint(1, max(len(after), 1))]}))
        calls.append(("reorder", {"gather": gather, "region": chance.sample(after, min(len(after), 1))}))
        calls.append(("dead", {"ag": gather}))
    calls += [("as_slice", {"t": target}) for target in program.updates]
    for size in (2, 3):
        for members in chance.sample(list(combinations(names, size)), min(4, len(names) // size)):
            policy = chance.choice(["ComputationFuse", "ComputationFuse", "AllReduceFuse", "ReduceScatterFuse"])
            calls.append(("fuse", {"members": list(members), "policy": policy}))
    if len(names) > 2:
        at = chance.randrange(len(names) - 2)
        calls.append(("fuse", {"members": names[at : at + 3], "policy": "AllReduceFuse"}))
        calls.append(("overlap", {"members": names[at : at + 2]}))
    drawn = chance.sample(calls, len(calls))
    drawn.sort(key=lambda call: call[0] == "overlap" and chance.random() < 0.9)
    return [TransformCall(transform=transform, arguments=arguments) for transform, arguments in drawn]


@settings(max_examples=45, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(st.sampled_from([*NAMES, *["drawn"] * 6]), st.sampled_from([2, 3, 4, 5, 8]), st.integers(0, 2**32))
def test_any_sequence_of_legal_transformations_means_the_same(name: str, ranks: int, seed: int) -> None:
    chance = random.Random(seed)
    program = drawn(chance) if name == "drawn" else example(name)
    schedule, calls = program, []
    for _ in range(8):
        for call in candidates(schedule, chance):
            try:
                schedule = apply(schedule, call).program
            except InvalidTransform:
                pass
            else:
                calls.append(call)
                break
    of = bindings(name, ranks)
    assert_same(program, schedule, of, values(program, of, seed % 7))
    assert replay(program, calls) == schedule
    assert parse(show(schedule), name) == schedule
    validate(schedule)
