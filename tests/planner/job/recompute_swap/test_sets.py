"""What a recompute set runs again: members at the end of their longest gap, and what making them reads."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from tests.planner.job.recompute_swap.steps import MIB, captured, chain
from treadle.planner.documents.trace import Trace
from treadle.planner.graph.liveness import sweep
from treadle.planner.graph.unrolling import plain_runs, unrolled
from treadle.planner.job.recompute_swap.sets import OpSequence, RunValue


def program(trace: Trace) -> OpSequence:
    return OpSequence(trace, plain_runs(trace))


def with_names(trace: Trace, *names: str) -> str:
    made = program(trace)
    members = [value for value in made.gaps if value.tensor in names]
    assert {value.tensor for value in members} == set(names)
    return " ".join(run.op for run in made.with_set(members))


FORWARD = "f1 f2 f3 f4 f5"


def test_a_member_comes_back_before_the_read_that_ends_its_gap() -> None:
    assert with_names(chain(5), "a2") == f"{FORWARD} b5 b4 f2 b3 b2 b1"


def test_members_that_follow_one_another_come_back_together_each_once() -> None:
    assert with_names(chain(5), "a1", "a2", "a3") == f"{FORWARD} b5 f1 f2 f3 b4 b3 b2 b1"


def test_a_kept_tensor_between_members_is_where_recomputation_starts() -> None:
    assert with_names(chain(5), "a1", "a3") == f"{FORWARD} b5 f3 b4 b3 f1 b2 b1"


def test_what_only_the_forward_pass_reads_is_made_again_on_the_way() -> None:
    trace = chain(5)
    reads_less = replace(
        trace,
        ops=tuple(replace(op, inputs=("g3", "w")) if op.id == "b3" else op for op in trace.ops),
    )  # nothing but f3 reads a2
    assert with_names(reads_less, "a3") == f"{FORWARD} b5 f2 f3 b4 b3 b2 b1"


def test_random_ops_and_what_the_caller_holds_do_not_run_again() -> None:
    trace = chain(5)
    random_one = replace(trace, ops=tuple(replace(op, random=op.id == "f2") for op in trace.ops))
    tensors = {value.tensor for value in program(random_one).gaps}
    assert tensors == {"a1", "a3"}  # a4 is read again at once, a5 is an output
    members = [value for value in program(random_one).gaps if value.tensor == "a3"]
    assert " ".join(run.op for run in program(random_one).with_set(members)) == f"{FORWARD} b5 f3 b4 b3 b2 b1"


def test_a_set_of_a_program_that_repeats_runs_acts_on_its_values() -> None:
    trace = chain(5)
    first = OpSequence(trace, program(trace).with_set([RunValue(1, "a2")]))
    assert [first.runs[at].op for at in first.repeated] == ["f2"]
    assert first.instance(RunValue(first.repeated[0], "a2")) == "a2#2"
    again = first.with_set([RunValue(0, "a1")])
    assert " ".join(run.op for run in again) == f"{FORWARD} b5 b4 f1 f2 b3 b2 b1"


def test_price_is_the_time_that_the_set_adds() -> None:
    made = program(chain(6))
    for value in made.gaps:
        assert OpSequence(made.trace, made.with_set([value])).time_ns - made.time_ns == made.price_ns(value)


def test_dropping_every_second_tensor_of_a_chain_saves_bytes() -> None:
    trace = chain(12)
    made = program(trace)
    members = [value for value in made.gaps if value.at % 2]
    assert len(members) == 5
    assert sweep(trace).peak - sweep(unrolled(trace, made.with_set(members))).peak == 4 * MIB


@pytest.mark.parametrize("name", ["convnet", "gpt2_dropout", "unet"])
def test_any_set_of_a_model_is_a_program_that_runs(name: str) -> None:
    trace = captured(name)
    made = program(trace)
    rng = random.Random(name)
    values = sorted(made.gaps)
    for count in (1, len(values) // 3, len(values)):
        runs = made.with_set(rng.sample(values, count))
        other = unrolled(trace, runs)
        assert len(runs) > len(made.runs)
        second = OpSequence(trace, runs)
        assert sum(op.time_ns or 0 for op in other.ops) == second.time_ns
        more = second.with_set(rng.sample(sorted(second.gaps), min(5, len(second.gaps))))
        unrolled(trace, more)
