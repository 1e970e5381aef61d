"""What `treadle plan aggregation` is given, as a problem and the documents it was made from."""

from __future__ import annotations

from pathlib import Path

from treadle.planner.documents import store
from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.documents.plan import InputRef
from treadle.planner.machine.host_costs import Repair
from treadle.planner.passes.aggregation.extract import problem_of
from treadle.planner.passes.aggregation.problem import AggregationProblem

Given = tuple[AggregationProblem, dict[str, InputRef]]


def by_hand(file: str) -> Given:
    """The problem in a file. Raises InputError for a file that holds another thing."""
    problem = store.load(file, AggregationProblem)
    return problem, {"problem": InputRef(file=Path(file).name, digest=store.digest(problem))}


def from_costs(file: str, size: int, chunk_bytes: int, connections: int, repair: Repair | None) -> Given:
    """The problem of probed hosts. Raises InputError as `problem_of`, and for a file that is no cost matrix."""
    costs = store.load(file, CostMatrix)
    problem = problem_of(
        costs, size_bytes=size, chunk_bytes=chunk_bytes, connections=connections, repair=repair, where=file
    )
    return problem, {"costs": InputRef(file=Path(file).name, digest=store.digest(costs))}
