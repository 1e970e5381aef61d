"""From measured costs between hosts to a problem of aggregation."""

from __future__ import annotations

from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.errors import InputError
from treadle.planner.machine.host_costs import Repair, host_costs
from treadle.planner.passes.aggregation.problem import MOST_HOSTS, VERSION, AggregatingHost, AggregationProblem


def problem_of(
    costs: CostMatrix,
    *,
    size_bytes: int,
    chunk_bytes: int = 65536,
    connections: int = 1,
    repair: Repair | None = None,
    where: str = "cost matrix",
) -> AggregationProblem:
    """The allreduce of `size_bytes` on the hosts of `costs`, which errors call `where`.

    Raises InputError for costs without any rate, with differing slots, or that `host_costs` refuses.
    """
    measured = host_costs(costs, where, repair)
    if len(measured.names) > MOST_HOSTS:
        raise InputError(
            f"found {len(measured.names)} hosts, expected at most {MOST_HOSTS}", where=where, path="$.hosts"
        )
    if measured.ns_per_MiB is None and len(measured.names) > 1:
        raise InputError(
            "found no rates, which the bytes of masters are priced with, expected those of some pairs",
            where=where,
            path="$.rates",
        )
    problem = AggregationProblem(
        version=VERSION,
        hosts=tuple(
            AggregatingHost(name=name, slots=slots) for name, slots in zip(measured.names, measured.slots, strict=True)
        ),
        latency_ns=measured.latency_ns,
        ns_per_MiB=measured.ns_per_MiB or ((0,),),
        size_bytes=size_bytes,
        chunk_bytes=chunk_bytes,
        connections=connections,
    )
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where=where, path=path)
    return problem
