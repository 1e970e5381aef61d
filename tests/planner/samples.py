"""One small sound document of every kind, with most fields filled in, and hypothesis strategies over document types."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from tests.codegen.compression.compression_plans import plan_with, small_decisions, small_problem
from tests.planner.passes.aggregation.aggregation_plans import RACKS, problem_on, small_plan
from tests.planner.passes.checkpoint.checkpoint_plans import PROBLEM as CHECKPOINT_PROBLEM
from tests.planner.passes.checkpoint.checkpoint_plans import by_hand
from tests.planner.passes.index.index_models import MODEL
from tests.planner.passes.index.index_plans import DRAW as INDEX_DRAW
from tests.planner.passes.index.index_plans import PROBLEM as INDEX_PROBLEM
from tests.planner.passes.index.index_plans import small_plan as small_index_plan
from tests.planner.passes.server.server_plans import PRICES, decided
from tests.planner.passes.server.server_plans import PROBLEM as SERVER_PROBLEM
from tests.planner.passes.tiling.tiling_plans import PROBLEM as TILING_PROBLEM
from tests.planner.passes.tiling.tiling_plans import by_hand as tiled_by_hand
from treadle.planner.documents.artefact import Artefact
from treadle.planner.documents.compression_costs import (
    CompressionCosts,
    CompressorCost,
    Curve,
    DecodeCurve,
    RoutineCost,
)
from treadle.planner.documents.cost_matrix import Asymmetry, CostHost, CostMatrix, PairRate, Probing
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.hardware import (
    CopyEngine,
    Device,
    Hardware,
    Host,
    Link,
    Network,
    Nic,
    PcieSwitch,
    Switch,
)
from treadle.planner.documents.index_sets import IndexSets, TensorIndexSets
from treadle.planner.documents.job import Job, RunJob
from treadle.planner.documents.pattern import Pattern
from treadle.planner.documents.plan import Certificate, InputRef, Plan, Prediction, Provenance
from treadle.planner.documents.selection import Entry, Selection
from treadle.planner.documents.server_parts import ServerCosts, ServerDomain, ServerInterface, ServerParts
from treadle.planner.documents.sketch import (
    Contiguity,
    Hyperparameters,
    InternodeSketch,
    IntranodeSketch,
    Sketch,
    Symmetry,
)
from treadle.planner.documents.sparse_costs import SparseCosts, SparseWork
from treadle.planner.documents.sparsity import (
    FullestBlocks,
    FullestPart,
    SharedUnits,
    Sparsity,
    TensorSparsity,
    UnionCount,
    UnitPlaces,
)
from treadle.planner.documents.store import FORMS
from treadle.planner.documents.trace import Costs, Op, OpRun, Tensor, Trace
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, LinkCost, Port, Transfer
from treadle.planner.passes.collective.job import CollectiveJob
from treadle.planner.passes.fusion.decisions import FusionDecisions, Reason, Rival, StageChoice, TransformCall
from treadle.planner.passes.index.workload import IndexWorkload
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.job import MemoryJob
from treadle.planner.passes.memory.problem import Backward, BackwardNode, Forward, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.problem import PlanHop, RankedHost, RanksProblem
from treadle.planner.passes.server.keys import ServerKeys
from treadle.planner.passes.sparse.planning import plan_sparse
from treadle.planner.passes.sparse.problem import BlockCounts, SparseGradient, SparseProblem
from treadle.planner.passes.swap.decisions import PoolClass, Resident, SwapDecisions, SwapNode
from treadle.planner.passes.swap.problem import SwapMachine, SwapOp, SwapProblem, SwapTensor

TRACE = Trace(
    version=1,
    name="two ops",
    mode="train",
    source="hand",
    entry="models:tiny",
    costs=Costs(model="roofline", device="dgx1"),
    tensors=(
        Tensor(id="x", role="input", bytes=16, shape=(2, 2), stride=(2, 1), dtype="float32"),
        Tensor(id="w", role="parameter", bytes=16, shape=(2, 2), dtype="float32", name="layer.weight"),
        Tensor(id="y", role="activation", bytes=16),
        Tensor(id="v", role="activation", alias_of="y"),
        Tensor(id="g", role="gradient", gradient_of="w", storage_bytes=512),
        Tensor(id="t", role="tangent"),
    ),
    ops=(
        Op(
            id="mm",
            target="aten.mm.default",
            phase="forward",
            inputs=("x", "w"),
            outputs=("y", None),
            args=({"tensor": "x"}, {"tensor": "w"}, 1, 1.0, None, [True, "a"], {"float": "-inf"}),
            kwargs={"alpha": 0.5},
            flops=16,
            bytes_moved=48,
            time_ns=1000,
        ),
        Op(id="bw", target="aten.mm.default", phase="backward", inputs=("t", "x"), outputs=("g",), after=("mm",)),
    ),
    inputs=("x",),
    outputs=("y",),
    tangents=("t",),
    tangent_of=(0,),
    gradient_order=("g",),
    updates=(("x", "v"),),
    detached=("x",),
    evaluating=("", "layer"),
    returned={"dict": [["out", [{"tensor": "y"}]], [1, {"tuple": [None, 1.5, {"float": "inf"}]}]]},
)

HARDWARE = Hardware(
    version=1,
    name="pair",
    nodes=2,
    devices=(
        Device(model="A", kind="gpu", count=2, memory_bytes=2**34, peak_flops={"float32": 1.5e13}, launch_us=5.0),
    ),
    host=Host(cpu_cores=8, memory_bytes=2**36, cpu_model="a CPU", numa_nodes=1),
    links=(Link(src=0, dst=1, kind="nvlink", alpha_us=0.7, beta_us_per_MB=46.0, count=2),),
    switches=(Switch(name="sw", kind="nvswitch", members=(0, 1), alpha_us=0.7, beta_us_per_MB=8.0),),
    nics=(Nic(name="ib0", devices=(0, 1), pcie="plx", gpudirect=True, speed_gbps=100.0),),
    pcie=(PcieSwitch(name="root", numa=0), PcieSwitch(name="plx", parent="root", devices=(0, 1))),
    copy_engines=(CopyEngine(direction="host-to-device", bandwidth=1.2e10, alpha_us=10.0),),
    copy_together=2e10,
    network=Network(kind="ib", alpha_us=1.7, beta_us_per_MB=106.0),
    sources={"devices": "a data sheet", "network.alpha_us": "measured"},
)

SKETCH = Sketch(
    version=1,
    name="sk",
    intranode_sketch=IntranodeSketch(strategy="switch", switches=((0, 1),), switch_hyperedge_strategy=("uc-min",)),
    internode_sketch=InternodeSketch(
        strategy="relay", internode_conn={"0": (1,)}, beta_split={"0": 1}, chunk_to_relay_map=(2, 1)
    ),
    symmetry_offsets=((1, 2),),
    hyperparameters=Hyperparameters(input_chunkup=2, input_size="1MB"),
    num_nodes=2,
    contiguity=Contiguity(links=("ib",), max_run=3),
    symmetries=(Symmetry(perm=(1, 0), partition=((0, 1),)),),
)

PROBLEM = MemoryProblem(
    version=1,
    budget_bytes=1000,
    base={"parameters": 100},
    fwd=(
        ForwardNode(op="a", out_bytes=10, impls=(Forward(workspace_bytes=1, time_ns=5),), ops=("mm",)),
        ForwardNode(op="b", out_bytes=10, inputs=(0,), inplace_of=0),
    ),
    bwd=(BackwardNode(op="b'", out_grad_bytes=10, live_grad_bytes=0, impls=(Backward(needs=(0,), time_ns=7),)),),
)

_CERTIFICATE = Certificate(
    verdict="accepted",
    checker="treadle.planner.passes.memory.check",
    objective=12.0,
    lower_bound=12.0,
    unit="ns",
    argument="every op runs at least once",
    gap=0.0,
    optimal=True,
)

MEMORY_PLAN = Plan(
    version=1,
    inputs={"trace": InputRef(file="step.trace.json", digest="sha256:" + 64 * "0")},
    decisions=MemoryDecisions(
        problem=PROBLEM,
        program=(EnterStage(2), RunForward(0), RunForward(1, 0, True), EnterStage(1), RunBackward(0), Drop(0)),
        objective_ns=12,
        store_all_ns=12,
        bound_peak_bytes=130,
        exact_peak_bytes=130,
        store_all_peak_bytes=130,
    ),
    prediction=Prediction(time_us=0.012, peak_bytes=130),
    certificate=_CERTIFICATE,
    provenance=Provenance(tool="treadle 0.1.0", method="monet", options={"budget": "0.6x"}, solver_status="optimal"),
)

COLLECTIVE_PLAN = Plan(
    version=1,
    decisions=CollectiveDecisions(
        collective="allgather",
        ranks=2,
        chunkup=1,
        chunk_bytes=1024,
        input_bytes=1024,
        links=(LinkCost(0, 1, "nvlink", 700, 45), LinkCost(1, 0, "nvlink", 700, 45)),
        ports=(Port(name="nic0", links=((0, 1),)),),
        transfers=(Transfer(0, 0, 1, 0, 745, 0), Transfer(1, 1, 0, 0, 745, 0, False)),
        makespan_ns=745,
        routing_ns=745,
    ),
    prediction=Prediction(time_us=0.745),
    certificate=_CERTIFICATE,
    provenance=Provenance(tool="treadle 0.1.0", method="taccl", limit_fired=True),
)

SGD = """\
from treadle.fusion import *

