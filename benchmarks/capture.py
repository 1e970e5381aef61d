"""Time and memory of `treadle trace capture`, each model in a fresh process, without allocating the model's tensors.

Peer: the step's own store-all peak, which running the step would take.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import Row, Table, progress
from treadle.planner.documents import store
from treadle.planner.documents.trace import Trace
from treadle.planner.graph import liveness

MODELS = {
    "ResNet-50 b184": "examples.models.resnet50:resnet50",
    "VGG-16 b176": "examples.models.vgg16:vgg16",
    "GoogLeNet b320": "examples.models.googlenet:googlenet",
    "MobileNet-V2 b256": "examples.models.mobilenet_v2:mobilenet_v2",
    "U-Net b11": "examples.models.unet:unet",
    "GPT-2 XL b1": "examples.models.gpt2:xl",
    "LSTM b20": "examples.models.lstm_lm:large",
}
TARGET_SECONDS, TARGET_GIB = 20, 6


def tables() -> Iterator[Table]:
    """Seconds and peak resident memory of `treadle trace capture` for seven models (targets: 20 s and 6 GiB each)."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [measured(name, spec, Path(folder) / "step.trace.json") for name, spec in MODELS.items()]
    missed = [row["model"] for row in rows if row["seconds"] >= TARGET_SECONDS or row["peak RSS GiB"] >= TARGET_GIB]
    note = f"missed: {', '.join(missed)}" if missed else "all within the targets"
    yield Table(
        "Capture of one training step in a fresh process",
        rows,
        (f"Targets: under {TARGET_SECONDS} s and {TARGET_GIB} GiB each; {note}.",),
    )


def measured(name: str, spec: str, output: Path) -> Row:
    """One capture: wall and processor seconds and peak resident memory of the whole process."""
    progress(f"capture: {name}")
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "treadle", "trace", "capture", spec, "-o", str(output)], stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"capturing {spec} failed with exit code {process.returncode}")
    trace = store.load(output, Trace)
    rss = usage.ru_maxrss * 1024
    peak = liveness.sweep(trace).peak
    return {
        "model": name,
        "ops": len(trace.ops),
        "seconds": seconds,
        "CPU seconds": usage.ru_utime + usage.ru_stime,
        "peak RSS GiB": rss / 2**30,
        "step's peak GiB": peak / 2**30,
        "step's peak / RSS": peak / rss,
    }
