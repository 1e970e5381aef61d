"""Random orders and pools for a problem, and a machine that runs a plan node by node and trusts nothing."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.swap.arrays import COMPUTE, Arrays, Ints, Nodes, arrays_of
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.evaluate import decisions, pinned_bytes, time_ns
from treadle.planner.passes.swap.layout import Pool, floors, needs
from treadle.planner.passes.swap.problem import PERSISTENT, SwapProblem
from treadle.planner.passes.swap.timeline_of import start_bytes, tasks_of
from treadle.planner.passes.swap.two_pass import FAITHFUL, Settings, plan_pool
from treadle.planner.timeline.simulator import simulate


def random_order(rng: random.Random, problem: SwapProblem) -> list[int]:
    """Some topological order."""
    maker = {tensor: at for at, op in enumerate(problem.ops) for tensor in op.outputs}
    waits = [{*op.after, *(maker[t] for t in op.inputs if t in maker)} for op in problem.ops]
    order: list[int] = []
    while len(order) < len(waits):
        order.append(rng.choice([op for op in range(len(waits)) if op not in order and waits[op] <= set(order)]))
    return order


def random_pool(rng: random.Random, problem: SwapProblem, extra: int = 3) -> Pool:
    """Random classes, each with up to `extra` objects more than its floor."""
    distinct = problem.object_sizes
    classes = [1] * len(distinct)
    for at in range(1, len(distinct)):
        classes[at] = classes[at - 1] + rng.randint(0, 1)
    needed = needs(arrays_of(problem))
    return Pool(tuple(classes), tuple(floor + rng.randint(0, extra) for floor in floors(needed, tuple(classes))))


def evaluate(arrays: Arrays, order: Sequence[int] | Ints, pool: Pool, settings: Settings = FAITHFUL) -> int | None:
    """Nanoseconds of one iteration; None where a class has fewer objects than some operator holds of its tensors, or
    where the tensors that are copied do not fit into the host's memory."""
    nodes = plan_pool(arrays, order, pool, settings)
    return None if nodes is None else time_ns(arrays, nodes)


def decide(problem: SwapProblem, order: Sequence[int], pool: Pool, settings: Settings = FAITHFUL) -> SwapDecisions:
    """The complete plan of an order and a pool. Raises InfeasibleError where `evaluate` returns None."""
    arrays = arrays_of(problem)
    nodes = plan_pool(arrays, order, pool, settings)
    if nodes is None:
        raise InfeasibleError("a class has fewer objects than one operator holds of its tensors")
    if time_ns(arrays, nodes) is None:
        needed, there = pinned_bytes(arrays, nodes), arrays.host_bytes
        raise InfeasibleError(f"the tensors that are copied take {needed} bytes of the host, which has {there}")
    return decisions(problem, arrays, order, nodes, pool)


def reach(arrays: Arrays, nodes: Nodes) -> int:
    """The end of the highest address that a plan uses."""
    highest = int((nodes.initial_at + arrays.bytes[nodes.initial]).max(initial=0))
    for i in range(len(nodes.kind)):
        at = nodes.at[nodes.at_ptr[i] : nodes.at_ptr[i + 1]]
        item = nodes.item[i]
        made = arrays.use[arrays.made_ptr[item] : arrays.use_ptr[item + 1]] if nodes.kind[i] == COMPUTE else [item]
        if len(at):
            highest = max(highest, int((at + arrays.bytes[made]).max()))
    return highest


def run(decided: SwapDecisions, iterations: int = 3) -> None:
    """Run the plan, iteration after iteration, by its simulated times; AssertionError at the first wrong thing.

    Objects must be free when they are taken, tensors on the device and up to date when an operator or a copy out reads
    them, host copies complete and up to date when they are copied in, and no tensor may lose a write.
    """
    problem = decided.problem
    schedule = simulate(*tasks_of(decided), start_bytes(decided))
    device = Device(decided)
    assert {r.tensor for r in decided.initial} == {r.tensor for r in decided.final}
    for _ in range(iterations):
        device.begin()
        ends: list[tuple[int, int]] = []
        for i in sorted(range(len(decided.nodes)), key=lambda i: (schedule.start[i], i)):
            while ends and ends[0][0] <= schedule.start[i]:
                device.end(heapq.heappop(ends)[1])
            device.start(i)
            heapq.heappush(ends, (schedule.end[i], i))
        while ends:
            device.end(heapq.heappop(ends)[1])
        there = {tensor: at for tensor, at in device.address.items() if problem.tensors[tensor].role in PERSISTENT}
        assert {r.tensor: r.at for r in decided.final} == there
        for tensor, record in enumerate(problem.tensors):
            if record.kept:
                assert device.host[tensor] == device.written[tensor] or device.current(tensor)


