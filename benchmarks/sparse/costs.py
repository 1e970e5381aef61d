"""One rank of the lab benchmark: what exchanges cost between these hosts, all of which measure at once.

Rounds and messages are those of small gradients, exchanged by many schemes; rates are those of kernels on large ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import torch
from torch import distributed

from benchmarks.sparse.turns import Work, in_turns
from treadle.kernels.sparse import PartitionMemory, aggregate, coalesce, decode, gather, owned, write
from treadle.planner.documents import store
from treadle.planner.documents.gradient_link import GradientLink
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.sparse_costs import VERSION as COSTS_VERSION
from treadle.planner.documents.sparse_costs import SparseCosts, SparseWork
from treadle.planner.passes.sparse.decided import decided
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS
from treadle.planner.passes.sparse.problem import VERSION, BlockCounts, SparseGradient, SparseProblem
from treadle.planner.passes.sparse.rounds import exchange
from treadle.planner.passes.sparse.schemes import BY_NAME, Scheme
from treadle.runtime.sparse.exchange import SparseExchange

SMALL = (
    *("dense", "agsparse", "sparse-ps", "balanced", "sparcml", "omnireduce", "zen"),
    *("hierarchy-incremental-parallel-balanced", "ring-incremental-parallel-balanced"),
)
TOGETHER = (1, 4)
SECONDS, KERNEL_SECONDS = 6.0, 0.3
ROWS, WIDTH, FOUND, LARGE = 200_000, 32, 20_000, 1 << 20


def main(out: Path) -> None:
    """Write from rank 0 costs of sparse gradients, and print alpha and beta of the link between hosts."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    alpha_us, call_ns = rounds_and_messages(distributed.get_world_size())
    work = kernels(distributed.get_world_size(), call_ns)
    beta = rate(distributed.get_world_size(), alpha_us, work)
    if distributed.get_rank() == 0:
        store.save(SparseCosts(version=COSTS_VERSION, name="lab", work=work), out)
        print(f"{alpha_us:.1f} {beta:.0f}")
    distributed.destroy_process_group()


def rounds_and_messages(ranks: int) -> tuple[float, float]:
    """What a message takes, in us, and a round of each gradient, in ns: of exchanges of one and of several gradients
    with one row a rank."""
    works: dict[str, Work] = {}
    counted = []
    for together in TOGETHER:
        for name in SMALL:
            messages, rounds = counts(BY_NAME[name], ranks)
            counted.append((messages, rounds * together))
            works[f"{name}, {together}"] = _small_exchange(name, ranks, together)
    took = in_turns(works, SECONDS)
    found = solved(np.array(counted, dtype=float), np.array([took[name] for name in works]) * 1e6)
    return found[0] / 1e3, found[1]


def _small_exchange(scheme: str, ranks: int, together: int) -> Work:
    row = torch.tensor([[64 * distributed.get_rank()]])
    gradient = torch.sparse_coo_tensor(row, torch.ones(1, 1), (64 * ranks, 1), is_coalesced=True)
    decisions = decided(_small(ranks, together), "same", [scheme] * together)
    exchange, given = SparseExchange(decisions), {plan.name: gradient for plan in decisions.gradients}
    return lambda turn: exchange.exchange_together(given)


def _small(ranks: int, together: int) -> SparseProblem:
    counts = tuple(range(1, ranks + 1))
    gradients = tuple(
        SparseGradient(
            name=f"small {number}",
            form="coo",
            unit="row",
            units=64 * ranks,
            width=1,
            occurrences=1,
            unions=counts,
            even=counts,
            hashed=counts,
            densest=1,
            blocks=BlockCounts(size=1, push=1, pull=1),
        )
        for number in range(together)
    )
    link = GradientLink(beta_us_per_MB=0)
    return SparseProblem(version=VERSION, name="small", machines=ranks, devices=1, gradients=gradients, inter=link)


def counts(scheme: Scheme, ranks: int) -> tuple[int, int]:
    """Messages of a participant one after the other, and rounds."""
    rounds = exchange(scheme, ranks)
    messages = 0
    for some, form in ((rounds.push, scheme.push), (rounds.pull, scheme.pull)):
        for hops in some:
            partners = max(len({hop.dst for hop in hops if hop.src == rank}) for rank in range(ranks))
            messages += partners * (1 if form == "dense" else 2)
    return messages, len(rounds.push) + len(rounds.pull)


