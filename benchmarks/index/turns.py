"""Indexes that run the same operations in turns on one core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks.common import progress
from treadle.planner.errors import CheckFailed, LimitError
from treadle.planner.passes.index.configurations import GappedArray, IndexConfiguration
from treadle.planner.passes.index.operations import Workload
from treadle.runtime.index.library import COST_MODEL_ONLY, Library
from treadle.runtime.index.measure import IndexRun, one_run, pinned

ANY = GappedArray(most_search=1, most_shifts=2)
"""Thresholds of an index that has none."""
ALEX = "ALEX, as its paper states it, our own gapped array"


@dataclass(frozen=True)
class Contender:
    """An index as it is made. Inserts are promised to be of new keys, as they are in all workloads here: no index
    then needs to look for them."""

    configuration: IndexConfiguration
    insert_share: float
    flags: int = 0
    library: Library | None = None

    def run(self, workload: Workload, windows: int) -> IndexRun:
        return one_run(
            self.configuration,
            workload,
            self.insert_share,
            windows,
            unique=True,
            flags=self.flags,
            library=self.library,
        )


def alex(insert_share: float) -> Contender:
    """Gapped arrays that only the cost model rebuilds, which knows the share of inserts."""
    return Contender(ANY, insert_share, COST_MODEL_ONLY)


class Turns:
    """Runs of each contender, one of each per turn; those that ran out of memory have none."""

    def __init__(self, contenders: Mapping[str, Contender], workload: Workload, turns: int, windows: int = 1) -> None:
        """Raises CheckFailed where two of them answer differently."""
        self.operations = len(workload.operations.ops)
        runs: dict[str, list[IndexRun]] = {name: [] for name in contenders}
        with pinned():
            for turn in range(turns):
                for name, contender in contenders.items():
                    if turn == len(runs[name]):
                        try:
                            runs[name].append(contender.run(workload, windows))
                        except LimitError as error:
                            progress(f"{name} is left out: {error}")
        self.runs = {name: each for name, each in runs.items() if len(each) == turns}
        answers = {run.answers: name for name, each in self.runs.items() for run in each}
        if len(answers) > 1:
            raise CheckFailed(f"other answers of {' than of '.join(answers.values())}")

    def per_second(self, name: str) -> float | None:
        """Million operations in a second, the median of the turns."""
        each = self.runs.get(name)
        return 1e3 * self.operations / median(run.time_ns for run in each) if each else None

    def ns(self, name: str, window: int) -> float | None:
        """Of one operation in a window, the median of the turns."""
        each = self.runs.get(name)
        if not each:
            return None
        return median(run.windows_ns[window] for run in each) * len(each[0].windows_ns) / self.operations

    def ratio(self, name: str, other: str) -> float | None:
        """How often `name` does its operations while `other` does them once, the median of the turns."""
        if name not in self.runs or other not in self.runs:
            return None
        pairs = zip(self.runs[name], self.runs[other], strict=True)
        return median(theirs.time_ns / mine.time_ns for mine, theirs in pairs)

    def bytes(self, name: str) -> int | None:
        each = self.runs.get(name)
        return each[0].bytes if each else None
