"""Every peer's plan is safe, follows the peer's rule, and states the memory it needs."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from benchmarks.swap.peers import largest_first, odswap, save_on_cpu, torchtune, vdnn
from benchmarks.swap.peers.peer import Labels, Outcome, labels_of, saved_activations
from tests.planner.passes.swap.cases import activation, belady, built, machine, parameter, random_problem
from treadle.planner.documents.trace import VERSION, Costs, Op, Tensor, Trace
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.extract import problem_from_trace
from treadle.planner.passes.swap.planning import footprint
from treadle.planner.passes.swap.problem import SwapMachine, SwapProblem, SwapTensor

PEERS = {
    "vdnn": vdnn.plan,
    "save_on_cpu": save_on_cpu.plan,
    "torchtune": lambda problem, labels: torchtune.plan(problem, labels, 1),
    "largest_first": largest_first.plan,
}


def with_memory(problem: SwapProblem, memory: int) -> SwapProblem:
    return replace(problem, machine=replace(problem.machine, memory_bytes=memory))


def sample(seed: int) -> tuple[SwapProblem, Labels]:
    """A random problem whose second half is its backward pass and in which half of the operators are convolutions."""
    rng = random.Random(seed)
    problem = random_problem(rng, slack=rng.choice([None, 1.0, 2.0]))
    ops = range(len(problem.ops))
    return problem, Labels(frozenset(ops[len(ops) // 2 :]), frozenset(rng.sample(ops, len(ops) // 2)))


@pytest.mark.parametrize("name", PEERS)
def test_plans_pass_the_checker_and_need_the_stated_memory(name):
    planned = 0
    for seed in range(60):
        problem, labels = sample(seed)
        found: Outcome = PEERS[name](problem, labels)
        if found.decisions is not None:
            assert check(found.decisions) == []
            planned += 1
            continue
        fits = PEERS[name](with_memory(problem, found.needed_bytes), labels)
        assert fits.decisions is not None
        assert check(fits.decisions) == []
        if name != "largest_first":  # which then evicts fewer
            assert fits.decisions.peak_bytes <= fits.decisions.problem.arena_bytes
            assert PEERS[name](with_memory(problem, found.needed_bytes - 1), labels).decisions is None
    assert planned > 20


def test_odswap_passes_the_checker():
    planned = 0
    for seed in range(150):
        problem, _ = sample(seed)
        found = odswap.plan(problem)
        assert found.needed_bytes <= problem.machine.memory_bytes or found.decisions is None
        if found.decisions is not None:
            assert check(found.decisions) == []
            planned += 1
    assert planned > 75


@pytest.mark.parametrize(
    ("uses", "objects", "loads"), [((1, 2, 3, 1, 2), 2, 5), ((1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5), 3, 10)]
)
def test_odswap_evicts_by_lru(uses, objects, loads, monkeypatch):
    """Without prefetching and from an empty device it loads as often as LRU does."""
    monkeypatch.setattr(odswap, "_prefetch", lambda device, op: False)
    device = odswap._run(belady(uses, objects), ())
    assert device is not None
    assert sum(node.kind == "in" for node in device.nodes) == loads


def test_odswap_rounds_to_powers_of_two():
    """Three tensors of 3 bytes fit into 9 bytes, but not as blocks of 4 into 11."""
    problem = built(11, [activation("A", 3, True), activation("B", 3, True), activation("C", 3, True)],
                    [("a", "", "A"), ("b", "", "B"), ("c", "A B", "C")])  # fmt: skip
    assert odswap.plan(problem) == Outcome(None, 12)
    found = odswap.plan(with_memory(problem, 12)).decisions
    assert found is not None
    assert (found.allocator, found.out_bytes) == ("offset", 0)


def test_odswap_prefetches_while_there_is_room(monkeypatch):
    """An input whose copy takes 25 is on the device when the fourth operator of 10 reads it; fetched one operator
    ahead it is 15 late."""
    tensors = [SwapTensor(id="X", bytes=25, role="input"), activation("A", 1), activation("B", 1), activation("C", 1)]
    ops = [("a", "", "A"), ("b", "A", "B"), ("c", "B", "C"), ("d", "C X", "")]
    problem = built(64, tensors, ops, time_ns=10)
    found = odswap.plan(problem).decisions
    assert found is not None
    assert check(found) == []
    monkeypatch.setattr(odswap, "_prefetch", lambda device, op: False)
    lazy = odswap.plan(problem).decisions
    assert lazy is not None
    assert (found.time_ns, lazy.time_ns) == (40, 55)


def step() -> tuple[SwapProblem, Labels]:
    """Four layers: x_n = layer(x_n-1, w_n), then their backward passes, which read x_n-1 and w_n. Activations of 8, all
    else of 1; a layer takes 10 and a copy of an activation 8."""
    tensors = [parameter(f"W{n}") for n in range(4)] + [activation(f"X{n}", 8) for n in range(5)]
    tensors += [activation(f"G{n}", 1) for n in range(5)]
    ops = [("make", "", "X0")]
    ops += [(f"conv{n}", f"X{n} W{n}", f"X{n + 1}") for n in range(4)]
    ops += [("loss", "X4", "G4")]
    ops += [(f"back{n}", f"G{n + 1} X{n} W{n}", f"G{n}", f"W{n}") for n in reversed(range(4))]
    problem = built(100, tensors, ops, time_ns=10)
    return problem, Labels(frozenset(range(6, 10)), frozenset(range(1, 5)) | frozenset(range(6, 10)))


def test_saved_activations_are_those_that_the_backward_pass_reads():
    problem, labels = step()
    found = saved_activations(problem, labels)
    assert [problem.tensors[saved.tensor].id for saved in found] == ["X0", "X1", "X2", "X3", "G4"]
    assert found[1].forward == (1, 2)
    assert found[1].backward == (8,)


def plan_of(name: str) -> SwapDecisions:
    found = PEERS[name](*step()).decisions
    assert found is not None
    return found


def test_save_on_cpu_waits_for_every_copy():
    """Ten operators of 10, four activations of 8 and one gradient of 1, each out and in, one thing at a time."""
    problem, _ = step()
    assert problem.ideal_ns == 100
    assert plan_of("save_on_cpu").time_ns == 100 + 2 * (4 * 8 + 1)


def test_vdnn_moves_inputs_of_convolutions_behind_the_next_layer():
    """Each of X0 to X3 is copied out and in while a layer of 10 runs, but X3, whose layer's backward pass is the first,
    is fetched when the backward pass begins."""
    plan = plan_of("vdnn")
    assert plan.out_bytes == plan.in_bytes == 4 * 8
    assert plan.time_ns == 100 + 8
    nodes = [plan.problem.tensors[node.item].id for node in plan.nodes if node.kind == "out"]
    assert nodes == ["X0", "X1", "X2", "X3"]


def test_vdnn_evicts_nothing_of_networks_without_convolutions():
    problem, labels = step()
    found = vdnn.plan(problem, labels._replace(convolutions=frozenset()))
    assert found.decisions is not None
    assert found.decisions.in_bytes == found.decisions.out_bytes == 0
    assert found.needed_bytes == footprint(problem)


def test_torchtune_limits_copies_in_flight():
    problem, labels = step()
    slow = replace(problem, machine=replace(machine(100), out_bandwidth=10**9 // 10))  # a copy out takes 80
    patient = torchtune.plan(slow, labels, 1, 5).decisions
    hasty = torchtune.plan(slow, labels, 1, 1).decisions
    assert patient is not None
    assert hasty is not None
    assert check(patient) == check(hasty) == []
    assert patient.peak_bytes >= hasty.peak_bytes
    small = torchtune.plan(problem, labels).decisions  # everything is below 1024 bytes
    assert small is not None
    assert small.out_bytes == 0


def test_largest_first_moves_as_few_as_fit():
    problem, labels = step()
    whole = footprint(problem)
    bytes_out = []
    for memory in (whole, whole - 1, whole - 9, whole - 17):
        found = largest_first.plan(with_memory(problem, memory), labels).decisions
        assert found is not None
        assert check(found) == []
        bytes_out.append(found.out_bytes)
    assert bytes_out == [0, 8, 16, 24]


def test_labels_are_read_off_the_trace():
    def op(name: str, phase, reads: str, makes: str) -> Op:
        target = f"aten.{name}.default"
        return Op(id=name, target=target, phase=phase, inputs=tuple(reads), outputs=tuple(makes), time_ns=1)

    roles = {"x": "input", "w": "parameter"}
    trace = Trace(
        version=VERSION,
        name="hand",
        mode="train",
        source="hand",
        costs=Costs(model="absent"),
        tensors=tuple(Tensor(id=name, role=roles.get(name, "activation"), bytes=1) for name in "xwabg"),
        ops=(
            op("convolution", "forward", "xw", "a"),
            op("relu", "forward", "a", "b"),
            op("convolution_backward", "backward", "bxw", "g"),
            op("_fused_sgd_", "optimizer", "gw", ""),
        ),
    )
    problem = problem_from_trace(trace, SwapMachine(memory_bytes=2**30, in_bandwidth=1, out_bandwidth=1))
    assert labels_of(problem, trace) == Labels(frozenset({2}), frozenset({0, 2}))
