"""Collectives of others under the order in which hosts were handed out, the planned and the worst one, in a lab."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import Row, Table, machine, progress
from benchmarks.ranks.hosts import Work, halving_doubling, measured, on_hosts, treadle
from benchmarks.ranks.networks import HOSTS, NETWORKS, SCALE, LabNetwork
from benchmarks.ranks.orders import Order, percentiles, spearman, spread
from treadle.lab.layout import layout
from treadle.lab.lifecycle import the_lab
from treadle.lab.state import Lab
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.passes import require_pass
from treadle.planner.passes.ranks.cost import cost_of, time_of
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.samples import random_orders
from treadle.probe.resolve import load_hardware

SIZE, REPEATS, MANY = 2**19, 3, 1000
HANDED_OUT = tuple(range(HOSTS))


@dataclass(frozen=True)
class Library:
    """`algorithm` is what is planned for; `method` makes our program of what NCCL does; `target` of Spearman."""

    name: str
    algorithm: str
    method: str | None = None
    target: float = 0.6


LIBRARIES = (
    Library("gloo's ring, PyTorch", "ring", target=0.8),
    Library("gloo's halving-doubling", "halving-doubling"),
    Library("ring as NCCL's", "nccl-ring", "ring", target=0.8),
    Library("double tree as NCCL's", "nccl-tree", "double-tree"),
)


@dataclass(frozen=True)
class Planned:
    library: Library
    decisions: RanksDecisions
    works: tuple[Work, ...]
    """handed out, planned, worst; then by predicted cost, spread and random."""


def tables() -> Iterator[Table]:
    """Collectives of others, training: hosts as handed out, planned and worst; Spearman; our own plans."""
    for network in NETWORKS:
        with TemporaryDirectory() as name:
            folder = Path(name)
            profile = folder / "network.yaml"
            profile.write_text(network.text)
            with the_lab(layout(load_hardware(str(profile)), SCALE)) as lab:
                yield from _measured(network, lab, folder)