def solved(counted: np.ndarray, took: np.ndarray) -> tuple[float, float]:
    """The two costs, none below 0, that come nearest to times [N] with counts [N, 2], by relative error."""
    scaled = counted / took[:, None]
    ones = np.ones(len(took))
    both = np.linalg.lstsq(scaled, ones, rcond=None)[0]
    if both.min() >= 0:
        return float(both[0]), float(both[1])
    single = [float(column @ ones / (column @ column)) for column in scaled.T]
    errors = [float(np.sum((column * cost - 1) ** 2)) for column, cost in zip(scaled.T, single, strict=True)]
    return (single[0], 0.0) if errors[0] < errors[1] else (0.0, single[1])


def rate(ranks: int, alpha_us: float, work: SparseWork) -> float:
    """us for a MiB, of the exchange of a large dense gradient: what prices leave of its time for bytes. Hosts that
    share processors fill no fast link."""
    counts, link = (LARGE,) * ranks, GradientLink(alpha_us=alpha_us, beta_us_per_MB=0)
    gradient = SparseGradient(
        name="large",
        form="dense",
        unit="element",
        units=LARGE,
        width=1,
        occurrences=LARGE,
        unions=counts,
        even=counts,
        hashed=counts,
        densest=LARGE,
    )
    problem = SparseProblem(
        version=VERSION, name="large", machines=ranks, devices=1, gradients=(gradient,), inter=link, work=work
    )
    decisions = decided(problem, "worker", ["dense"])
    exchange, given = SparseExchange(decisions), {"large": torch.ones(LARGE)}
    took = in_turns({"large": lambda turn: exchange.exchange_together(given)}, SECONDS / 4)["large"]
    (cost,) = (cost for cost in decisions.gradients[0].costs if cost.scheme == "dense")
    return max(0.0, took * 1e3 - cost.time_ns / 1e3) / (cost.bytes / MEBIBYTE)


def kernels(ranks: int, call_ns: float) -> SparseWork:
    """Rates of kernels with one thread, while all ranks measure."""
    rows = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))[:FOUND]
    repeated, values = torch.cat([rows, rows]), torch.randn(2 * FOUND, WIDTH)
    indices, own = rows.int(), values[:FOUND].clone()
    dense, parts = torch.zeros(ROWS, WIDTH), owned(ROWS, ranks, DEFAULT_SEEDS[0])
    memory = PartitionMemory(
        ranks, 2 * FOUND // ranks, 4 * FOUND // (10 * ranks), DEFAULT_SEEDS, threads=1, method="count"
    )
    scanned = PartitionMemory(ranks, 64, 64, DEFAULT_SEEDS, threads=1, method="count")
    dealt = memory.partition(indices)
    first = dealt.indices[: dealt.counts[0]]
    given = [(first, own[: len(first)])] * ranks
    bitmap, sums = aggregate(given, parts[0])
    hashed = _ns(lambda: memory.partition(indices)) / FOUND
    zeros = torch.empty(ROWS, WIDTH)
    return SparseWork(
        scan_per_value=_ns(lambda: scanned.collect(dense)) / dense.numel(),
        coalesce_per_value=_ns(lambda: coalesce(repeated, values, ROWS)) / values.numel(),
        hash_per_index=hashed,
        gather_per_value=_ns(lambda: gather(own, indices % FOUND)) / own.numel(),
        add_per_value=_ns(lambda: aggregate(given, parts[0])) / (ranks * sums.numel()),
        bitmap_per_unit=_ns(lambda: decode(bitmap, parts[0])) / parts[0].count,
        write_per_value=_ns(lambda: write(indices, own, zeros)) / zeros.numel(),
        call=call_ns,
    )


def _ns(work: Callable[[], object]) -> float:
    """ns of a call on the slowest rank, over as many as fill KERNEL_SECONDS."""
    work()
    distributed.barrier()
    start, calls = perf_counter_ns(), 0
    while perf_counter_ns() - start < KERNEL_SECONDS * 1e9:
        work()
        calls += 1
    took = torch.tensor((perf_counter_ns() - start) / calls, dtype=torch.float64)
    distributed.all_reduce(took, distributed.ReduceOp.MAX)
    return float(took)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
