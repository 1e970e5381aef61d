"""Swap problems that tests share: the oracles of the SwapAdvisor text, and seeded random ones.

One unit is one byte, one ns of compute and one ns of copying in each direction unless a case says otherwise.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence

from treadle.planner.passes.swap.problem import Role, SwapMachine, SwapOp, SwapProblem, SwapTensor

UNIT = 10**9
"""Bytes per second of a copy that moves one byte in one ns."""


def machine(memory: int, together: tuple[int, int] = (1, 1)) -> SwapMachine:
    """Copies of one byte per ns in each direction."""
    return SwapMachine(memory_bytes=memory, in_bandwidth=UNIT, out_bandwidth=UNIT, together=together)


def parameter(name: str, size: int = 1) -> SwapTensor:
    return SwapTensor(id=name, bytes=size, role="parameter", kept=True)


def activation(name: str, size: int = 1, kept: bool = False) -> SwapTensor:
    return SwapTensor(id=name, bytes=size, role="activation", kept=kept)


def built(
    memory: int,
    tensors: Sequence[SwapTensor],
    ops: Sequence[tuple[str, str, str] | tuple[str, str, str, str]],
    time_ns: int = 1,
) -> SwapProblem:
    """A problem of ops (id, inputs, outputs[, writes]), tensors named by their ids with blanks between. Where a tensor
    is written its users wait for each other in the order in which they stand here."""
    index = {tensor.id: at for at, tensor in enumerate(tensors)}

    def numbers(names: str) -> tuple[int, ...]:
        return tuple(index[name] for name in names.split())

    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = defaultdict(list)  # since the last write
    found = []
    for at, op in enumerate(ops):
        inputs, writes = numbers(op[1]), numbers(op[3]) if len(op) > 3 else ()
        after = {writer[t] for t in inputs if t in writer} | {reader for t in writes for reader in readers[t]}
        for t in inputs:
            if t in writes:
                writer[t], readers[t] = at, []
            else:
                readers[t].append(at)
        found.append(
            SwapOp(id=op[0], inputs=inputs, outputs=numbers(op[2]), writes=writes, after=tuple(sorted(after)),
                   time_ns=time_ns)
        )  # fmt: skip
    return SwapProblem(version=1, machine=machine(memory), tensors=tuple(tensors), ops=tuple(found))


LEFT = (0, 1, 2, 3, 4, 5)
"""Order of figure_4_1 that runs the left branch first: Data 1 2 3 4 Concat."""
RIGHT = (0, 2, 3, 4, 1, 5)
"""Order of figure_4_1 that runs the right branch first: Data 2 3 4 1 Concat."""


def figure_4_1(memory: int = 10, kept: bool = True) -> SwapProblem:
    """O1, O2: two branches of unlike length. A2 and A5 take 2, all else 1; coarse pool 5 x 2, fine pool 8 x 1 + 1 x 2.

    From an empty device: left coarse 6, left fine 7, right coarse 7, right fine 6, with threshold 2 as with any search.
    """
    sizes = {"A2": 2, "A5": 2}
    tensors = [parameter(f"W{n}") for n in range(1, 5)]
    tensors += [activation(f"A{n}", sizes.get(f"A{n}", 1), kept) for n in range(6)]
    return built(
        memory,
        tensors,
        [
            ("Data", "", "A0"),
            ("Conv1", "A0 W1", "A1"),
            ("Conv2", "A0 W2", "A2"),
            ("Conv3", "A2 W3", "A3"),
            ("Conv4", "A3 W4", "A4"),
            ("Concat", "A1 A4", "A5"),
        ],
    )


def figure_4_3(memory: int = 4, written: bool = False) -> SwapProblem:
    """O3: W1 makes room for W3, W2 for A3; 4 units from an empty device, 5 where W1 and W2 are `written`."""
    tensors = [parameter(f"W{n}") for n in range(1, 4)] + [activation(f"A{n}", kept=True) for n in range(1, 4)]
    writes = ("W1", "W2") if written else ("", "")
    return built(
        memory,
        tensors,
        [("op1", "W1", "A1", writes[0]), ("op2", "A1 W2", "A2", writes[1]), ("op3", "A2 W3", "A3")],
    )


def two_pass_a(memory: int = 3) -> SwapProblem:
    """O6a: initial residents {W2}, steady state loads W1 only."""
    tensors = [parameter("W1"), parameter("W2"), activation("A1"), activation("A2")]
    return built(memory, tensors, [("o1", "W1", "A1"), ("o2", "A1 W2", "A2")])


def two_pass_b(memory: int = 3) -> SwapProblem:
    """O6b: the literal rule empties the initial residents and takes 5; keeping W3 would take 4."""
    tensors = [parameter("W1"), parameter("W3"), activation("A1"), activation("A2"), activation("A3")]
    return built(memory, tensors, [("o1", "W1", "A1"), ("o2", "A1", "A2"), ("o3", "A2 W3", "A3")])


def belady(uses: Sequence[int], objects: int) -> SwapProblem:
    """O7: operator i reads parameter uses[i] alone; uses 1 2 3 1 2 load 4 times with 2 objects."""
    names = sorted(set(uses))
    problem = built(
        objects, [parameter(f"W{n}") for n in names], [(f"o{at}", f"W{n}", "") for at, n in enumerate(uses)]
    )
    return _in_order(problem)


def _in_order(problem: SwapProblem) -> SwapProblem:
    ops = tuple(
        SwapOp(id=op.id, inputs=op.inputs, outputs=op.outputs, after=(at - 1,) if at else (), time_ns=op.time_ns)
        for at, op in enumerate(problem.ops)
    )
    return SwapProblem(version=1, machine=problem.machine, tensors=problem.tensors, ops=ops)


def rnn(layers: int = 2, steps: int = 3, memory: int = 12, parameter_bytes: int = 4, kept: bool = False) -> SwapProblem:
    """O8: cell (l, t) reads its layer's parameter and the states of (l-1, t) and (l, t-1). Operator l * steps + t.

    2 layers of 3 steps, one object for parameters and 8 for states: 14 layer by layer, 30 time by time.
    """
    tensors = [parameter(f"W{layer}", parameter_bytes) for layer in range(layers)]
    tensors += [activation(f"H{layer}.{t}", kept=kept) for layer in range(layers) for t in range(steps)]
    ops = []
    for layer in range(layers):
        for t in range(steps):
            below = [f"H{layer - 1}.{t}"] if layer else []
            before = [f"H{layer}.{t - 1}"] if t else []
            ops.append((f"cell{layer}.{t}", " ".join([f"W{layer}", *below, *before]), f"H{layer}.{t}"))
    return built(memory, tensors, ops)


def time_by_time(layers: int, steps: int) -> tuple[int, ...]:
    """The order of `rnn` that runs all layers of a step before the next step."""
    return tuple(layer * steps + t for t in range(steps) for layer in range(layers))


def duplex(in_bytes: int = 1_200_000_000, out_bytes: int = 1_200_000_000) -> SwapProblem:
    """O9: one copy in each direction, both free to start at time 0, at 12 GB/s alone and 20 GB/s together.

    1.2 GB in: 0.1 s; 1.2 in and 1.2 out: 0.12 s; 1.2 in and 0.6 out: 0.11 s. Operators take no time.
    """
    fast = SwapMachine(
        memory_bytes=in_bytes + out_bytes,
        in_bandwidth=12 * 10**9,
        out_bandwidth=12 * 10**9,
        together=(5, 6),
    )
    if not out_bytes:
        problem = built(in_bytes, [parameter("W", in_bytes)], [("read", "W", "")], time_ns=0)
    else:
        tensors = [parameter("W", in_bytes), activation("X", out_bytes, kept=True), activation("Y", out_bytes)]
        problem = built(in_bytes, tensors, [("make", "", "X"), ("read", "W", "Y")], time_ns=0)
        problem = _in_order(problem)
    return SwapProblem(version=1, machine=fast, tensors=problem.tensors, ops=problem.ops)


def random_problem(
    rng: random.Random,
    ops: int | None = None,
    slack: float | None = None,
    together: tuple[int, int] | None = None,
) -> SwapProblem:
    """A training step in miniature: parameters, states that late operators write, inputs, activations (some rewritten
    in place, some of no bytes, some kept), explicit waits. Its memory is `slack` (0 to 1, by default random) above the
    least that a pool with one class per size needs.
    """
    count = ops if ops is not None else rng.randint(3, 14)
    sizes = rng.sample(range(1, 9), rng.randint(1, 4))
    tensors: list[SwapTensor] = []

    def new(prefix: str, role: Role, kept: bool) -> int:
        size = 0 if role in ("activation", "gradient") and rng.random() < 0.08 else rng.choice(sizes)
        tensors.append(SwapTensor(id=f"{prefix}{len(tensors)}", bytes=size, role=role, kept=kept))
        return len(tensors) - 1

    parameters = [new("w", "parameter", True) for _ in range(rng.randint(1, max(2, count // 2)))]
    states = [new("s", "state", True) for _ in range(rng.randint(0, 2))]
    inputs = [new("x", "input", False) for _ in range(rng.randint(0, 2))]
    made: list[int] = []
    readers: dict[int, list[int]] = defaultdict(list)  # since the last write
    writer: dict[int, int] = {}
    result: list[SwapOp] = []
    for at in range(count):
        late = at >= count // 2
        known = [*parameters, *inputs, *made[-6:], *(states if late else [])]
        reads = sorted(set(rng.sample(known, min(len(known), rng.randint(0 if at == 0 else 1, 3)))))
        rewritable = [t for t in reads if tensors[t].role != "input" and (late or tensors[t].role == "activation")]
        writes = [t for t in rewritable if rng.random() < 0.25]
        after = {writer[t] for t in reads if t in writer}
        after |= {reader for t in writes for reader in readers[t]}
        if at and rng.random() < 0.1:
            after.add(rng.randrange(at))
        outputs = [
            new("a" if not late else "g", "gradient" if late and rng.random() < 0.5 else "activation",
                rng.random() < 0.15)
            for _ in range(rng.choice((0, 1, 1, 1, 2)))
        ]  # fmt: skip
        for t in reads:
            readers[t].append(at)
        for t in writes:
            writer[t], readers[t] = at, []
        made += outputs
        result.append(
            SwapOp(
                id=f"op{at}",
                inputs=tuple(reads),
                outputs=tuple(outputs),
                writes=tuple(writes),
                after=tuple(sorted(after)),
                time_ns=rng.randint(0, 9),
                scratch_bytes=rng.choice((0, 0, 2)),
            )
        )
    floor: Counter[int] = Counter({tensor.bytes for tensor in tensors})
    for op in result:
        for size, number in Counter(tensors[t].bytes for t in (*op.inputs, *op.outputs)).items():
            floor[size] = max(floor[size], number)
    least = sum(size * number for size, number in floor.items())
    whole = sum(tensor.bytes for tensor in tensors)
    reserve = rng.choice((0, 0, 3))
    share = slack if slack is not None else rng.random()
    memory = least + int(share * max(0, whole - least)) + reserve + max(op.scratch_bytes for op in result)
    return SwapProblem(
        version=1,
        machine=SwapMachine(
            memory_bytes=memory,
            in_bandwidth=UNIT // rng.choice((1, 2)),
            out_bandwidth=UNIT // rng.choice((1, 3)),
            together=together if together is not None else rng.choice(((1, 1), (5, 6), (1, 2))),
            copy_ns=rng.choice((0, 0, 2)),
        ),
        reserve_bytes=reserve,
        tensors=tuple(tensors),
        ops=tuple(result),
    )
