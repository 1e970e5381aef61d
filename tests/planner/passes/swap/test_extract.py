"""Swap problems from traces: storages, roles, who waits for whom; machines from hardware profiles."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.planner.passes.swap.cases import machine
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import CopyEngine, Device, Hardware, Host
from treadle.planner.documents.trace import Costs, Op, Tensor, Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.swap.extract import machine_of, problem_from_trace
from treadle.planner.passes.swap.problem import SwapOp, SwapProblem, SwapTensor

MACHINE = machine(1000)


def tensor(key: str, role: Any = "activation", size: int | None = 8, **fields: Any) -> Tensor:
    return Tensor(id=key, role=role, bytes=size, **fields)


def op(key: str, inputs: str = "", outputs: str = "", **fields: Any) -> Op:
    fields = {"time_ns": 5, "phase": "forward", **fields}
    return Op(id=key, target=f"t.{key}", inputs=tuple(inputs.split()), outputs=tuple(outputs.split()), **fields)


def trace_of(tensors: list[Tensor], ops: list[Op], **fields: Any) -> Trace:
    fields = {"mode": "train", **fields}
    return Trace(
        version=1, name="net", source="torch-aot", costs=Costs(model="measured"), tensors=tuple(tensors),
        ops=tuple(ops), **fields,
    )  # fmt: skip


def by_id(problem: SwapProblem) -> tuple[dict[str, SwapTensor], dict[str, SwapOp]]:
    return {t.id: t for t in problem.tensors}, {o.id: o for o in problem.ops}


def names(problem: SwapProblem, numbers: tuple[int, ...]) -> list[str]:
    return [problem.tensors[number].id for number in numbers]


def waits(problem: SwapProblem, key: str) -> list[str]:
    _, ops = by_id(problem)
    return [problem.ops[number].id for number in ops[key].after]


STEP = trace_of(
    [
        tensor("x", "input", 16),
        tensor("w", "parameter", name="w"),
        tensor("m", "buffer", name="m"),
        tensor("dy", "tangent", 4),
        tensor("h"),
        tensor("hv", alias_of="h"),
        tensor("y", "output", 4, storage_bytes=12),
        tensor("m2", "activation"),
        tensor("gw", "gradient", gradient_of="w"),
        tensor("gx", "gradient", 16, gradient_of="x"),
        tensor("unused", "parameter"),
    ],
    [
        op("mul", "x w", "h", workspace_bytes=3),
        op("view", "h", "hv", time_ns=None),
        op("stat", "hv m", "m2"),
        op("sum", "hv", "y", time_ns=7),
        op("bw", "dy hv", "gw", phase="backward"),
        op("bx", "dy w", "gx", phase="backward"),
        op("sgd", "w gw", phase="optimizer", mutates=("w",)),
    ],
    inputs=("x",),
    outputs=("y",),
    tangents=("dy",),
    updates=(("m", "m2"),),
)


def test_a_training_step_becomes_storages_and_operators() -> None:
    problem = problem_from_trace(STEP, MACHINE, reserve_bytes=11)
    tensors, ops = by_id(problem)
    assert list(ops) == ["mul", "stat", "sum", "bw", "bx", "sgd"]
    assert (problem.machine, problem.reserve_bytes, problem.scratch_bytes) == (MACHINE, 11, 3)
    assert {key: (t.bytes, t.role, t.kept) for key, t in tensors.items()} == {
        "x": (16, "input", False),
        "w": (16, "parameter", True),
        "h": (16, "activation", False),
        "m": (16, "state", True),
        "m2": (16, "activation", True),  # the new value of a buffer
        "y": (16, "activation", True),  # the whole storage of an output
        "dy": (16, "input", False),
        "gw": (16, "gradient", False),  # the optimizer takes it
        "gx": (16, "gradient", True),  # no op reads it
    }
    assert names(problem, ops["stat"].inputs) == ["h", "m"]  # through the view
    assert names(problem, ops["sgd"].writes) == ["w"]
    assert (ops["sum"].time_ns, ops["mul"].scratch_bytes) == (7, 3)
    assert store.loads(store.dumps(problem), "here", SwapProblem) == problem


def test_final_gradients_are_kept_without_an_optimizer() -> None:
    tensors, _ = by_id(problem_from_trace(replace(STEP, ops=STEP.ops[:-1]), MACHINE))
    assert tensors["gw"].kept


def test_a_write_waits_for_readers_and_readers_wait_for_the_write() -> None:
    trace = trace_of(
        [tensor("w", "parameter"), tensor("v", "parameter", alias_of="w"), *(tensor(f"a{n}") for n in range(4))],
        [
            op("r1", "w", "a0"),
            op("r2", "v", "a1"),
            op("w1", "w a0", mutates=("w",)),
            op("r3", "v", "a2"),
            op("w2", "v", mutates=("v",)),
            op("w3", "w", mutates=("w",)),
            op("r4", "w", "a3"),
        ],
    )
    problem = problem_from_trace(trace, MACHINE)
    assert {o.id: waits(problem, o.id) for o in problem.ops} == {
        "r1": [],
        "r2": [],
        "w1": ["r1", "r2"],
        "r3": ["w1"],
        "w2": ["w1", "r3"],
        "w3": ["w2"],
        "r4": ["w3"],
    }
    assert {o.id: names(problem, o.writes) for o in problem.ops if o.writes} == {"w1": ["w"], "w2": ["w"], "w3": ["w"]}


def test_activations_are_rewritten_in_place_too() -> None:
    trace = trace_of(
        [tensor("x", "input"), tensor("a"), tensor("b"), tensor("a2", alias_of="a")],
        [op("f", "x", "a"), op("g", "a", "b"), op("relu_", "a", "a2", mutates=("a",)), op("h", "a2 b")],
    )
    problem = problem_from_trace(trace, MACHINE)
    _, ops = by_id(problem)
    assert names(problem, ops["relu_"].writes) == ["a"]
    assert ops["relu_"].outputs == ()
    assert waits(problem, "relu_") == ["g"]
    assert waits(problem, "h") == ["relu_"]


def test_random_ops_keep_their_order() -> None:
    trace = trace_of(
        [tensor("x", "input"), tensor("a"), tensor("b"), tensor("c")],
        [op("d1", "x", "a", random=True), op("f", "x", "b"), op("d2", "x", "c", random=True)],
    )
    assert waits(problem_from_trace(trace, MACHINE), "d2") == ["d1"]


def test_explicit_waits_pass_through_views_and_optional_ops() -> None:
    trace = trace_of(
        [tensor("x", "input"), tensor("a"), tensor("av", alias_of="a"), tensor("o"), tensor("b")],
        [
            op("f", "x", "a"),
            op("view", "a", "av", time_ns=None),
            op("optional", "av", "o", intermediate_of="f", time_ns=None),
            op("g", "x", "b", after=("view",)),
            op("h", "b", after=("optional",)),
        ],
    )
    problem = problem_from_trace(trace, MACHINE)
    assert [o.id for o in problem.ops] == ["f", "g", "h"]
    assert waits(problem, "g") == ["f"]
    assert waits(problem, "h") == ["f"]
    assert "o" not in by_id(problem)[0]


def test_parameters_of_an_inference_trace_are_never_written() -> None:
    trace = trace_of(
        [tensor("x", "input"), tensor("w", "parameter"), tensor("y", "output")],
        [op("f", "x w", "y")],
        mode="infer",
        inputs=("x",),
        outputs=("y",),
    )
    problem = problem_from_trace(trace, MACHINE)
    assert not any(o.writes for o in problem.ops)
    assert [t.kept for t in problem.tensors] == [False, True, True]


def test_an_output_that_is_an_input_or_a_parameter_needs_nothing_more() -> None:
    trace = trace_of([tensor("x", "input"), tensor("w", "parameter"), tensor("a")], [op("f", "x w", "a")],
                     outputs=("x", "w"))  # fmt: skip
    assert [(t.role, t.kept) for t in problem_from_trace(trace, MACHINE).tensors] == [
        ("input", False),
        ("parameter", True),
        ("activation", False),
    ]


def test_what_an_imported_trace_reads_without_a_role_may_be_wanted_again() -> None:
    trace = trace_of([tensor("u", "unknown"), tensor("a", "unknown")], [op("f", "u", "a", phase="unknown")])
    assert [(t.role, t.kept) for t in problem_from_trace(trace, MACHINE).tensors] == [
        ("state", True),
        ("activation", False),
    ]


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (
            trace_of([tensor("x", "input"), tensor("a")], [op("f", "x", "a", time_ns=None)]),
            r"net: \$\.ops\[0\]\.time_ns: op 'f' has no time; expected one for every op, where others have",
        ),
        (
            replace(
                trace_of([tensor("x", "input"), tensor("a")], [op("f", "x", "a", time_ns=None)]),
                costs=Costs(model="absent"),
            ),
            r"net: \$\.ops\[0\]\.time_ns: op 'f' has no time; name a profile with --hardware",
        ),
        (
            trace_of([tensor("x", "input"), tensor("a", size=None)], [op("f", "x", "a")]),
            r"net: \$\.tensors\[1\]\.bytes: tensor 'a' has no size, expected the bytes of every tensor",
        ),
        (
            trace_of([], [op("kernel"), op("kernel2")]),
            r"net: \$\.ops: found no op that reads or makes a tensor, expected a trace with tensors",
        ),
        (
            trace_of([tensor("x", "input")], [op("f", "x", mutates=("x",))]),
            r"net: \$\.ops\[0\]\.mutates: op 'f' writes into the input 'x', expected a buffer for what lives on",
        ),
        (
            trace_of([tensor("a"), tensor("b")], [op("f", "a", "b"), op("g", "", "a")]),
            r"net: \$\.ops\[0\]\.inputs\[0\]: as a swap problem: found 0, which nothing has made yet",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(trace: Trace, words: str) -> None:
    with pytest.raises(InputError, match=words):
        problem_from_trace(trace, MACHINE)


def random_trace(rng: random.Random) -> Trace:
    """Ops that read, make, view and overwrite storages at random."""
    tensors = [tensor("x", "input"), tensor("w", "parameter"), tensor("v", "buffer")]
    ops: list[Op] = []
    for at in range(rng.randint(4, 9)):
        reads = rng.sample([t.id for t in tensors], rng.randint(1, min(3, len(tensors))))
        kind = rng.choice(["view", "make", "make", "write", "make and write"])
        mutable = [key for key in reads if key != "x" and not key.startswith("xv")]
        mutates = tuple(mutable[:1]) if "write" in kind else ()
        outputs = ""
        if kind == "view":
            reads = reads[:1]
            prefix = "xv" if reads[0].startswith("x") else "t"
            outputs = f"{prefix}{at}"
            tensors.append(tensor(outputs, alias_of=reads[0]))
        elif "make" in kind:
            outputs = f"t{at}"
            tensors.append(tensor(outputs))
        ops.append(op(f"op{at}", " ".join(reads), outputs, mutates=mutates, random=rng.random() < 0.3))
    return trace_of(tensors, ops)


@pytest.mark.parametrize("seed", range(60))
def test_every_allowed_order_computes_the_same(seed: int) -> None:
    """Values are terms: an op's results are its name and the values it read."""
    rng = random.Random(seed)
    problem = problem_from_trace(random_trace(rng), MACHINE)
    maker = {t: at for at, o in enumerate(problem.ops) for t in o.outputs}

    def computed(order: list[int]) -> list[int]:
        value = [hash(("start", at)) for at in range(len(problem.tensors))]
        for at in order:
            read = tuple(value[t] for t in problem.ops[at].inputs)
            for t in (*problem.ops[at].outputs, *problem.ops[at].writes):
                value[t] = hash((at, t, read))
        return value

    expected = computed(list(range(len(problem.ops))))
    for _ in range(20):
        order: list[int] = []
        while len(order) < len(problem.ops):
            ready = [
                at
                for at, o in enumerate(problem.ops)
                if at not in order
                and all(before in order for before in o.after)
                and all(maker[t] in order for t in o.inputs if t in maker)
            ]
            order.append(rng.choice(ready))
        assert computed(order) == expected


