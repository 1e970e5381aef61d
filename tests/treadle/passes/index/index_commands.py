"""Workloads in files, and an evaluator and measurements that are made up, so that commands take no time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.planner.passes.index.index_models import MODEL
from tests.treadle.probe.index_costs import made_up_ns
from treadle.planner.documents import store
from treadle.planner.documents.plan import InputRef
from treadle.planner.passes.index.configurations import IndexConfiguration
from treadle.planner.passes.index.families import drawn
from treadle.planner.passes.index.operations import Workload, write_keys, write_operations
from treadle.planner.passes.index.problem import DrawnWorkload, IndexMeasurement
from treadle.planner.passes.index.workload import VERSION, IndexWorkload

DRAW = DrawnWorkload(family="books", bulk=1000, operations=2000, insert_share=0.5)
PLAN = ["plan", "index", "workload.yaml", "-o", "plan.json"]
FILES = ["plan", "index", "--data", "keys.npy", "--trace", "operations.txt", "-o", "plan.json"]


def written(folder: Path) -> Workload:
    """`workload.yaml`, and the same workload as `keys.npy` and `operations.txt`."""
    store.save(IndexWorkload(version=VERSION, name="some books", draw=DRAW), folder / "workload.yaml")
    workload = drawn(DRAW)
    write_keys(folder / "keys.npy", workload.keys)
    write_operations(folder / "operations.txt", workload.operations)
    return workload


class MadeUp:
    """Stands in for the evaluator and for the real index; `calls` has the configurations that were measured."""

    def __init__(self) -> None:
        self.calls: list[IndexConfiguration] = []
        self.on_measured: Callable[[], None] = lambda: None

    def evaluated(self, model: Any, workload: Workload, configurations: Any) -> list[float]:
        share = workload.counts().inserts / len(workload.operations.ops)
        return [made_up_ns(each, workload, share) for each in configurations]

    def measured(self, configuration: IndexConfiguration, workload: Workload, **options: Any) -> IndexMeasurement:
        """The later a configuration is measured, the faster it is."""
        self.calls.append(configuration)
        self.on_measured()
        time = 10_000 - 100 * len(self.calls)
        size = 16 * workload.keys_at_end() * (10 + len(self.calls)) // 10
        return IndexMeasurement(load_ns=5_000, windows_ns=(time // 2, time // 2), bytes=size)

    def loop_ns(self, workload: Workload, repeats: int = 3) -> int:
        return 700


@pytest.fixture
def made_up(here: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    """An empty folder with a workload in files, and made-up times."""
    made = MadeUp()
    written(here)
    store.save(MODEL, here / "model.yaml")
    given = MODEL, InputRef(file="model.yaml", digest=store.digest(MODEL))
    monkeypatch.setattr("treadle.passes.index.inputs.evaluator", lambda name: given)
    monkeypatch.setattr("treadle.passes.index.measuring.evaluated", made.evaluated)
    monkeypatch.setattr("treadle.runtime.index.measure.measured", made.measured)
    monkeypatch.setattr("treadle.runtime.index.measure.loop_ns", made.loop_ns)
    return made
