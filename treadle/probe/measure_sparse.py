"""Measure what the kernels of sparse gradients cost on the CPUs of this machine, and a round of messages between two
processes of it.

The rates of one kind of work are fitted to its experiments together:

    minimise    sum over experiments of (sum over rates of rate * items / time - 1)^2
    subject to  rates >= 0

Work on entries has a rate for an entry and one for a value; rows of different widths separate them. Caches hold
nothing of a call's memory when it begins, as after a backward pass; where they do, it takes as little as a fifth.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import nnls

from treadle.host.cores import cores
from treadle.planner.documents.scalars import many
from treadle.planner.documents.sparse_costs import VERSION, SparseCosts, SparseWork
from treadle.planner.errors import MissingBackendError
from treadle.probe.cost_fit import DOUBTFUL
from treadle.probe.local import cpu_model
from treadle.runtime.launch import launch

if TYPE_CHECKING:
    from torch import Tensor

SIZES = (1 << 24, 1 << 25)
"""Values of a dense gradient: 64 and 128 MiB, more than caches hold."""
PASSES = 5
"""Rounds over all experiments, of which the fastest counts: a shared machine can be slow for seconds."""
WIDTHS = (1, 16, 64)
"""Values of a unit: an element, and rows of embeddings."""
DENSITY, PARTS, CONTRIBUTIONS = 0.02, 8, 4
LOOKED_UP = 256
"""Values of a dense gradient for each entry of the COO one, which then has 65,536 and more, as batches have them."""
SAMPLES = 3
"""Calls of an experiment in each of these rounds."""
EVICTED = 1 << 24
"""Floats that are written between calls: 64 MiB."""
SERIES, ROUNDS = 20, 25
"""Series of rounds of messages; the least of their medians counts."""
STALL_SECONDS = 300.0
DIGITS = 4
OnStep = Callable[[str], None]


class KernelCall(NamedTuple):
    """A call that does one kind of work on `what`: a number of items for each rate."""

    work: str
    what: str
    items: Mapping[str, int]
    call: Callable[[], object]


class Experiment(NamedTuple):
    """What numbers of items, by rate, took together."""

    work: str
    what: str
    items: Mapping[str, int]
    ns: float


class Residual(NamedTuple):
    """An experiment, and what the rates say that it takes."""

    experiment: Experiment
    fitted_ns: float

    @property
    def residual(self) -> float:
        return self.fitted_ns / self.experiment.ns - 1


@dataclass(frozen=True)
class MeasuredSparse:
    """The costs, and how well they explain each experiment."""

    costs: SparseCosts
    rows: tuple[Residual, ...]

    @property
    def doubt(self) -> str:
        """What makes these costs doubtful, empty where nothing does."""
        worst = max(self.rows, key=lambda row: abs(row.residual))
        if abs(worst.residual) <= DOUBTFUL:
            return ""
        return f"{worst.experiment.work}: {worst.experiment.what} is off by {worst.residual:+.0%}"


def measure_sparse(
    command: str, *, sizes: tuple[int, ...] = SIZES, on_step: OnStep = lambda text: None
) -> MeasuredSparse:
    """Measure with as many threads as PyTorch has; rows of gradients as `WIDTHS`, of `DENSITY` not zero.

    Raises MissingBackendError without torch or a compiler, and what `launch` raises.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingBackendError("measuring needs torch; install it with: pip install 'treadle[torch]'")
    import torch

    experiments: list[Experiment] = []
    for size in sizes:
        experiments += _least(_calls_of_units(size) + _calls_of_rows(size), on_step)
    on_step("a round of messages")
    call_ns = max(launch(2, _round_ns, (), STALL_SECONDS))
    experiments.append(Experiment("call", "a round between two processes", {"call": 1}, call_ns))
    return fitted(experiments, command, torch.get_num_threads())


def fitted(experiments: list[Experiment], command: str, threads: int) -> MeasuredSparse:
    """The costs that explain the experiments best."""
    rates: dict[str, float] = {}
    for work in dict.fromkeys(each.work for each in experiments):
        rates |= _rates([each for each in experiments if each.work == work])
    rows = tuple(Residual(each, sum(rates[rate] * items for rate, items in each.items.items())) for each in experiments)
    how = f"measured: `{command}`, the least of repeats; {cpu_model()}, {many(cores(), 'core')}"
    widths = f"rows of {', '.join(map(str, WIDTHS[:-1]))} and {WIDTHS[-1]} values, {DENSITY:.0%} of them not zero"
    sources = {
        "work": f"{how}, {many(threads, 'thread')}, {widths}",
        "work.write_per_value": f"{how}, {many(threads, 'thread')}, into new memory of 64 MiB and more; "
        "sums of a few MiB have memory that was used before, which takes about a tenth",
        "work.call": f"{how}, two processes, gloo",
        "work.extract_per_word": "0: CPUs deal units out by counting, and all of it is in hash_per_index",
    }
    costs = SparseCosts(version=VERSION, name=cpu_model(), work=SparseWork(**rates), sources=sources)
    return MeasuredSparse(costs, rows)