# Machines


def profile(**fields: Any) -> Hardware:
    engines = (
        CopyEngine(direction="host-to-device", bandwidth=1.2e10, alpha_us=10.0),
        CopyEngine(direction="device-to-host", bandwidth=1.1e10, alpha_us=7.5),
    )
    default: dict[str, Any] = {
        "devices": (Device(model="cpu", kind="cpu", count=1), Device(model="A", kind="gpu", count=1, memory_bytes=99)),
        "host": Host(memory_bytes=77),
        "copy_engines": engines,
    }
    return Hardware(version=1, name="box", nodes=1, **{**default, **fields})


def test_a_machine_is_the_first_gpu_and_its_copies() -> None:
    found = machine_of(profile(copy_together=2e10))
    assert (found.memory_bytes, found.host_bytes, found.copy_ns) == (99, 77, 10_000)
    assert (found.in_bandwidth, found.out_bandwidth, found.together) == (12 * 10**9, 11 * 10**9, (20, 23))
    assert machine_of(profile()).together == (1, 1)
    assert machine_of(profile(copy_together=1e12)).together == (1, 1)
    other = machine_of(profile(), memory_bytes=5, host_bytes=6)
    assert (other.memory_bytes, other.host_bytes) == (5, 6)


def test_the_share_of_the_bus_has_a_small_denominator() -> None:
    slow, whole = machine_of(profile(copy_together=1.8123456789e10)).together
    assert whole <= 1000
    assert slow / whole == pytest.approx(1.8123456789e10 / 2.3e10, abs=1e-3)


def test_the_testbed_of_the_source_ships() -> None:
    found = machine_of(store.load(resources.locate("profiles", "p3-v100-16gb"), Hardware))
    assert found.memory_bytes == 16 * 2**30
    assert found.host_bytes == 61 * 2**30
    assert (found.in_bandwidth, found.out_bandwidth, found.together) == (12 * 10**9, 12 * 10**9, (5, 6))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"devices": (Device(model="A", kind="gpu", count=1),)},
            r"box: \$\.devices\[0\]\.memory_bytes: found nothing, expected the device's bytes; give them with --dev",
        ),
        (
            {"copy_engines": (CopyEngine(direction="host-to-device", bandwidth=1e10),)},
            r"box: \$\.copy_engines: found no engine for device-to-host copies, expected one with its bandwidth; measu",
        ),
        (
            {"copy_together": 5e9},
            r"box: \$\.copy_together: found 5e\+09, expected at least 1\.15e\+10, half of the sum of both directions",
        ),
    ],
)
def test_a_profile_that_lacks_something_says_what_helps(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        machine_of(profile(**fields))
