"""The whole pass: certificates, determinism, size awareness, random machines, limits and interrupts."""

from __future__ import annotations

import signal
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.collective.build import (
    MB,
    MESH,
    complete,
    line,
    machine,
    relay,
    relay_sketch,
    ring,
    shipped,
    switch,
    switch_sketch,
)
from tests.planner.plans import collective_plan
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Switch
from treadle.planner.documents.sketch import Sketch
from treadle.planner.errors import InputError, LimitError
from treadle.planner.passes.collective import limits, milp
from treadle.planner.passes.collective.check import check
from treadle.planner.passes.collective.decisions import instances_for, protocol_for
from treadle.planner.passes.collective.limits import Limits
from treadle.planner.passes.collective.problem import build_problem

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


@st.composite
def machines(draw):
    n = draw(st.integers(2, 5))
    cost = st.tuples(st.integers(0, 5), st.integers(0, 9))
    order = draw(st.permutations(range(n)))
    pairs = {frozenset((order[i], order[draw(st.integers(0, i - 1))])) for i in range(1, n)}
    pairs |= draw(st.sets(st.sets(st.integers(0, n - 1), min_size=2, max_size=2).map(frozenset), max_size=6))
    links = [(a, b, *draw(cost)) for pair in sorted(map(sorted, pairs)) for a, b in (pair, pair[::-1])]
    fabrics = ()
    if n > 2 and draw(st.booleans()):
        members = tuple(range(draw(st.integers(2, n))))
        fabrics = (Switch(name="fabric", kind="switch", members=members, alpha_us=1.0, beta_us_per_MB=3.0),)
    return machine(n, links, switches=fabrics)


@given(machines(), st.sampled_from(COLLECTIVES), st.sampled_from((1, 1000, MB)), st.integers(1, 2))
@settings(max_examples=40)
def test_any_machine_gets_a_plan_that_passes_and_respects_its_bound(hardware, collective, size, pieces):
    sketch = replace(MESH, hyperparameters=replace(MESH.hyperparameters, input_chunkup=pieces))
    plan = collective_plan(collective, hardware, sketch, size_bytes=size, limits=Limits(routing=2, scheduling=2))
    assert check(plan.decisions) == []
    certificate = plan.certificate
    assert certificate.lower_bound <= certificate.objective == plan.decisions.makespan_ns
    assert certificate.optimal == (certificate.lower_bound == certificate.objective)
    assert store.loads(store.dumps(plan), "plan", type(plan)) == plan


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_same_inputs_same_bytes(collective):
    def made() -> str:
        return store.dumps(collective_plan(collective, relay(2, 10, 5), relay_sketch(batching=True), size_bytes=MB))

    assert made() == made()


def test_small_and_large_inputs_get_different_schedules():
    hardware, sketch = relay(0, 0, 0), relay_sketch(batching=True)
    from treadle.planner.documents.hardware import Network

    hardware = replace(
        hardware,
        links=tuple(replace(link, alpha_us=0.7, beta_us_per_MB=8.0) for link in relay(1, 1, 1).links),
        network=Network(kind="ib", alpha_us=1.7, beta_us_per_MB=106),
    )
    small, large = (collective_plan("allgather", hardware, sketch, size_bytes=size).decisions for size in (1024, MB))
    assert max(move.batch for move in large.transfers if (move.src, move.dst) == (1, 2)) == 1
    assert max(move.batch for move in small.transfers if (move.src, move.dst) == (1, 2)) == 0


@pytest.mark.parametrize(
    ("profile", "nodes", "name", "collective", "most"),
    [
        ("ndv2", 2, "ndv2-sk-1", "allgather", 932_000),
        ("ndv2", 2, "ndv2-sk-1", "reducescatter", 85_000),
        ("ndv2", 2, "ndv2-sk-1", "allreduce", 130_000),
        ("dgx2", 2, "dgx2-sk-2", "allgather", 16_284),
        ("dgx2", 2, "dgx2-sk-2", "allreduce", 40_000),
    ],
)
def test_published_sketches(profile, nodes, name, collective, most):
    plan = collective_plan(collective, *shipped(profile, nodes, name))
    assert check(plan.decisions) == []
    assert plan.certificate.lower_bound <= plan.decisions.makespan_ns <= most
    assert not plan.provenance.limit_fired