N = dims("N")
g = Tensor("g", f32, [N], Local)
p = Tensor("p", f32, [N], Replicated)
a = AllReduce("+", g)
q = Update(p, p - a)
program = Execute("sgd", [g, p], [q])
"""

SWAP_PROBLEM = SwapProblem(
    version=1,
    machine=SwapMachine(
        memory_bytes=24,
        host_bytes=1000,
        in_bandwidth=10**9,
        out_bandwidth=10**9,
        together=(5, 6),
        copy_ns=1,
    ),
    reserve_bytes=1,
    tensors=(
        SwapTensor(id="w1", bytes=6, role="parameter", kept=True),
        SwapTensor(id="w2", bytes=6, role="parameter", kept=True),
        SwapTensor(id="a1", bytes=6, role="activation"),
        SwapTensor(id="a2", bytes=4, role="activation", kept=True),
    ),
    ops=(
        SwapOp(id="o1", inputs=(0,), outputs=(2,), writes=(0,), time_ns=9),
        SwapOp(id="o2", inputs=(2, 1), outputs=(3,), after=(0,), time_ns=9, scratch_bytes=1),
    ),
)

SWAP_PLAN = Plan(
    version=1,
    inputs={"problem": InputRef(file="step.problem.json", digest="sha256:" + 64 * "0")},
    decisions=SwapDecisions(
        problem=SWAP_PROBLEM,
        allocator="pool",
        order=(0, 1),
        pool=(PoolClass(object_bytes=6, count=3, address=0),),
        class_of=(1, 1),
        initial=(Resident(tensor=1, at=12),),
        final=(Resident(tensor=1, at=12),),
        nodes=(
            SwapNode(kind="in", item=0, serves=0, at=(0,)),
            SwapNode(kind="compute", item=0, serves=0, after=(0,), at=(6,)),
            SwapNode(kind="out", item=0, serves=1, after=(0, 1)),
            SwapNode(kind="compute", item=1, serves=1, after=(1, 2), at=(0,)),
        ),
        runs=(OpRun(op="o1"), OpRun(op="o2")),
        time_ns=32,
        idle_ns=14,
        in_bytes=6,
        out_bytes=6,
        peak_bytes=18,
    ),
    prediction=Prediction(time_us=0.032, peak_bytes=18),
    certificate=msgspec.structs.replace(_CERTIFICATE, objective=32.0, lower_bound=18.0, gap=0.4375, optimal=False),
    provenance=Provenance(tool="treadle 0.1.0", method="genetic", options={"seed": 0}, interrupted=True),
)

FUSION_PLAN = Plan(
    version=1,
    inputs={"hardware": InputRef(file="pair.yaml", digest="sha256:" + 64 * "0")},
    decisions=FusionDecisions(
        program=SGD,
        schedule=SGD.replace("program =", 'c = fuse("ComputationFuse", q)\nprogram ='),
        extents={"N": 6},
        parts={"N": (4, 2)},
        ranks=2,
        nodes=1,
        transforms=(TransformCall(transform="fuse", arguments={"members": ["q"], "policy": "ComputationFuse"}),),
        stages=(
            StageChoice(
                name="a", kind="allreduce", members=("a",), time_ns=70, start_ns=0, end_ns=70, protocol="LL", channels=2
            ),
            StageChoice(name="c", kind="pointwise", members=("q",), time_ns=30, start_ns=70, end_ns=100),
        ),
        time_ns=100,
        volume=6.0,
        traffic=30.0,
        state=6.0,
        considered=4,
        taken=(Reason(transform="fuse", on=("q",), why="one launch"),),
        refused=(Reason(transform="as_slice", on=("p",), why="the caller needs it", code="output", witness="q"),),
        rivals=(Rival(name="AR; C", time_ns=110, schedule=SGD),),
    ),
    prediction=Prediction(time_us=0.1),
    certificate=msgspec.structs.replace(_CERTIFICATE, objective=100.0, lower_bound=60.0, gap=0.4, optimal=False),
    provenance=Provenance(tool="treadle 0.1.0", method="enumeration"),
)

JOB = FORMS[Job](
    version=1,
    name="gpt2",
    model="model:step",
    hardware="pair",
    nodes=2,
    memory=MemoryJob(budget="0.6x"),
    collective=CollectiveJob(sketch="ring", buckets=2),
    run=RunJob(steps=3, learning_rate=0.1, seed=1),
)

ARTEFACT = Artefact(
    version=1,
    target="torch",
    plan=InputRef(file="plan.json", digest="sha256:" + 64 * "0"),
    files={"module.py": "sha256:" + 64 * "1"},
    entry="model:step",
    facts={"peak_bytes": 130, "sizes": [1, 2]},
)

PATTERN = Pattern(version=1, name="two experts", unit="4KiB", counts=((0, 2), (1, 0)))

SELECTION = Selection(
    version=1,
    collective="allgather",
    ranks=2,
    nodes=1,
    tolerance=0.05,
    sizes=(1024, 65536),
    inputs={"hardware": InputRef(file="h.yaml", digest="sha256:" + "0" * 64)},
    entries=tuple(
        Entry(
            min_bytes=low,
            max_bytes=high,
            plan=InputRef(file=f"{method}.plan.json", digest="sha256:" + "1" * 64),
            method=method,
            protocol=protocol,
            instances=1,
            predicted_us=(2.0, 4.5),
            bound_us=(1.0, 4.5),
        )
        for method, protocol, low, high in (("all-pairs", "LL", 1024, 5000), ("ring", "LL128", 5001, 65536))
    ),
)

COMPRESSION_COSTS = CompressionCosts(
    version=1,
    name="lab",
    compressors=(
        CompressorCost(
            name="dgc:0.01",
            place="host",
            encode=Curve(points=((1 << 20, 250_000), (1 << 24, 4_000_000))),
            decode=(DecodeCurve(pieces=1, points=((4096, 900),)), DecodeCurve(pieces=4, points=((4096, 3100),))),
            wire=Curve(points=((0, 4), (1000, 84))),
        ),
    ),
    routines=(RoutineCost(routine="alltoall", scope="inter", ranks=4, curve=Curve(points=((4096, 80_000),))),),
    pack=Curve(points=((4096, 2000), (1 << 20, 90_000))),
    sources={"compressors": "measured"},
)

SPARSITY = Sparsity(
    version=1,
    name="recommender",
    ranks=2,
    steps=4,
    tensors=(
        TensorSparsity(
            name="embedding.weight",
            form="coo",
            unit="row",
            units=1000,
            width=16,
            sets=8,
            occurrences=70,
            unions=(UnionCount(participants=1, mean=50, most=60), UnionCount(participants=2, mean=80, most=90)),
            shared=SharedUnits(mean=0.4, deviation=0.1, counts=(0, 1, 0, 0)),
            fullest=(FullestPart(parts=2, participants=2, mean=60),),
            blocks=(FullestBlocks(block=4, parts=2, participants=1, mean=20),),
            places=(UnitPlaces(participants=1, counts=(40, 10)),),
        ),
    ),
    sources={"tensors": "recorded"},
)
INDEX_SETS = IndexSets(
    version=1,
    name="recommender",
    tensors=(
        TensorIndexSets(
            name="embedding.weight", form="coo", unit="row", units=16, width=8, sets=(((0, 3, 3), ()), ((2,), (15, 0)))
        ),
    ),
    sources={"tensors": "recorded"},
)
SPARSE_PROBLEM = SparseProblem(
    version=1,
    name="recommender",
    machines=2,
    devices=1,
    gradients=(
        SparseGradient(
            name="embedding.weight",
            form="coo",
            unit="row",
            units=1000,
            width=16,
            occurrences=70,
            unions=(50, 80),
            even=(40, 60),
            hashed=(31, 48),
            densest=60,
            blocks=BlockCounts(size=4, push=16, pull=20),
        ),
    ),
    inter=GradientLink(alpha_us=30, beta_us_per_MB=839),
    work=SparseWork(hash_per_index=4.5, call=20_000),
)
SPARSE_COSTS = SparseCosts(version=1, name="lab", work=SparseWork(hash_per_index=4.5, add_per_entry=30, call=20_000))
COST_MATRIX = CostMatrix(
    version=1,
    name="two racks",
    hosts=(
        CostHost(name="a1", address="10.0.0.1", slots=8, position=(0, 0, 0, 0, 0, 0)),
        CostHost(name="a2", slots=8),
        CostHost(name="b1", slots=8),
    ),
    latency_us=((0, 12.5, 40), (12.5, 0, None), (41, 40, 0)),
    rates=(PairRate(0, 1, 1.25e9), PairRate(0, 2, 3e8)),
    measured_at="2026-11-28T10:00:00Z",
    probing=Probing(probes=100, percentile=10, lost=2, asymmetry=Asymmetry(median=1.1, largest=1.4, pair=(0, 2))),
    sources={"latency_us": "measured"},
)

RANKS_PROBLEM = RanksProblem(
    version=1,
    hosts=(RankedHost(name="node-a", slots=2), RankedHost(name="node-b", slots=2)),
    latency_ns=((0, 22_000), (22_000, 0)),
    ns_per_MiB=((0, 400_000), (400_000, 0)),
    size_bytes=2**20,
    algorithm="plan",
    hops=(PlanHop(0, 1, 2**20), PlanHop(1, 0, 2**20, (0,))),
)
RANKS_PLAN = Plan(
    version=1,
    inputs={"problem": InputRef(file="problem.json", digest="sha256:" + 64 * "0")},
    decisions=RanksDecisions(
        problem=RANKS_PROBLEM,
        order=(0, 1),
        cost_ns=844_000,
        tie_ns=0,
        original_ns=844_000,
        median_ns=844_000,
        worst=(0, 1),
        worst_ns=844_000,
        time_ns=844_000,
    ),
    prediction=Prediction(time_us=844.0),
    certificate=msgspec.structs.replace(_CERTIFICATE, objective=844_000.0, lower_bound=844_000.0),
    provenance=Provenance(tool="treadle 0.1.0", method="every order"),
)

SERVER_PARTS = ServerParts(
    version=1,
    name="two cards",
    domains=(ServerDomain(cores=14), ServerDomain(cores=14)),
    interfaces=tuple(
        ServerInterface(name=name, domain=domain, link_gbps=56.0, encoding=0.97, slot_GBps=7.0, address=f"{name}.rack")
        for domain, name in enumerate(("left", "right"))
    ),
    memory_bytes=2**37,
    memory_GBps=120.0,
    bridge_GBps=80.0,
    between_GBps=30.5,
    cached_extra=0.2,
    optimize_us_per_MB={"nesterov": 150.0},
    costs={"rdma": ServerCosts(receive_us_per_MB=1.0, add_us_per_MB=30.0, send_us_per_MB=1.5, message_us=0.5)},
    sources={"bridge_GBps": "measured", "memory_GBps": "assumed"},
)
_SERVER_DECISIONS = decided(chunk_bytes=65536, policy="key-by-interface")
SERVER_PLAN = Plan(
    version=1,
    inputs={"problem": InputRef(file="problem.json", digest="sha256:" + 64 * "0")},
    decisions=_SERVER_DECISIONS,
    prediction=Prediction(time_us=_SERVER_DECISIONS.time_ns / 1000),
    certificate=msgspec.structs.replace(
        _CERTIFICATE, objective=float(_SERVER_DECISIONS.time_ns), lower_bound=float(_SERVER_DECISIONS.time_ns)
    ),
    provenance=Provenance(tool="treadle 0.1.0", method="longest processing time first"),
)
_CHECKPOINT_DECISIONS = by_hand()
CHECKPOINT_PLAN = Plan(
    version=1,
    inputs={"problem": InputRef(file="problem.json", digest="sha256:" + 64 * "0")},
    decisions=_CHECKPOINT_DECISIONS,
    prediction=Prediction(time_us=_CHECKPOINT_DECISIONS.time_ns / 1000),
    certificate=msgspec.structs.replace(
        _CERTIFICATE, objective=float(_CHECKPOINT_DECISIONS.time_ns), lower_bound=float(_CHECKPOINT_DECISIONS.time_ns)
    ),
    provenance=Provenance(tool="treadle 0.1.0", method="groups and ring"),
)
TILING_PLAN = Plan(
    version=1,
    inputs={"problem": InputRef(file="problem.json", digest="sha256:" + 64 * "0")},
    decisions=tiled_by_hand(),
    prediction=Prediction(time_us=0.024, peak_bytes=120),
    certificate=msgspec.structs.replace(_CERTIFICATE, objective=24.0, lower_bound=24.0),
    provenance=Provenance(tool="treadle 0.1.0", method="exact"),
)

DOCUMENTS = {
    "sparsity": SPARSITY,
    "index-sets": INDEX_SETS,
    "sparse-costs": SPARSE_COSTS,
    "cost-matrix": COST_MATRIX,
    "trace": TRACE,
    "hardware": HARDWARE,
    "sketch": SKETCH,
    "pattern": PATTERN,
    "memory-problem": PROBLEM,
    "memory plan": MEMORY_PLAN,
    "collective plan": COLLECTIVE_PLAN,
    "swap-problem": SWAP_PROBLEM,
    "swap plan": SWAP_PLAN,
    "fusion plan": FUSION_PLAN,
    "job": JOB,
    "artefact": ARTEFACT,
    "selection": SELECTION,
    "compression-costs": COMPRESSION_COSTS,
    "compression-problem": small_problem(),
    "compression plan": plan_with(small_decisions()),
    "sparse-problem": SPARSE_PROBLEM,
    "sparse plan": plan_sparse(SPARSE_PROBLEM),
    "ranks-problem": RANKS_PROBLEM,
    "ranks plan": RANKS_PLAN,
    "aggregation-problem": problem_on(RACKS, connections=2),
    "aggregation plan": small_plan(),
    "server-parts": SERVER_PARTS,
    "index-model": MODEL,
    "server-keys": ServerKeys(version=1, name="three layers", keys=SERVER_PROBLEM.keys, compute_ns=1_000_000),
    "server-prices": PRICES,
    "server-problem": SERVER_PROBLEM,
    "server plan": SERVER_PLAN,
    "checkpoint-problem": CHECKPOINT_PROBLEM,
    "checkpoint plan": CHECKPOINT_PLAN,
    "tiling-problem": TILING_PROBLEM,
    "tiling plan": TILING_PLAN,
    "index-workload": IndexWorkload(version=1, name="half of each", draw=INDEX_DRAW),
    "index-problem": INDEX_PROBLEM,
    "index plan": small_index_plan(),
}

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


def plain_values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Plain values that fit `kind` as far as types and ranges go; cross references are arbitrary."""
    match kind:
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return st.integers(kind.ge, kind.le if kind.lt is None else kind.lt - 1)
        case inspect.FloatType():
            least = kind.ge if kind.ge is not None else kind.gt
            return st.floats(least, kind.le, exclude_min=kind.gt is not None).map(lambda number: number + 0.0)
        case inspect.StrType():
            if kind.pattern is not None:
                return st.from_regex(kind.pattern, fullmatch=True).filter(str.isascii)
            return st.text(st.characters(exclude_categories=["Cs"]), min_size=kind.min_length or 0, max_size=12)
        case inspect.LiteralType():
            return st.sampled_from(sorted(kind.values, key=str))
        case inspect.UnionType():
            return st.one_of([plain_values(option) for option in kind.types])
        case inspect.DictType():
            return st.dictionaries(plain_values(kind.key_type), plain_values(kind.value_type), max_size=2)
        case inspect.VarTupleType():
            least = kind.min_length or 0
            return st.lists(plain_values(kind.item_type), min_size=least, max_size=max(2, least))
        case inspect.TupleType():
            return st.tuples(*(plain_values(item) for item in kind.item_types)).map(list)
        case inspect.StructType():
            return _struct_values(kind)
    return JSON_VALUES


@cache
def values_of(form: type) -> st.SearchStrategy[Any]:
    """`plain_values` of a type, made once: that of all plans has thousands of parts."""
    return plain_values(inspect.type_info(form))


def _struct_values(kind: inspect.StructType) -> st.SearchStrategy[Any]:
    if kind.array_like:
        head = [st.just(kind.tag)] if kind.tag is not None else []
        return st.tuples(*head, *(plain_values(field.type) for field in kind.fields)).map(list)
    required = {field.encode_name: plain_values(field.type) for field in kind.fields if field.required}
    if kind.tag_field is not None:
        required[kind.tag_field] = st.just(kind.tag)
    optional = {field.encode_name: plain_values(field.type) for field in kind.fields if not field.required}
    return st.fixed_dictionaries(required, optional=optional)
