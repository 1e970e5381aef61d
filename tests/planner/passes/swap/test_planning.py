"""The whole pass: checked plans, the same with any number of workers, and the errors without one."""

from __future__ import annotations

import itertools
import os
import random
import signal
from dataclasses import replace
from fractions import Fraction

import pytest
from msgspec import structs

from tests.planner.passes.swap import cases
from treadle.planner import solver
from treadle.planner.documents import store
from treadle.planner.errors import InfeasibleError, InputError, LimitError
from treadle.planner.passes.swap import bound, planning
from treadle.planner.passes.swap.arrays import arrays_of
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.exact import Exact
from treadle.planner.passes.swap.layout import Pool
from treadle.planner.passes.swap.planning import (
    SwapOptions,
    SwapProgress,
    SwapTask,
    footprint,
    parse_memory,
    plan_swap,
    with_memory,
)
from treadle.planner.passes.swap.search import executors, methods, planting
from treadle.planner.passes.swap.search.fitness import simulated
from treadle.planner.passes.swap.two_pass import plan_pool
from treadle.planner.search.clock import Clock

QUICK = SwapOptions(population=12, generations=6)


@pytest.fixture
def always_send(monkeypatch):
    monkeypatch.setattr(executors, "SMALL", 0)


@pytest.fixture
def listening():
    """A process in the background of a shell is deaf to SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("allocator", ["pool", "offset", "bytes"])
@pytest.mark.parametrize("faithful", [False, True])
def test_plans_pass_their_check_and_keep_their_bound(allocator, faithful):
    for seed in range(4):
        problem = cases.random_problem(random.Random(seed), ops=16)
        options = replace(QUICK, allocator=allocator, faithful=faithful, seed=seed)
        plan = plan_swap(SwapTask(problem), options=options)
        assert check(plan.decisions) == []
        assert plan.certificate.lower_bound <= plan.certificate.objective == plan.decisions.time_ns
        assert plan.certificate.optimal == (plan.certificate.gap == 0)
        assert store.loads(store.dumps(plan), "plan", type(plan)) == plan
        if faithful:
            assert plan.provenance.parts == ("genetic",)
            assert plan.provenance.options["temperature"] == 1.0


def test_a_second_allocator_is_not_begun_once_the_time_is_over(monkeypatch):
    begun = []

    planned = planning.plan_one

    def plan_one(task, options, *others):
        begun.append(options.allocator)
        return planned(task, options, *others)

    monkeypatch.setattr(planning, "plan_one", plan_one)
    problem = cases.random_problem(random.Random(0), ops=16)
    plan = plan_swap(SwapTask(problem), options=replace(QUICK, time_limit_s=1e-9, allocators=("pool", "offset")))
    assert (begun, plan.provenance.limit_fired) == (["pool"], True)
    assert check(plan.decisions) == []


def test_enough_memory_is_a_plan_without_copies_proved_optimal():
    plan = plan_swap(SwapTask(cases.figure_4_1(12)), options=QUICK)
    assert plan.decisions.time_ns == plan.decisions.problem.ideal_ns
    assert plan.decisions.in_bytes == plan.decisions.out_bytes == 0
    assert plan.certificate.optimal
    assert plan.certificate.scope == "any order"


def test_small_problems_are_proved_optimal():
    """O2: 5 bytes are the least; the best plan of any order, in the steady state."""
    plan = plan_swap(SwapTask(cases.figure_4_1(5, kept=False)), options=replace(QUICK, generations=2))
    assert plan.certificate.optimal
    assert "exact" in plan.provenance.parts
    exact = plan_swap(SwapTask(cases.figure_4_1(5, kept=False)), options=replace(QUICK, method="exact"))
    assert exact.decisions.time_ns == plan.decisions.time_ns
    assert exact.provenance.search_log == ()


def test_too_little_memory_says_the_least_and_who_needs_it():
    with pytest.raises(InfeasibleError, match=r"expected at least 5 B.*operator Conv"):
        plan_swap(SwapTask(cases.figure_4_1(4)), options=QUICK)


def test_too_small_a_host_is_said():
    """At once where no order can do, after the search where it found none that can."""
    problem = cases.rnn(4, 6, 14)
    for count, error, text in ((2, InfeasibleError, "at least 5 B"), (5, LimitError, "--host-memory, which is 5 B")):
        machine = structs.replace(problem.machine, host_bytes=count)
        with pytest.raises(error, match=text):
            plan_swap(SwapTask(structs.replace(problem, machine=machine)), options=QUICK)


def test_shares_are_of_the_footprint_of_the_trace_order():
    problem = cases.rnn(2, 3)
    assert footprint(problem) == 12  # two parameters of 4, and 4 states while cell 1.0 runs
    whole = plan_swap(SwapTask(with_memory(problem, Fraction(1))), options=QUICK)
    assert whole.decisions.in_bytes == 0
    assert whole.decisions.problem.machine.memory_bytes == 12
    part = plan_swap(SwapTask(with_memory(problem, parse_memory("0.75x"))), options=QUICK)
    assert part.decisions.problem.machine.memory_bytes == 9
    assert part.decisions.time_ns > whole.decisions.time_ns


@pytest.mark.parametrize("text", ["0", "0x", "-1x", "much", "1.5", "x"])
def test_other_sizes_of_memory_are_refused(text):
    with pytest.raises(InputError, match=r"--device-memory: found"):
        parse_memory(text)


def test_the_plan_is_the_same_bytes_with_two_workers(always_send):
    problem = cases.rnn(4, 6, 14)
    one = plan_swap(SwapTask(problem), options=QUICK)
    two = plan_swap(SwapTask(problem), options=replace(QUICK, workers=2))
    assert store.dumps(one) == store.dumps(two)
    assert store.dumps(one) != store.dumps(plan_swap(SwapTask(problem), options=replace(QUICK, seed=1)))


def test_the_plan_is_the_same_bytes_on_a_dask_cluster():
    distributed = pytest.importorskip("distributed")
    problem = cases.rnn(4, 6, 14)
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "protocol": "tcp"}
    with distributed.LocalCluster(**options, dashboard_address=None) as cluster:
        where = cluster.scheduler_address.replace("tcp", "dask")
        there = plan_swap(SwapTask(problem), options=replace(QUICK, executor=where))
    assert store.dumps(there) == store.dumps(plan_swap(SwapTask(problem), options=QUICK))


def test_one_dimension_alone_is_worse_on_an_rnn():
    """The ablations: a fixed time-major order is far worse, a fixed pool or free classes are at least legal."""
    problem = cases.rnn(4, 6, 14)
    order = cases.time_by_time(4, 6)
    place = {op: at for at, op in enumerate(order)}
    slow = structs.replace(problem, ops=tuple(problem.ops[op] for op in order))
    assert len(place) == len(problem.ops)
    both = plan_swap(SwapTask(slow), options=QUICK)
    fixed = plan_swap(SwapTask(slow), options=replace(QUICK, keep_order=True))
    assert fixed.decisions.order == tuple(range(24))
    assert fixed.certificate.scope == "this order"
    assert fixed.decisions.time_ns > 2 * both.decisions.time_ns
    for options in (replace(QUICK, keep_pool=True), replace(QUICK, free_classes=True)):
        assert check(plan_swap(SwapTask(slow), options=options).decisions) == []


def test_plans_are_handed_on_from_the_first_one():
    plans, ticks = [], []
    final = plan_swap(SwapTask(cases.rnn(4, 6, 14)), options=QUICK, on_plan=plans.append, on_progress=ticks.append)
    assert all(check(plan.decisions) == [] for plan in plans)
    times = [plan.decisions.time_ns for plan in plans]
    assert times == sorted(times, reverse=True)
    assert plans[0].provenance.interrupted
    assert not final.provenance.interrupted
    assert isinstance(ticks[0], SwapProgress)
    assert [tick.generation for tick in ticks] == list(final.provenance.search_log)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_search_with_the_best_plan(number, listening):
    options = replace(QUICK, generations=10**6, patience=10**6, time_limit_s=100)
    signals = iter([number])

    def press(progress):
        for each in signals:
            os.kill(os.getpid(), each)

    plan = plan_swap(SwapTask(cases.rnn(4, 6, 14)), options=options, on_progress=press)
    assert plan.provenance.interrupted
    assert not plan.provenance.limit_fired
    assert check(plan.decisions) == []


def test_a_signal_before_the_first_plan_ends_with_the_plan_that_planting_has(monkeypatch, listening):
    """The pools that are planted are not all looked at, and nothing is searched."""
    tried = []

    def press(*arguments):
        if not tried:
            os.kill(os.getpid(), signal.SIGINT)
        tried.append(arguments)
        return simulated(*arguments)

    monkeypatch.setattr(planting, "simulated", press)
    plan = plan_swap(SwapTask(cases.rnn(4, 6, 14)), options=QUICK)
    assert len(tried) < 4
    assert (plan.provenance.method, plan.provenance.interrupted) == ("planted", True)
    assert check(plan.decisions) == []


def test_a_signal_while_an_allocator_has_no_plan_begins_no_other(monkeypatch, listening):
    begun = []

    def plan_one(task, options, *others):
        begun.append(options.allocator)
        os.kill(os.getpid(), signal.SIGINT)
        raise LimitError("no plan was found within the limits")

    monkeypatch.setattr(planning, "plan_one", plan_one)
    with pytest.raises(LimitError):
        plan_swap(SwapTask(cases.rnn(4, 6, 14)), options=replace(QUICK, allocators=("pool", "offset")))
    assert begun == ["pool"]


def test_after_the_limit_there_is_a_plan_and_no_search(monkeypatch):
    """Wherever the limit fires: at each look at the clock it moves by a second."""
    searched = []
    monkeypatch.setattr(methods, "evolve", lambda *given: searched.append("genetic"))
    monkeypatch.setattr(methods, "improve", lambda *given, **others: searched.append("local"))
    monkeypatch.setattr(bound, "solve", lambda *given, **others: searched.append("bound"))
    for limit in (0, 3, 10):
        clock = Clock(float(limit), 0.0, map(float, itertools.count()).__next__)
        plan = plan_swap(SwapTask(cases.rnn(4, 6, 14)), options=QUICK, clock=clock)
        assert (searched, plan.provenance.limit_fired) == ([], True)
        assert check(plan.decisions) == []


def test_a_signal_during_the_linear_program_ends_it(monkeypatch, listening):
    """The solver is stopped, whatever it takes, and the compute bound is left."""
    reported = []

    def pressed(model, *, stop, **others):
        os.kill(os.getpid(), signal.SIGTERM)
        reported.append(stop.wait(10))
        return solver.solve(model, stop=stop, **others)

    monkeypatch.setattr(bound, "solve", pressed)
    plan = plan_swap(SwapTask(cases.rnn(4, 6, 14)), options=QUICK)
    assert reported == [True]
    assert plan.provenance.interrupted
    assert plan.provenance.method == "planted"
    assert plan.certificate.argument == bound.SENTENCES["compute"]


def test_the_linear_program_has_no_more_time_than_the_search(monkeypatch):
    limits = []

    def noted(model, *, time_limit_s, **others):
        limits.append(time_limit_s)
        return solver.solve(model, time_limit_s=time_limit_s, **others)

    monkeypatch.setattr(bound, "solve", noted)
    plan_swap(SwapTask(cases.rnn(4, 6, 14)), options=replace(QUICK, time_limit_s=5.0))
    assert 0 < limits[0] <= 5.0


def test_an_exact_plan_that_does_not_pass_its_check_costs_no_good_one(monkeypatch):
    """Here everything is in one place."""
    problem = cases.figure_4_1(memory=6)
    pool = Pool((1, 2), (3, 1))
    nodes = plan_pool(arrays_of(problem), cases.LEFT, pool)
    found = Exact(order=cases.LEFT, pool=pool, nodes=nodes._replace(at=0 * nodes.at), time_ns=1)
    monkeypatch.setattr(methods, "solve_exact", lambda *args, **options: found)
    plan = plan_swap(SwapTask(problem), options=replace(QUICK, method="exact"))
    assert check(plan.decisions) == []
    assert plan.provenance.parts[-1] == methods.REFUSED


def test_the_time_limit_is_a_net_and_is_recorded():
    options = replace(QUICK, generations=10**6, patience=10**6, time_limit_s=1.0)
    plan = plan_swap(SwapTask(cases.rnn(4, 6, 14)), options=options)
    assert plan.provenance.limit_fired
    assert not plan.provenance.interrupted


@pytest.mark.parametrize("share", ["SHARE", "RESERVED"])
def test_a_search_that_the_clock_cuts_says_so(monkeypatch, share):
    """No time for the genetic search, or none for local search: the plan depends on the clock."""
    monkeypatch.setattr(methods, share, {"SHARE": 0.0, "RESERVED": 1.0}[share])
    if share == "SHARE":  # local search would go on to the end of the time
        monkeypatch.setattr(methods, "improve", lambda *args, **options: None)
    plan = plan_swap(SwapTask(cases.rnn(4, 6, 14)), options=replace(QUICK, patience=1, allocator="offset"))
    assert plan.provenance.limit_fired
    assert check(plan.decisions) == []


def test_packed_plans_are_the_same_bytes_with_two_workers(always_send):
    problem = cases.random_problem(random.Random(77), ops=24, slack=0.3)
    options = replace(QUICK, allocator="offset")
    one = plan_swap(SwapTask(problem), options=options)
    assert not one.provenance.limit_fired
    assert store.dumps(one) == store.dumps(plan_swap(SwapTask(problem), options=replace(options, workers=2)))


@pytest.mark.parametrize("allocator", ["pool", "offset", "bytes"])
def test_operators_without_tensors_have_a_plan(allocator):
    plan = plan_swap(SwapTask(cases.built(1, [], [("o", "", "")], 3)), options=replace(QUICK, allocator=allocator))
    assert (plan.decisions.time_ns, plan.certificate.optimal) == (3, True)


def test_free_classes_need_a_pool():
    with pytest.raises(InputError, match="free_classes"):
        SwapOptions(allocator="bytes", free_classes=True)
