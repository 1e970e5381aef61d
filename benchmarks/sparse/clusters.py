"""The testbeds of "Zen: Near-Optimal Sparse Tensor Synchronization for Distributed DNN Training", section 5.1, as
prices of exchanges, and the speed-ups that were measured on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from benchmarks.sparse.traces import BERT, BLOCK, DEEPFM, LSTM, NMT, Model, fullest
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.sparse_costs import SparseWork
from treadle.planner.passes.sparse.decided import decided
from treadle.planner.passes.sparse.hashing import fullest_hashed
from treadle.planner.passes.sparse.problem import VERSION, BlockCounts, SparseGradient, SparseProblem

MACHINES, DEVICES = 16, 8
MIB = 1 << 20
NVLINK = (3, 1200)
WORK = SparseWork(
    scan_per_value=0.005,
    coalesce_per_value=0.02,
    hash_per_index=0.1,
    extract_per_word=0.01,
    gather_per_value=0.02,
    add_per_value=0.03,
    bitmap_per_unit=0.001,
    write_per_value=0.01,
    call=50_000,
)
"""Of a GPU that moves about 900 GB/s; assumed: a pass over memory once or twice, random words at a tenth of it."""


@dataclass(frozen=True)
class Cluster:
    """`inter`: alpha in us, and Gbit/s of a machine. Alphas are assumed."""

    name: str
    inter: tuple[float, float]

    @property
    def notes(self) -> tuple[str, ...]:
        return (
            f"{MACHINES} machines with {DEVICES} GPUs: NVLink {NVLINK[1]} Gbit/s a GPU, {self.inter[1]:g} Gbit/s a "
            "machine; rates of kernels are assumed (benchmarks/sparse/clusters.py); units are elements",
        )


SLOW = Cluster("25 Gbps TCP", (30, 25))
FAST = Cluster("100 Gbps RDMA", (5, 100))
CLUSTERS = {cluster.name: cluster for cluster in (SLOW, FAST)}
Pair = tuple[str, str]
SPEEDUPS: dict[str, dict[Pair, float]] = {
    "LSTM": {("zen", "dense"): 6.77, ("balanced", "dense"): 4.97},
    "DeepFM": {("zen", "dense"): 2.10},
    "NMT": {("zen", "dense"): 1.97},
    "BERT": {("zen", "dense"): 3.0, ("balanced", "dense"): 2.39},
}
"""Of communication of embeddings with 16 machines and 25 Gbps; balanced: hashed parts with COO both ways."""
MOST: dict[Pair, float] = {("omnireduce", "dense"): 1.58, ("zen", "sparcml"): 1.82, ("zen", "omnireduce"): 4.09}
"""The most of any model, likewise."""
THROUGHPUTS: dict[tuple[Model, str], tuple[float, str, float]] = {
    (LSTM, SLOW.name): (3.1, "sparcml", 1.67),
    (BERT, SLOW.name): (1.13, "omnireduce", 1.07),
    (DEEPFM, FAST.name): (1.46, "omnireduce", 1.34),
    (NMT, FAST.name): (1.45, "omnireduce", 1.39),
}
"""Training with Zen over AllReduce, the best baseline, and over that."""
BASELINES = ("dense", "agsparse", "sparcml", "sparse-ps", "omnireduce")


@cache
def priced(model: Model, cluster: Cluster) -> dict[str, int]:
    """ns of exchanging the model's embedding by each scheme."""
    problem = SparseProblem(
        version=VERSION,
        name=f"{model.name}, {cluster.name}",
        machines=MACHINES,
        devices=DEVICES,
        gradients=(_gradient(model),),
        intra=_link(*NVLINK),
        inter=_link(*cluster.inter),
        work=WORK,
    )
    return {cost.scheme: cost.time_ns for cost in decided(problem).gradients[0].costs}


def _gradient(model: Model) -> SparseGradient:
    """Elements of one device of each node. Its devices share what is not zero evenly, as the paper assumes: the fullest
    part is that of MACHINES ranges of the whole, not of ranges within the fullest device's."""
    shard = -(-model.rows * model.width // DEVICES)
    nodes = range(1, MACHINES + 1)
    present = [model.present(DEVICES * node) for node in nodes]
    unions = tuple(round(float(chances.mean()) * shard) for chances in present)
    even = tuple(
        round(fullest(chances, MACHINES) / float(chances.sum()) * union)
        for chances, union in zip(present, unions, strict=True)
    )
    return SparseGradient(
        name="embedding",
        form="dense",
        unit="element",
        units=model.rows * model.width,
        width=1,
        occurrences=unions[0],
        unions=unions,
        even=even,
        hashed=tuple(fullest_hashed(union, MACHINES) for union in unions),
        densest=unions[0],
        blocks=BlockCounts(size=BLOCK, push=even[0] // BLOCK, pull=even[-1] // BLOCK),
    )


def _link(alpha_us: float, gigabits: float) -> GradientLink:
    return GradientLink(alpha_us=alpha_us, beta_us_per_MB=8 * MIB / (1000 * gigabits))


@dataclass(frozen=True)
class Throughput:
    """Speed-ups of an iteration with Zen; `computing_ms` is what makes the one over AllReduce the published one, at
    least 0."""

    computing_ms: float
    over_dense: float
    best: str
    ours: float


def throughput(model: Model, cluster: Cluster, over_dense: float) -> Throughput:
    ns = priced(model, cluster)
    mlp = ns["dense"] * model.dense_elements / (model.rows * model.width)
    fixed = max(mlp, (ns["dense"] - over_dense * ns["zen"]) / (over_dense - 1))
    best = min(BASELINES, key=lambda name: ns[name])
    return Throughput(
        computing_ms=(fixed - mlp) / 1e6,
        over_dense=(fixed + ns["dense"]) / (fixed + ns["zen"]),
        best=best,
        ours=(fixed + ns[best]) / (fixed + ns["zen"]),
    )
