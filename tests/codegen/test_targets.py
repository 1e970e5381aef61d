"""MSCCL XML for a runtime: what `treadle generate --runtime R` writes, `treadle check --runtime R` takes."""

from __future__ import annotations

import pytest

from tests.codegen.collective.algorithms import random_algorithm, ring_allreduce
from tests.planner.passes.collective.build import MESH, switch
from tests.planner.plans import collective_plan
from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.expected import expected_outputs
from treadle.codegen.collective.fitting import fitted, programs_of
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.codegen.collective.msccl.rules import FATAL, judge
from treadle.codegen.collective.msccl.runtimes import RUNTIMES
from treadle.codegen.collective.msccl.subject import Subject
from treadle.codegen.collective.room import ROOM
from treadle.codegen.collective.split import split_counts
from treadle.codegen.targets import require_runtime
from treadle.planner.documents.pattern import Pattern
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.collectives import ROOTED

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce", "gather", "scatter")


def refusals(text: str, runtime) -> list[str]:
    found = judge(Subject(text, xml.parse(text, "x.xml")), runtime)
    return [finding.rule for finding in found if finding.effect in FATAL]


def planned(collective: str, instances: int) -> CollectiveDecisions:
    size, root = 2**20, 1 if collective in ROOTED else 0
    plan = collective_plan(
        collective, switch(4), MESH, size_bytes=size, root=root, method="all-pairs", instances=instances
    )
    return plan.decisions


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_runtime_takes_what_is_written_for_it(runtime, collective):
    decisions = planned(collective, 2)
    made = fitted(decisions, "plan.json", "msccl-xml", runtime, (4096, 65535))
    assert made.instances == 2
    for name, text in made.texts.items():
        assert refusals(text, runtime) == [], name
        read = xml.parse(text, name)
        assert (
            check_program.check(read, expected=expected_outputs(decisions) if read.collective == collective else None)
            == []
        )


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_is_too_large_gets_fewer_instances(runtime):
    decisions = planned("alltoall", 64)
    made = fitted(decisions, "plan.json", "msccl-xml", runtime)
    assert 1 < made.instances < 64
    assert all(not refusals(text, runtime) for text in made.texts.values())
    large = xml.emit(next(iter(fitted(decisions, "p", "msccl-xml").programs.values())), runtime)
    assert set(refusals(large, runtime)) & {"blocks-per-gpu", "channel-count", "channel-number", "xml-nodes"}


@pytest.mark.parametrize("runtime", ["rccl", "executor"])
def test_long_threadblocks_are_spread_over_channels(runtime):
    """64 steps at most: chunks of one connection take several channels."""
    decisions = random_algorithm("allgather", 3, 70, 2, seed=1)
    made = fitted(decisions, "plan.json", "msccl-xml", runtime)
    assert made.lanes > 1
    for name, text in made.texts.items():
        assert refusals(text, runtime) == []
        read = xml.parse(text, name)
        assert read.channels == made.instances * made.lanes
        assert check_program.check(read, expected=expected_outputs(decisions)) == []
    alone = fitted(decisions, "plan.json", "msccl-xml", "msccl")
    assert (alone.instances, alone.lanes) == (2, 1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast"])
def test_any_number_of_channels_computes_the_same(collective, seed):
    decisions = random_algorithm(collective, 4, 3, 2, seed=seed)
    for lanes in (2, 3, 8):
        for inplace in (False, True)[: 1 if collective == "alltoall" else 2]:
            program = lower(decisions, inplace=inplace, lanes=lanes)
            assert check_program.check(program, expected=expected_outputs(decisions)) == []


def test_what_nothing_helps_names_the_rule():
    pattern = Pattern(version=1, name="p", unit="1MiB", pairs=((0, 2), (2, 0)))
    plan = collective_plan("sendrecv", switch(4), MESH, pattern=pattern, method="all-pairs", instances=4)
    with pytest.raises(InputError, match=r"^plan.json: sendrecv.xml: RCCL of .* refuses it: .*\[collective-name\]$"):
        fitted(plan.decisions, "plan.json", "msccl-xml", "rccl")
    assert refusals(fitted(plan.decisions, "plan.json", "msccl-xml", "msccl").texts["sendrecv.xml"], "msccl") == []
    with pytest.raises(InputError, match="expected msccl-xml"):
        require_runtime("rccl", ROOM.targets[2], "plan.json")
    with pytest.raises(InputError, match=r"did you mean 'rccl'"):
        require_runtime("nccl", ROOM.targets[0], "plan.json")


@pytest.mark.parametrize("most", [1, 2, 3])
def test_long_steps_are_split_without_a_change_of_meaning(most):
    for decisions in (random_algorithm("allgather", 4, 3, 2, seed=5), ring_allreduce(4, instances=3)):
        for program in programs_of(decisions, "p").values():
            split = split_counts(program, most)
            assert max(step.count for _, _, step in split.steps()) <= most
            assert check_program.check(split, expected=expected_outputs(decisions)) == []
            moved = [sum(step.count for _, _, step in each.steps()) for each in (program, split)]
            assert moved[0] == moved[1]
            assert split_counts(split, most) is split
