"""A transformer under planned placements, Megatron-style tensor parallelism, FSDP2 and DDP, on four processes and on
four hosts of a lab."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import Row, Table, machine, progress
from benchmarks.sparse.lab import on_hosts, profile
from benchmarks.tiling.transformer import HEADS, LAYERS, SIZES, VOCABULARY
from benchmarks.tiling.turns import worker
from treadle.planner.documents.scalars import MEBIBYTE, many
from treadle.runtime.launch import launch

HOSTS = 4
RATES = {"200 Mbit/s": 200e6, "50 Mbit/s": 50e6}
WITHIN, LOSS_WITHIN = 0.15, 1e-4
ALPHA_US = 30


def tables() -> Iterator[Table]:
    """A transformer under planned placements, Megatron-style ones, FSDP2 and DDP: time of a step, predicted, bytes."""
    for size in SIZES:
        progress(f"placements, {size}, four processes")
        yield compared(f"{size}, {HOSTS} processes of this machine", size, launch(HOSTS, worker, (size,))[0])
        for rate in RATES:
            progress(f"placements, {size}, {rate}")
            yield compared(f"{size}, {HOSTS} hosts, {rate}", size, in_lab(size, rate))


def in_lab(size: str, rate: str) -> dict[str, Any]:
    """What `turns.measured` returns on hosts with a link of this rate each."""
    with TemporaryDirectory() as folder:
        hardware = Path(folder) / "hosts.yaml"
        hardware.write_text(profile(HOSTS, ALPHA_US, 8 * MEBIBYTE * 1e6 / RATES[rate]))
        printed = on_hosts(hardware, ["benchmarks.tiling.turns", size])
    found: dict[str, Any] = json.loads(printed[printed.index("{") :])
    return found


def compared(title: str, size: str, found: dict[str, Any]) -> Table:
    """One row for each placement: its time, that over the plan's, what was predicted, and the loss of its first step
    next to that of one process."""
    seconds, predicted = found["seconds"], found["predicted"]
    wanted = found["losses"]["one process"]
    rows: list[Row] = []
    for name, measured in seconds.items():
        row: Row = {"placement": name, "step ms": 1e3 * measured, "x plan": measured / seconds["planned"]}
        if name in predicted:
            row |= {"predicted ms": 1e3 * predicted[name], "predicted / measured": predicted[name] / measured}
            row |= {"within 15 %": "yes" if abs(predicted[name] / measured - 1) <= WITHIN else "MISSED"}
            row["MB a worker"] = found["memory"][name] / 1e6
            row |= {"MB moved": found["moved"][name] / 1e6, "mesh": "x".join(map(str, found["mesh"][name]))}
        row["same loss"] = "yes" if abs(found["losses"][name] - wanted) <= LOSS_WITHIN * wanted else "MISSED"
        rows.append(row)
    width, sequences, tokens = SIZES[size]
    weights = ", ".join(f"{count} as {word}" for word, count in found["weights"]["planned"].items())
    notes = (
        f"{many(LAYERS, 'block')} {width} wide, {HEADS} heads, {VOCABULARY} words; {sequences} sequences of {tokens}",
        f"parameters of the plan: {weights}; its collectives: {found['collectives']['planned']}",
        f"forward and backward, medians of the slowest process, in turns; {HOSTS} processes on {machine()}",
    )
    return Table(f"{title}: a step", rows, notes)
