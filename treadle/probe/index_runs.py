"""Measures traces on the real index and keeps what was measured, so that an interrupted run goes on where it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from treadle.host.cache_folder import make_private
from treadle.planner.documents.index_model import ParameterBuckets
from treadle.planner.errors import InputError, LimitError
from treadle.planner.passes.index.baseline import MeasuredTrace
from treadle.planner.passes.index.buckets import buckets_of
from treadle.planner.passes.index.configurations import IndexConfiguration, grid
from treadle.planner.passes.index.operations import Workload
from treadle.planner.passes.index.picture import picture
from treadle.probe.index_traces import IndexTrace, trace_of

RunIndex = Callable[[IndexConfiguration, Workload, float], float | None]
"""Takes a configuration, a workload and its share of inserts; gives ns of all operations, or None where it does not
run."""
OnTrace = Callable[[int, float], None]


class TraceRuns(NamedTuple):
    """What one trace took: ns for each place in the grid that ran, and the first of them once more at the end."""

    number: int
    ns: dict[int, float]
    again_ns: float
    seconds: float
    """What measuring it took."""

    @property
    def spread(self) -> float:
        """Relative difference of the run that was measured twice."""
        first = next(iter(self.ns.values()))
        return 2 * abs(first - self.again_ns) / (first + self.again_ns)


class KeptRuns:
    """Runs of traces 0, 1, 2, ... of a seed in a file, one line a trace. Lines that are not whole, and all after
    them, count as not there."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._seed = path, seed
        self.runs = list(_read(path))

    def measure(self, seconds: float, run: RunIndex, ended: Callable[[], bool], on_trace: OnTrace) -> None:
        """Add traces until all together took `seconds`, or until `ended`.

        `on_trace` gets the traces that there are and the seconds that are left. Raises InputError where the file cannot
        be written, LimitError where memory is too short for any.
        """
        while (left := seconds - sum(each.seconds for each in self.runs)) > 0 and not ended():
            on_trace(len(self.runs), left)
            start = monotonic()
            trace = trace_of(len(self.runs), self._seed)
            ns = _measured(trace, run, ended)
            if ns is None:
                return
            again = run(grid()[next(iter(ns))], trace.workload, trace.insert_share)
            self._keep(TraceRuns(trace.number, ns, again or ns[next(iter(ns))], round(monotonic() - start, 3)))

    def traces(
        self, parameters: tuple[ParameterBuckets, ...], on_trace: Callable[[int, int], None]
    ) -> Iterator[MeasuredTrace]:
        """All of them with their pictures, which are drawn now."""
        buckets = np.array([buckets_of(parameters, each) for each in grid()])
        for runs in self.runs:
            on_trace(runs.number, len(self.runs))
            trace = trace_of(runs.number, self._seed)
            per_second = len(trace.workload.operations.ops) * 1e9 / np.array(list(runs.ns.values()))
            yield MeasuredTrace(
                family=trace.family,
                insert_share=trace.insert_share,
                picture=picture(trace.workload),
                buckets=buckets[list(runs.ns)],
                log_throughput=np.log(per_second),
            )

    def _keep(self, runs: TraceRuns) -> None:
        whole = "".join(map(_line, self.runs)).encode()
        try:
            make_private(self._path.parent)
            with open(self._path, "ab") as stream:
                stream.truncate(len(whole))
                stream.write(_line(runs).encode())
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror or error}", where=str(self._path)) from error
        self.runs.append(runs)


def _line(runs: TraceRuns) -> str:
    return f"{json.dumps(runs._asdict())}\n"


def _measured(trace: IndexTrace, run: RunIndex, ended: Callable[[], bool]) -> dict[int, float] | None:
    """ns by place in the grid; None where it was `ended` in between."""
    found: dict[int, float] = {}
    for place in trace.places:
        if ended():
            return None
        ns = run(grid()[place], trace.workload, trace.insert_share)
        if ns is not None:
            found[place] = ns
    if not found:
        raise LimitError(f"no configuration of an index of {len(trace.workload.keys)} keys fits into memory")
    return found


def _read(path: Path) -> Iterator[TraceRuns]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for number, line in enumerate(lines):
        try:
            runs = _from_json(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return
        if runs.number != number:
            return
        if line != _line(runs)[:-1]:
            return
        yield runs


def _from_json(raw: Any) -> TraceRuns:
    """Raises one of several errors where `raw` is not what is kept."""
    ns = {int(place): float(value) for place, value in raw["ns"].items()}
    runs = TraceRuns(int(raw["number"]), ns, float(raw["again_ns"]), float(raw["seconds"]))
    times = (*ns.values(), runs.again_ns)
    if not ns or not set(ns) <= set(range(len(grid()))) or not all(0 < each < 1e18 for each in times):
        raise ValueError
    if not 0 <= runs.seconds < 1e9:
        raise ValueError
    return runs