def _rates(experiments: list[Experiment]) -> dict[str, float]:
    """Those of one kind of work, in ns."""
    names = list(experiments[0].items)
    shares = np.array([[each.items[name] / each.ns for name in names] for each in experiments])
    found, _ = nnls(shares, np.ones(len(shares)))
    return {name: float(f"{rate:.{DIGITS}g}") for name, rate in zip(names, found, strict=True)}


def _least(calls: list[KernelCall], on_step: OnStep) -> list[Experiment]:
    """What each call takes at least, over rounds of all of them."""
    # Only what measures imports torch.
    import torch

    others = torch.zeros(EVICTED)
    least = [math.inf] * len(calls)
    for _ in range(PASSES):
        for number, each in enumerate(calls):
            for _ in range(SAMPLES):
                others.add_(1)
                start = time.perf_counter_ns()
                each.call()
                least[number] = min(least[number], time.perf_counter_ns() - start)
            on_step(f"{each.work}, {each.what}")
    return [Experiment(each.work, each.what, each.items, ns) for each, ns in zip(calls, least, strict=True)]


def _calls_of_units(size: int) -> list[KernelCall]:
    """Those whose items have no width, on gradients of `size` units."""
    import torch

    from treadle.kernels.sparse import PartitionMemory, aggregate, decode, owned
    from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS

    zeros, part = torch.zeros(size, 1), owned(size, 1, DEFAULT_SEEDS[0])[0]
    indices = _units(size)
    count = len(indices)
    memory = PartitionMemory(PARTS, 2 * count // PARTS + 1, 0, DEFAULT_SEEDS, method="count")
    bitmap, _ = aggregate([(indices, torch.ones(count, 1))], part)
    return [
        KernelCall("scan", f"{size:,} values", {"scan_per_value": size}, lambda: memory.collect(zeros)),
        KernelCall("hash", f"{count:,} indices", {"hash_per_index": count}, lambda: memory.partition(indices)),
        KernelCall("bitmap", f"{size:,} units", {"bitmap_per_unit": size}, lambda: decode(bitmap, part)),
    ]


def _calls_of_rows(size: int) -> list[KernelCall]:
    """Those whose items are entries and values, on gradients of `size` values by all widths."""
    import torch

    values = torch.ones(size)
    return [call for width in WIDTHS for call in _calls_of_width(values.view(-1, width))]


def _calls_of_width(dense: Tensor) -> list[KernelCall]:
    import torch

    from treadle.kernels.sparse import aggregate, coalesce, gather, owned, write
    from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS

    units, width = dense.shape
    part = owned(units, 1, DEFAULT_SEEDS[0])[0]
    given = [(chosen, gather(dense, chosen)) for chosen in (_units(units, seed) for seed in range(CONTRIBUTIONS))]
    indices, values = given[0]
    looked_up = torch.rand(dense.numel() // LOOKED_UP, generator=torch.Generator().manual_seed(0))
    entries = (looked_up**3 * units).long()
    repeated = torch.ones(len(entries), width)

    def of_entries(work: str, count: int, call: Callable[[], object]) -> KernelCall:
        items = {f"{work}_per_entry": count, f"{work}_per_value": count * width}
        return KernelCall(work, f"{count:,} entries of {width}", items, call)

    return [
        of_entries("gather", len(indices), lambda: gather(dense, indices)),
        of_entries("add", sum(len(chosen) for chosen, _ in given), lambda: aggregate(given, part)),
        of_entries("coalesce", len(entries), lambda: coalesce(entries, repeated, units)),
        KernelCall(
            "write",
            f"{len(indices):,} entries of {width} to {units:,}",
            {"write_per_entry": len(indices), "write_per_value": dense.numel()},
            # New memory for each sum, as in an exchange. Most of the time is for its pages.
            lambda: write(indices, values, torch.empty_like(dense)),
        ),
    ]


def _units(units: int, seed: int = 0) -> Tensor:
    """`DENSITY` of all units, ascending, int32."""
    import torch

    chosen = torch.randperm(units, generator=torch.Generator().manual_seed(seed))
    return chosen[: max(1, int(DENSITY * units))].sort().values.int()


def _round_ns(rank: int, world: int) -> float:
    """What rounds take in which two processes send each other 4 bytes."""
    from statistics import median

    import torch
    from torch import distributed

    sent, received = torch.zeros(1), torch.zeros(1)

    def once() -> int:
        start = time.perf_counter_ns()
        works = [distributed.isend(sent, 1 - rank), distributed.irecv(received, 1 - rank)]
        for work in works:
            assert work is not None
            work.wait()
        return time.perf_counter_ns() - start

    return float(min(median(once() for _ in range(ROUNDS)) for _ in range(SERIES)))
