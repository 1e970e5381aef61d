"""Compression problems from traces, hardware profiles, costs and selections."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.conftest import GOLDEN
from tests.planner.passes.compression.plans import cost, curve
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.compression_costs import CompressionCosts, CompressorCost, RoutineCost
from treadle.planner.documents.hardware import Hardware, OtherNodes, scaled
from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.selection import Entry, Selection
from treadle.planner.documents.trace import Costs, Op, Tensor, Trace
from treadle.planner.documents.transports import CpuTransport, MessageCost, Transports
from treadle.planner.errors import InputError
from treadle.planner.machine.gradient_links import inter_link, intra_link
from treadle.planner.machine.planned_allreduce import planned_curve
from treadle.planner.passes.compression.extract import gradients_of, problem_of

COSTS = CompressionCosts(
    version=1,
    name="bench",
    compressors=(cost("dgc", "device", 200), cost("dgc:0.01", "host", 500), cost("efsignsgd", "device", 90)),
    routines=tuple(
        RoutineCost(routine="allgather", scope="inter", ranks=ranks, curve=curve((10, 50))) for ranks in (2, 4)
    ),
    pack=curve((0, 10), (1000, 30)),
)


def tensor(key: str, **fields: Any) -> Tensor:
    return Tensor(id=key, **{"role": "activation", "bytes": 40, "dtype": "float32", **fields})


def op(key: str, phase: Any, outputs: str, time_ns: int | None = 5, **fields: Any) -> Op:
    return Op(id=key, target=f"t.{key}", phase=phase, outputs=tuple(outputs.split()), time_ns=time_ns, **fields)


STEP = Trace(
    version=1,
    name="net",
    mode="train",
    source="torch-aot",
    costs=Costs(model="measured"),
    tensors=(
        tensor("w", role="parameter", name="layer.w"),
        tensor("b", role="parameter", name="layer.b"),
        tensor("h"),
        tensor("s"),
        tensor("dw", gradient_of="w"),
        tensor("dwt", alias_of="dw"),
        tensor("db", gradient_of="b", bytes=8),
        tensor("dx"),
        tensor("new"),
    ),
    ops=(
        op("forward", "forward", "h", 100),
        op("spare", "forward", "s", 1000, intermediate_of="forward"),
        op("first", "backward", "db", 7),
        op("second", "backward", "dw", 30),
        op("view", "backward", "dwt", None, inputs=("dw",)),
        op("input", "backward", "dx", 11),
        op("adam", "optimizer", "new", 3),
    ),
    gradient_order=("db", "dw"),
)


def hardware(name: str, nodes: int | None = None) -> Hardware:
    profile = store.load(resources.locate("profiles", name), Hardware)
    return profile if nodes is None else scaled(profile, nodes)


def test_gradients_are_ready_when_their_operators_end_and_all_else_is_before() -> None:
    forward_ns, gradients = gradients_of(STEP)
    assert forward_ns == 100 + 11 + 3
    assert [(each.name, each.elements, each.backward_ns) for each in gradients] == [
        ("layer.b", 2, 7),
        ("layer.w", 10, 30),
    ]


def test_a_captured_step_keeps_its_whole_time() -> None:
    step = store.load(GOLDEN / "inputs" / "adam.json", Trace)
    step = replace(step, ops=tuple(replace(each, time_ns=10) for each in step.ops), costs=Costs(model="measured"))
    forward_ns, gradients = gradients_of(step)
    once = [each for each in step.ops if each.intermediate_of is None]
    backward = [each for each in once if each.phase == "backward"]
    assert forward_ns + sum(each.backward_ns for each in gradients) == 10 * len(once)
    assert 0 < sum(each.backward_ns for each in gradients) <= 10 * len(backward)
    parameters = {each.name: each for each in step.tensors if each.role == "parameter"}
    assert {each.name: 4 * each.elements for each in gradients} == {
        name: each.bytes for name, each in parameters.items()
    }


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (replace(STEP, gradient_order=()), "found no gradients of parameters, expected a trace of a training step"),
        (
            replace(STEP, tensors=tuple(replace(t, dtype="bfloat16") if t.id == "dw" else t for t in STEP.tensors)),
            "found a gradient of layer.w in bfloat16, expected float32, which compressors encode",
        ),
        (
            replace(STEP, ops=tuple(replace(each, time_ns=None) for each in STEP.ops)),
            r"\$\.ops\[0\]\.time_ns: op 'forward' has no time; capture with `--hardware` or `--measure`",
        ),
        (replace(STEP, source="memory-snapshot"), "found a memory snapshot"),
    ],
)
def test_traces_without_what_is_needed_are_refused(trace: Trace, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gradients_of(trace)


def link_of(alpha_us: float, beta: float) -> tuple[float, float]:
    return alpha_us, pytest.approx(beta, rel=1e-4)


def test_links_are_those_of_a_rank_and_of_a_node() -> None:
    """GPUs reach 0.8 of a link if the profile does not say otherwise, gloo what its profile has measured."""
    links = {
        name: (intra_link(profile), inter_link(profile))
        for name, profile in (
            ("cluster-10gbe", hardware("cluster-10gbe")),
            ("cpu-2x2", hardware("cpu-2x2")),
            ("hosts-2x2", hardware("hosts-2x2")),
            ("ndv2", hardware("ndv2", 2)),
            ("dgx1", hardware("dgx1", 2)),
        )
    }
    found = {name: [(each.alpha_us, each.beta_us_per_MB) for each in pair] for name, pair in links.items()}
    assert found == {
        "cluster-10gbe": [link_of(5, 80.6597 / 0.8), link_of(30, 838.861 / 0.8)],
        "cpu-2x2": [link_of(79.1, 368), link_of(79.1, 368 / 2)],
        "hosts-2x2": [link_of(1, 41.943), link_of(30, 838.861)],
        "ndv2": [link_of(0.7, 46 / 6 / 0.8), link_of(1.7, 106 / 0.8)],
        "dgx1": [link_of(0.7, 46 / 6 / 0.8), link_of(1.7, 106 / 4 / 0.8)],
    }


def test_processes_spend_their_own_time_on_messages() -> None:
    memory = MessageCost(message_us=2, copy_us_per_MB=40, sum_us_per_MB=60, latency_us=3)
    tcp = replace(memory, latency_us=13)
    cpu = CpuTransport(call_us=9, step_us=1, copy_us_per_MB=1, sum_us_per_MB=1, memory=memory, tcp=tcp, cores=2,
                       link_efficiency=0.5)  # fmt: skip
    profile = replace(hardware("hosts-2x2"), transports=Transports(cpu=cpu))
    inside, between = intra_link(profile), inter_link(profile)
    assert (inside.alpha_us, inside.beta_us_per_MB) == (1 + 1 + 3 + 4, 100)
    assert (between.alpha_us, between.beta_us_per_MB) == (30 + 1 + 13 + 4, pytest.approx(2 * 838.861))


def test_unequal_nodes_and_uplinks_are_refused() -> None:
    profile = hardware("hosts-2x2")
    with pytest.raises(InputError, match=r"\$\.other_nodes: found unequal nodes, expected equal ones"):
        problem_of(STEP, replace(profile, other_nodes=(OtherNodes(),)), COSTS, ["dgc"])
    with pytest.raises(InputError, match="found uplinks, expected none"):
        inter_link(hardware("racks-2x4"))


def test_a_problem_has_the_costs_of_its_compressors_and_routines_of_its_ranks() -> None:
    problem = problem_of(STEP, hardware("hosts-2x2"), COSTS, ["dgc:0.010"])
    assert (problem.machines, problem.devices, problem.pack) == (2, 2, COSTS.pack)
    assert [(each.name, each.place) for each in problem.compressors] == [("dgc", "device"), ("dgc:0.01", "host")]
    assert [each.ranks for each in problem.routines] == [2]
    assert problem.intra is not None


def test_one_node_has_no_link_to_others_and_one_rank_none_at_all() -> None:
    problem = problem_of(STEP, hardware("ndv2"), COSTS, ["efsignsgd"])
    assert (problem.machines, problem.devices, problem.inter) == (1, 8, None)
    profile = hardware("hosts-2x2")
    single = replace(profile, nodes=1, devices=(replace(profile.devices[0], count=1),), links=(), network=None, nics=())
    alone = problem_of(STEP, single, COSTS, ["dgc"])
    assert (alone.ranks, alone.intra, alone.inter) == (1, None, None)


def test_a_compressor_without_costs_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"found dgc:0\.05, expected one with costs in bench: dgc:0\.01, efsignsgd; "):
        problem_of(STEP, hardware("hosts-2x2"), COSTS, ["dgc:0.05"])
    other = CompressorCost(
        name="mine", encode=curve((1, 2)), decode=COSTS.compressors[0].decode, wire=curve((1, 4), (10, 10))
    )
    costs = replace(COSTS, compressors=(other,))
    assert problem_of(STEP, hardware("hosts-2x2"), costs, ["mine"]).compressors == (other,)


def selection(ranks: int = 4) -> Selection:
    ranges = [(1, 1000, (2.0, 9.0)), (1001, 5000, (8.5, 20.0)), (5001, 5001, (20.5, 20.5))]
    entries = tuple(
        Entry(
            min_bytes=low, max_bytes=high, plan=InputRef(file="a.json", digest="sha256:" + "0" * 64), method="direct",
            protocol="Simple", instances=1, predicted_us=times, bound_us=(0, 0),
        )
        for low, high, times in ranges
    )  # fmt: skip
    return Selection(
        version=1, collective="allreduce", ranks=ranks, nodes=2, tolerance=0, sizes=(1,), inputs={}, entries=entries
    )


def test_planned_allreduces_are_a_curve_over_sizes() -> None:
    found = planned_curve(selection(), hardware("hosts-2x2"))
    assert found.points == ((1, 2000), (1000, 9000), (1001, 9000), (5000, 20_000), (5001, 20_500))
    assert list(found.problems_at("$")) == []
    with pytest.raises(InputError, match="found plans for allreduce of 8 ranks on 2 nodes, expected allreduce of 4 "):
        planned_curve(selection(8), hardware("hosts-2x2"))
