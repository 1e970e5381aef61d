"""The least memory of a problem, against brute force, and the words in which a smaller one is refused."""

from __future__ import annotations

import random
from itertools import permutations, product

import pytest
from msgspec.structs import replace

from tests.planner.passes.swap.cases import activation, built, figure_4_1, figure_4_3, parameter, random_problem, rnn
from tests.planner.passes.swap.plans import decide, evaluate
from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.swap.arrays import arrays_of, ints, predecessors
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.evaluate import pinned_bytes
from treadle.planner.passes.swap.layout import Pool, least_pool
from treadle.planner.passes.swap.minimum import least_host_memory, least_memory, require_feasible
from treadle.planner.passes.swap.problem import SwapProblem, SwapTensor
from treadle.planner.passes.swap.two_pass import Settings, plan_pool


def with_memory(problem: SwapProblem, count: int) -> SwapProblem:
    return replace(problem, machine=replace(problem.machine, memory_bytes=count))


def test_figure_4_1_needs_five_with_objects_and_four_without() -> None:
    """O2: 3 objects of 1 and 1 of 2, against 3 objects of 2 in one class."""
    found = least_memory(figure_4_1())
    assert found.memory_bytes == 5
    assert sorted((size, count) for size, count, _ in found.objects) == [(1, 3), (2, 1)]
    assert least_memory(figure_4_1(), "bytes").memory_bytes == least_memory(figure_4_1(), "offset").memory_bytes == 4


def test_it_is_attained() -> None:
    problem = figure_4_1(5)
    for order in ((0, 1, 2, 3, 4, 5), (0, 2, 3, 4, 1, 5)):
        plan = decide(problem, order, least_pool(problem))
        assert check(plan) == []
        assert plan.pool[-1].address + plan.pool[-1].object_bytes * plan.pool[-1].count == 5


def brute_force(problem: SwapProblem) -> int:
    """Least bytes over all classes of sizes, one step or none from size to size."""
    sizes = sorted({tensor.bytes for tensor in problem.tensors} - {0})
    best = []
    for steps in product((0, 1), repeat=len(sizes) - 1):
        classes = [1]
        for step in steps:
            classes.append(classes[-1] + step)
        of = dict(zip(sizes, classes, strict=True))
        total = 0
        for number in set(classes):
            held = [
                sum(of.get(problem.tensors[t].bytes) == number for t in (*op.inputs, *op.outputs)) for op in problem.ops
            ]
            total += max(1, *held) * max(size for size in sizes if of[size] == number)
        best.append(total)
    return min(best) + problem.reserve_bytes + max(op.scratch_bytes for op in problem.ops)


@pytest.mark.parametrize("seed", range(40))
def test_no_division_into_classes_needs_less(seed: int) -> None:
    problem = random_problem(random.Random(seed))
    assert least_memory(problem).memory_bytes == brute_force(problem)
    largest = max(problem.working_set(op) for op in range(len(problem.ops)))
    for allocator in ("bytes", "offset"):
        least = least_memory(problem, allocator)  # type: ignore[arg-type]
        assert least.memory_bytes == largest + problem.reserve_bytes + problem.scratch_bytes
        assert problem.working_set(least.ops[0]) == largest
    assert least_memory(problem, "bytes").memory_bytes <= least_memory(problem).memory_bytes
    require_feasible(with_memory(problem, brute_force(problem)))
    with pytest.raises(InfeasibleError):
        require_feasible(with_memory(problem, brute_force(problem) - 1))


def test_one_object_fewer_is_infeasible_for_the_planner_too() -> None:
    problem = figure_4_1()
    order = range(len(problem.ops))
    assert evaluate(arrays_of(problem), order, Pool((1, 2), (2, 1))) is None
    assert evaluate(arrays_of(problem), order, Pool((1, 2), (3, 1))) is not None


def refusal(problem: SwapProblem, allocator: str = "pool") -> str:
    with pytest.raises(InfeasibleError) as caught:
        require_feasible(problem, allocator)  # type: ignore[arg-type]
    assert caught.value.exit_code == 3
    return str(caught.value)


def test_a_refusal_names_the_least_memory_the_operator_and_its_tensors() -> None:
    assert refusal(figure_4_1(4)) == (
        "found 4 B of device memory (4 bytes), expected at least 5 B (5 bytes): 3 x 1 B and 1 x 2 B; operator Conv1 "
        "holds A0 (1 B), A1 (1 B) and W1 (1 B) at once; split that operator or make the batch smaller; with "
        "--allocator offset the least is 4 B"
    )
    assert refusal(figure_4_1(3), "bytes") == (
        "found 3 B of device memory (3 bytes), expected at least 4 B (4 bytes): 4 B of tensors; operator Conv2 holds "
        "A2 (2 B), A0 (1 B) and W2 (1 B) at once; split that operator or make the batch smaller"
    )


