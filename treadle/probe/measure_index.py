"""Measure learned indexes on this machine, and learn to predict which configuration is fastest for a workload.

Random workloads are run with random configurations on the real index, on one core; then networks are trained on some
families of keys and validated on the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from treadle.host.cache_folder import cache_folder
from treadle.planner.documents.index_model import VERSION, IndexModel, IndexTraining
from treadle.planner.documents.scalars import many
from treadle.planner.errors import LimitError, MissingBackendError
from treadle.planner.passes.index import families
from treadle.planner.passes.index.baseline import MeasuredTrace, fitted_baseline
from treadle.planner.passes.index.buckets import vocabulary
from treadle.probe import index_traces
from treadle.probe.index_runs import KeptRuns, RunIndex
from treadle.probe.index_scores import validated
from treadle.probe.index_traces import HELD_OUT, LEARNED
from treadle.probe.local import cpu_model

SEED = 23
MINUTES = 15.0
LEAST_TRACES = 2 * len(LEARNED)
"""Fewer to learn from would show nothing."""
OnStep = Callable[[str], None]


class MeasuredIndexes(NamedTuple):
    """A model, and the file with the runs that it was learned from, which may be removed once the model is saved."""

    model: IndexModel
    kept: Path


def measure_index(
    *,
    minutes: float = MINUTES,
    run: RunIndex | None = None,
    ended: Callable[[], bool] = lambda: False,
    on_step: OnStep = lambda text: None,
) -> MeasuredIndexes:
    """Measure for `minutes` in all, earlier interrupted runs of this machine included, and learn, which takes some
    minutes more.

    Once `ended`, it learns from what there is. Raises LimitError where that is too little or memory is short,
    MissingBackendError without PyTorch or a compiler, InputError where what was measured cannot be kept.
    """
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingBackendError("measuring needs torch; install it with: pip install 'treadle[torch]'") from error
    path = cache_folder("index-runs") / f"{_digest()}.jsonl"
    kept = KeptRuns(path, SEED)
    kept.measure(
        60 * minutes,
        run or _real_run(),
        ended,
        lambda done, left: on_step(f"measured {many(done, 'trace')}, {left / 60:.1f} minutes left"),
    )
    traces = list(kept.traces(vocabulary(), lambda done, of: on_step(f"drew {done} of {many(of, 'picture')}")))
    known = [each for each in traces if each.family not in HELD_OUT]
    if len(known) < LEAST_TRACES:
        raise LimitError(
            f"measured {many(len(known), 'trace')} to learn from, expected at least {LEAST_TRACES}; what was measured "
            f"is kept in {path}, and the same command goes on from there"
        )
    model = learned(known, on_step)
    others = [each for each in traces if each.family in HELD_OUT]
    training = replace(
        model.training, repeat_spread=round(median(each.spread for each in kept.runs), 4), repeated=len(kept.runs)
    )
    return MeasuredIndexes(replace(model, training=training, validation=validated(model, others)), path)


def learned(traces: list[MeasuredTrace], on_step: OnStep = lambda text: None) -> IndexModel:
    """A model of this machine, not yet validated."""
    from treadle.probe.index_training import trained_networks

    parameters = vocabulary()
    trained = trained_networks(
        traces, parameters, seed=SEED, on_epoch=lambda done, of: on_step(f"learning, {done / of:.0%}")
    )
    return IndexModel(
        version=VERSION,
        name=f"indexes on {cpu_model()}",
        machine=cpu_model(),
        edges=trained.edges,
        centres=trained.centres,
        parameters=parameters,
        networks=trained.networks,
        baseline=fitted_baseline(traces),
        training=IndexTraining(
            traces=len(traces),
            runs=sum(len(each.log_throughput) for each in traces),
            seed=SEED,
            families=tuple(sorted({each.family for each in traces})),
            repeat_spread=0.0,
        ),
    )


def _real_run() -> RunIndex:
    from treadle.probe.index_timing import run_index

    return run_index


def _digest() -> str:
    """Names runs that may be used together: of one machine, one library, and the same traces."""
    from treadle.codegen.index.header import library_texts

    found = hashlib.sha256(f"{cpu_model()} {SEED}".encode())
    for module in (index_traces, families):
        assert module.__file__ is not None
        found.update(Path(module.__file__).read_bytes())
    for name, text in sorted(library_texts().items()):
        found.update(f"{name}\0{text}\0".encode())
    return found.hexdigest()[:32]