class Device:
    """Data are counted writes: `written` of a tensor so far, in its copy on the `host`, in the one on the device.

    address, version: of tensors on the device; version None where the data are not there yet.
    """

    def __init__(self, decided: SwapDecisions) -> None:
        self.problem, self.nodes, self.pool = decided.problem, decided.nodes, decided.pool
        self.tensors = decided.problem.tensors
        self.initial = {r.tensor: r.at for r in decided.initial}
        self.class_of = dict(zip(self.problem.object_sizes, decided.class_of, strict=True))
        self.last_user = {
            tensor: op
            for op in decided.order
            for tensor in (*self.problem.ops[op].inputs, *self.problem.ops[op].outputs)
        }
        self.written = [0] * len(self.tensors)
        self.host: list[int | None] = [0] * len(self.tensors)
        self.address = dict(self.initial)
        self.version: dict[int, int | None] = dict.fromkeys(self.initial, 0)
        self.copying: set[int] = set()

    def begin(self) -> None:
        """Persistent tensors are as the iteration before left them; inputs are new, the rest is gone."""
        self.address = dict(self.initial)
        self.version = {tensor: self.version[tensor] for tensor in self.initial}
        for tensor, record in enumerate(self.tensors):
            if record.role not in PERSISTENT:
                self.written[tensor], self.host[tensor] = 0, 0 if record.role == "input" else None

    def start(self, i: int) -> None:
        node = self.nodes[i]
        tensor = node.item
        if node.kind == "compute":
            op = self.problem.ops[node.item]
            assert all(self.current(tensor) for tensor in op.inputs), f"{op.id} reads what is not there"
            assert not self.copying & set(op.writes)
            for made, at in zip(op.outputs, node.at, strict=True):
                self.take(made, at)
        elif node.kind == "in":
            assert self.host[tensor] == self.written[tensor], f"{self.tensors[tensor].id} is stale on the host"
            self.take(tensor, node.at[0])
        elif node.kind == "out":
            assert self.current(tensor)
            self.copying.add(tensor)
            self.host[tensor] = None
        else:
            assert self.current(tensor)
            assert self.host[tensor] == self.written[tensor]

    def end(self, i: int) -> None:
        node = self.nodes[i]
        tensor = node.item
        if node.kind == "compute":
            op = self.problem.ops[node.item]
            for written in op.writes:
                self.written[written] += 1
            for present in (*op.writes, *op.outputs):
                if self.tensors[present].bytes:
                    self.version[present] = self.written[present]
            for used in (*op.inputs, *op.outputs):
                if self.last_user[used] == node.item and not self.tensors[used].kept:
                    self.give(used)
        elif node.kind == "in":
            self.version[tensor] = self.host[tensor]
        else:
            assert self.current(tensor)
            if node.kind == "out":
                self.copying.remove(tensor)
                self.host[tensor] = self.version[tensor]
            self.give(tensor)

    def take(self, tensor: int, at: int) -> None:
        if not self.tensors[tensor].bytes:
            return
        group = self.pool[self.class_of[self.tensors[tensor].bytes] - 1]
        place = at - group.address
        assert place % group.object_bytes == 0
        assert 0 <= place < group.object_bytes * group.count
        assert tensor not in self.address
        assert at not in self.address.values()
        self.address[tensor], self.version[tensor] = at, None

    def give(self, tensor: int) -> None:
        if self.tensors[tensor].bytes:
            del self.address[tensor], self.version[tensor]

    def current(self, tensor: int) -> bool:
        return not self.tensors[tensor].bytes or self.version.get(tensor) == self.written[tensor]