def test_a_refusal_tells_of_scratch_and_reserve() -> None:
    problem = figure_4_3(2)
    ops = (replace(problem.ops[0], scratch_bytes=2048), *problem.ops[1:])
    text = refusal(replace(problem, ops=ops, reserve_bytes=3))
    assert "expected at least 2.006 KiB (2054 bytes): 3 x 1 B, 2 KiB of scratch and 3 B of reserve;" in text


def test_operators_of_many_tensors_and_problems_of_many_classes_are_told_in_short() -> None:
    tensors = [parameter(f"w{n}", 10**n) for n in range(7)]
    problem = built(5, tensors, [("wide", " ".join(tensor.id for tensor in tensors), "")])
    text = refusal(problem)
    assert "1.06 MiB in 7 classes of objects;" in text
    assert "operator wide holds w6 (976.6 KiB), w5 (97.66 KiB), w4 (9.766 KiB), w3 (1000 B) and 3 more at once" in text


def test_a_tensor_of_no_bytes_needs_no_object() -> None:
    problem = built(1, [parameter("w"), activation("a", 0)], [("f", "w", "a")])
    assert least_memory(problem).memory_bytes == 1


def test_layers_of_an_rnn_need_one_parameter_and_three_states() -> None:
    assert least_memory(rnn(2, 3)).memory_bytes == 4 + 3


@pytest.mark.parametrize("seed", range(30))
def test_no_order_and_no_choice_of_victims_pins_less_on_the_host(seed: int) -> None:
    """Against all orders of few operators, each with several plans: with less host memory none of them is one."""
    rng = random.Random(seed)
    problem = random_problem(rng, ops=rng.randint(3, 6), slack=rng.choice((0.0, 0.3, 1.0)))
    arrays, pool = arrays_of(problem), least_pool(problem)
    least = least_host_memory(problem).host_bytes
    pinned = []
    for order in permutations(range(len(problem.ops))):
        place = {op: at for at, op in enumerate(order)}
        if any(place[o] > place[op] for op in place for o in predecessors(problem)[op]):
            continue
        for settings in (Settings(0), Settings(2, keep_initial=True)):
            bias = ints(rng.randint(-9, 9) for _ in arrays.use)
            for nodes in (plan_pool(arrays, order, pool, settings), plan_pool(arrays, order, pool, settings, bias)):
                assert nodes is not None
                pinned.append(pinned_bytes(arrays, nodes))
    assert min(pinned) >= least
    machine = replace(problem.machine, memory_bytes=10**6, host_bytes=least)
    require_feasible(replace(problem, machine=machine))


def test_the_least_host_memory_is_attained_and_a_smaller_one_refused() -> None:
    """A chain of three tensors of 4 bytes that are read again in reverse, and an input of 2: while the middle runs 12
    bytes are needed; 2 + 12 - 10 are off the device."""
    step = SwapTensor(id="X", bytes=2, role="input")
    tensors = [step, *(activation(name, 4) for name in ("A", "B", "C"))]
    ops = [("o1", "X", "A"), ("o2", "A", "B"), ("o3", "B", "C"), ("o4", "C", ""), ("o5", "B", ""), ("o6", "A", "")]
    problem = built(10, tensors, ops)
    problem = replace(
        problem,
        ops=tuple(replace(op, after=(at - 1,) if at else ()) for at, op in enumerate(problem.ops)),
    )
    found = least_host_memory(problem)
    assert (found.host_bytes, found.inputs, found.needed) == (4, 2, 12)
    attained = least_host_memory(replace(problem, machine=replace(problem.machine, memory_bytes=8)))
    assert attained.host_bytes == 6
    nodes = plan_pool(arrays_of(problem), range(6), Pool((1, 1), (2,)))
    assert nodes is not None
    assert pinned_bytes(arrays_of(problem), nodes) == 6
    limited = replace(problem, machine=replace(problem.machine, host_bytes=3))
    assert refusal(limited, "bytes") == (
        "found 3 B of host memory (3 bytes), expected at least 4 B (4 bytes): the inputs of the step take 2 B, and "
        "12 B of tensors are needed while operator o3 runs, of which the device holds 10 B; raise --host-memory or "
        "--device-memory, or make the batch smaller"
    )
    require_feasible(replace(problem, machine=replace(problem.machine, host_bytes=4)), "bytes")
