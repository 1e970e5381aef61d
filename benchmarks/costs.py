"""Time to measure every call of a step, with all implementations, and to read the same times from the cache.

Peer: the same capture without implementations, which is enough for checkpoints.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from benchmarks.common import Row, Table, progress
from examples.models import resnet50
from treadle.capture.costs import with_measured
from treadle.capture.costs.cache import kept
from treadle.capture.costs.counting import signature
from treadle.capture.graph import capture
from treadle.planner.documents import store
from treadle.planner.documents.trace import Trace
from treadle.planner.graph.implementations import with_implementations

BATCH = 8


def tables() -> Iterator[Table]:
    """Seconds to measure ResNet-50 at batch 8 with all implementations, without and with the cache, and file sizes."""
    progress("costs: capture")
    own = capture(lambda: resnet50.resnet50(batch=BATCH), "ResNet-50")
    steps = {"own calls": own, "all implementations": with_implementations(own)}
    rows = []
    for name, trace in steps.items():
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", XDG_CACHE_HOME=folder):
            rows.append(measured(name, trace, Path(folder)))
    yield Table(f"Measuring ResNet-50, batch {BATCH}, 224 x 224, on the CPU", rows)


def measured(name: str, trace: Trace, folder: Path) -> Row:
    """Measure everything in an empty cache folder, then once more."""
    seconds = []
    for _ in range(2):
        progress(f"costs: {name}")
        start = time.perf_counter()
        with kept("cpu") as known:
            timed = with_measured(trace, known=known)
        seconds.append(time.perf_counter() - start)
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    calls = [call for op in trace.ops for call in (op, *op.implementations)]
    store.save(timed, folder / "step.trace.json")
    return {
        "trace": name,
        "ops": len(trace.ops),
        "calls": len(calls),
        "distinct calls": len({signature(call, tensors) for call in calls}),
        "measured s": seconds[0],
        "from the cache s": seconds[1],
        "trace KiB": (folder / "step.trace.json").stat().st_size / 1024,
    }
