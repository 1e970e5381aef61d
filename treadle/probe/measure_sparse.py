"""Measure what the kernels of sparse gradients cost on the CPUs of this machine, and a round of messages between two
processes of it.

A rate is the geometric mean of what an item took in its experiments, so that it is as far above some as below others.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

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
WIDTHS = (16, 64)
"""The values of a row of an embedding."""
DENSITY, PARTS, CONTRIBUTIONS = 0.02, 8, 4
ROUNDS = 300
STALL_SECONDS = 300.0
DIGITS = 4
OnStep = Callable[[str], None]
Call = tuple[str, str, int, Callable[[], object]]
"""A rate, what it is of, how many items, and the call that takes the time."""


class Experiment(NamedTuple):
    """What a number of items took."""

    rate: str
    what: str
    items: int
    ns: float


class Residual(NamedTuple):
    """An experiment, and what its rate says that it takes."""

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
        return f"{worst.experiment.rate}: {worst.experiment.what} is off by {worst.residual:+.0%}"


def measure_sparse(
    command: str, *, sizes: tuple[int, ...] = SIZES, on_step: OnStep = lambda text: None
) -> MeasuredSparse:
    """Measure with as many threads as PyTorch has; rows of gradients as `WIDTHS`, of `DENSITY` not zero.

    Raises MissingBackendError without torch or a compiler, and what `launch` raises.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingBackendError("measuring needs torch; install it with: pip install 'treadle[torch]'")
    import torch

    least: dict[tuple[str, str], Experiment] = {}
    for _ in range(PASSES):
        for each in _experiments(sizes):
            key = each.rate, each.what
            least[key] = min(least.get(key, each), each, key=lambda it: it.ns)
            on_step(f"{each.rate.replace('_', ' ')}, {each.what}")
    on_step("a round of messages")
    rounds = Experiment("call", "a round between two processes", 1, max(launch(2, _round_ns, (), STALL_SECONDS)))
    return fitted([*least.values(), rounds], command, torch.get_num_threads())


def fitted(experiments: list[Experiment], command: str, threads: int) -> MeasuredSparse:
    """The costs that explain the experiments best."""
    rates = {name: _rate([each for each in experiments if each.rate == name]) for name, *_ in experiments}
    rows = tuple(Residual(each, rates[each.rate] * each.items) for each in experiments)
    how = f"measured: `{command}`, the least of repeats; {cpu_model()}, {many(cores(), 'core')}"
    rows_of = f"rows of {' and '.join(map(str, WIDTHS))} values, {DENSITY:.0%} of them not zero"
    sources = {
        "work": f"{how}, {many(threads, 'thread')}, {rows_of}",
        "work.call": f"{how}, two processes, gloo",
        "work.extract_per_word": "0: CPUs deal units out by counting, and all of it is in hash_per_index",
    }
    costs = SparseCosts(version=VERSION, name=cpu_model(), work=SparseWork(**rates), sources=sources)
    return MeasuredSparse(costs, rows)


def _rate(experiments: list[Experiment]) -> float:
    mean = sum(math.log(each.ns / each.items) for each in experiments) / len(experiments)
    return float(f"{math.exp(mean):.{DIGITS}g}")


def _experiments(sizes: tuple[int, ...]) -> Iterator[Experiment]:
    # Only what measures imports torch.
    import torch

    from treadle.probe.call_timer import CallTimer

    ns = CallTimer(torch.device("cpu"), is_together=False).ns
    for size in sizes:
        for rate, what, items, call in _calls_of_units(size):
            yield Experiment(rate, what, items, ns(call))
        for width in WIDTHS:
            for rate, what, items, call in _calls_of_rows(size, width):
                yield Experiment(rate, f"{what} in rows of {width}", items, ns(call))


def _calls_of_units(size: int) -> list[Call]:
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
        ("scan_per_value", f"{size:,} values", size, lambda: memory.collect(zeros)),
        ("hash_per_index", f"{count:,} indices", count, lambda: memory.partition(indices)),
        ("bitmap_per_unit", f"{size:,} units", size, lambda: decode(bitmap, part)),
    ]


def _calls_of_rows(size: int, width: int) -> list[Call]:
    """Those whose items are values, on gradients of `size` values."""
    import torch

    from treadle.kernels.sparse import aggregate, coalesce, gather, owned, write
    from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS

    units = size // width
    dense, part = torch.ones(units, width), owned(units, 1, DEFAULT_SEEDS[0])[0]
    given = [(chosen, gather(dense, chosen)) for chosen in (_units(units, seed) for seed in range(CONTRIBUTIONS))]
    indices, values = given[0]
    entries = (torch.rand(units // 16 + 1, generator=torch.Generator().manual_seed(0)) ** 3 * units).long()
    repeated = torch.ones(len(entries), width)
    count, added = values.numel(), sum(each.numel() for _, each in given)
    return [
        ("gather_per_value", f"{count:,} values", count, lambda: gather(dense, indices)),
        ("add_per_value", f"{added:,} values", added, lambda: aggregate(given, part)),
        ("write_per_value", f"{size:,} values", size, lambda: write(indices, values, dense)),
        (
            "coalesce_per_value",
            f"{repeated.numel():,} values",
            repeated.numel(),
            lambda: coalesce(entries, repeated, units),
        ),
    ]


def _units(units: int, seed: int = 0) -> Tensor:
    """`DENSITY` of all units, ascending, int32."""
    import torch

    chosen = torch.randperm(units, generator=torch.Generator().manual_seed(seed))
    return chosen[: max(1, int(DENSITY * units))].sort().values.int()


def _round_ns(rank: int, world: int) -> float:
    """The median of rounds in which two processes send each other 4 bytes."""
    import time
    from statistics import median

    import torch
    from torch import distributed

    sent, received, times = torch.zeros(1), torch.zeros(1), []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        works = [distributed.isend(sent, 1 - rank), distributed.irecv(received, 1 - rank)]
        for work in works:
            assert work is not None
            work.wait()
        times.append(time.perf_counter_ns() - start)
    return float(median(times))