def test_allreduce_overlaps_its_halves():
    """Dependences are per chunk: no barrier between the halves, so at most the sum of both."""
    hardware = line(3)
    halves = [
        collective_plan(c, hardware, MESH, size_bytes=size).decisions.makespan_ns
        for c, size in (("reducescatter", 3 * MB), ("allgather", MB))
    ]
    assert collective_plan("allreduce", hardware, MESH, size_bytes=3 * MB).decisions.makespan_ns <= sum(halves)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_has_nothing_to_do(collective):
    plan = collective_plan(collective, machine(1, ()), MESH, size_bytes=100)
    assert plan.decisions.transfers == ()
    assert plan.certificate.optimal
    assert plan.prediction.time_us == 0


def test_certificate_and_inputs_are_recorded():
    plan = collective_plan("allgather", ring(4), MESH, size_bytes=MB, files={"hardware": "ring4"})
    assert (plan.inputs["hardware"].file, plan.inputs["sketch"].file) == ("ring4", MESH.name)
    assert plan.inputs["sketch"].digest == store.digest(MESH)
    assert (plan.decisions.routing_ns, plan.decisions.ordering_ns) == (18_000, 18_000)
    assert plan.certificate.optimal
    assert plan.certificate.gap == 0
    assert plan.provenance.options == {"routing_limit": 60.0, "scheduling_limit": 30.0}


def test_a_gap_is_not_called_optimal():
    plan = collective_plan("reducescatter", complete(4), MESH, size_bytes=4 * MB)
    assert plan.certificate.gap == pytest.approx(1 / 3)
    assert not plan.certificate.optimal


def test_protocol_and_instances():
    assert [protocol_for(size) for size in (1, 2**16, 2**16 + 1, MB, MB + 1)] == [
        "LL",
        "LL",
        "LL128",
        "LL128",
        "Simple",
    ]
    assert instances_for(build_problem("allgather", ring(4), MESH, MB)) == 1
    assert instances_for(build_problem("allgather", ring(4), MESH, 2 * MB)) == 8
    assert instances_for(build_problem("allgather", switch(4), MESH, MB)) == 1
    assert instances_for(build_problem("allgather", switch(4), MESH, 2 * MB)) == 8
    plan = collective_plan("allgather", ring(4), MESH, size_bytes=1, instances=3, protocol="Simple")
    assert (plan.decisions.instances, plan.decisions.protocol) == (3, "Simple")


def test_no_time_at_all_is_a_limit_error():
    with pytest.raises(LimitError, match="limits"):
        collective_plan("allgather", *shipped("dgx2", 2, "dgx2-sk-1"), limits=Limits(routing=1e-6))


def test_interrupt_keeps_the_best_plan_so_far(monkeypatch):
    """Ctrl-C while routing improves on its incumbent: the ordering of that is a plan, marked interrupted."""
    assert threading.current_thread() is threading.main_thread()
    real, pressed = limits.solve, []

    def solve(model, *, on_progress, **options):
        def press(progress) -> None:
            on_progress(progress)
            if model.name == "routing" and progress.gap and not pressed:
                pressed.append(progress)
                signal.raise_signal(signal.SIGINT)

        return real(model, on_progress=press, **options)

    monkeypatch.setattr(limits, "solve", solve)
    plan = collective_plan("allgather", switch(8), switch_sketch(8, "uc-min"), size_bytes=MB)
    assert pressed
    assert plan.provenance.interrupted
    assert check(plan.decisions) == []


def test_interrupt_before_any_solution_is_a_limit_error(monkeypatch):
    """Ctrl-C while the problem is still being written down."""
    real = milp.build_problem

    def press(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        return real(*arguments, **options)

    monkeypatch.setattr(milp, "build_problem", press)
    with pytest.raises(LimitError, match="interrupted"):
        collective_plan("allgather", ring(4), MESH, size_bytes=MB)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_routing_proves_what_cuts_do_not():
    plan = collective_plan("broadcast", switch(4), MESH, size_bytes=MB)
    assert plan.decisions.makespan_ns == 18_000
    assert plan.certificate.optimal
    assert "solver proved" in plan.certificate.argument


def test_too_many_choices_are_refused_at_once():
    with pytest.raises(InputError, match="possible transfers"):
        collective_plan("allgather", shipped("dgx2", 5, "mesh")[0], MESH, size_bytes=MB)


def test_several_nodes_need_a_sketch_that_fits():
    with pytest.raises(InputError, match="num_nodes"):
        collective_plan("allgather", *shipped("dgx2", 4, "dgx2-sk-1"))


def test_shipped_sketches_load_and_carry_their_name():
    from treadle.planner import resources

    names = resources.names("sketches")
    assert {"ndv2-sk-1", "ndv2-sk-2", "dgx2-sk-1", "dgx2-sk-2", "dgx2-sk-3", "ring", "mesh", "cpu-2x2-relay"} <= set(
        names
    )
    for name in names:
        assert store.load(resources.locate("sketches", name), Sketch).name == name
