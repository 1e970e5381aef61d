"""Universal bounds: never above the optimum or any method's plan, exact where it is known, worded for people."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as with_fields

from tests.oracles.exact_collective import exact_time
from tests.planner.passes.collective.build import MB, MESH, both, complete, line, machine, ring, shipped, switch
from tests.planner.passes.collective.test_oracles import random_machine
from treadle.planner.documents.collective import Demand
from treadle.planner.documents.hardware import Network, Nic
from treadle.planner.errors import TreadleError
from treadle.planner.passes.collective.bound import UNIVERSAL, sentence
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.planning import METHODS
from treadle.planner.passes.collective.problem import build_problem
from treadle.planner.passes.collective.synthesis import Request
from treadle.planner.passes.collective.universal import universal_bound


def bound(collective, hardware, size=MB, sketch=MESH, **more) -> int:
    return universal_bound(collective, hardware, sketch, size, **more).time_ns


@pytest.mark.parametrize(
    ("collective", "hardware", "ns"),
    [
        ("allgather", ring(4), 1_000 + 12_000),  # three parts into each rank over two links of 8 us
        ("allgather", ring(4, one_way=True), 1_000 + 24_000),
        ("allgather", switch(4), 1_000 + 24_000),
        ("alltoall", complete(4), 1_000 + 2_000),
        ("broadcast", line(2), 9_000),
        ("reduce", line(2), 9_000),
        ("allreduce", switch(4), 1_000 + 12_000),
        ("gather", line(2), 9_000),
        ("scatter", line(2), 5_000),
    ],
)
def test_textbook(collective, hardware, ns):
    assert bound(collective, hardware) == ns


# The exact oracle has pieces of one size, so it may only be slower than what the bound ranges over.
@pytest.mark.parametrize("collective", ["allgather", "broadcast", "alltoall", "reducescatter", "allreduce"])
@pytest.mark.parametrize("seed", range(6))
def test_no_optimum_is_below(collective, seed):
    hardware = random_machine(seed)
    for size in (16, MB // 8, MB):
        problem = build_problem(collective, hardware, MESH, size)
        links = {edge: (link.alpha_ns, link.beta_ns) for edge, link in problem.links.items()}
        if problem.ranks > 3 and collective in ("alltoall", "allreduce"):
            continue
        best = exact_time(
            collective,
            problem.ranks,
            links,
            ports=[set(port.links) for port in problem.ports],
            batched=links if collective in ("allgather", "broadcast", "alltoall") else (),
        )
        assert bound(collective, hardware, size) <= best


TWO_BY_TWO = machine(
    2,
    both((0, 1)),
    nodes=2,
    nics=(Nic(name="nic", devices=(0, 1)),),
    network=Network(kind="ib", alpha_us=3, beta_us_per_MB=20),
)


@pytest.mark.parametrize("latency", ["serial", "pipelined"])
@pytest.mark.parametrize("hardware", [TWO_BY_TWO, ring(5), switch(4)])
@pytest.mark.parametrize(
    "collective",
    ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce", "gather", "scatter", "custom"],
)
def test_no_method_is_below(collective, hardware, latency):
    hardware = with_fields(hardware, latency=latency)
    demands = (Demand((0,), (1, 3)), Demand((1, 2), (0,)), Demand((3,), (0, 2))) if collective == "custom" else None
    tried = 0
    for size in (64, MB):
        least = bound(collective, hardware, size, demands=demands)
        for name, method in METHODS.items():
            if name in ("milp", "exact", "hierarchical"):
                continue
            try:
                draft = method(Request(collective, hardware, MESH, size, 0, demands), Effort())
            except TreadleError:
                continue
            tried += 1
            assert least <= draft.makespan_ns, (name, size)
    assert tried or collective == "custom"


def test_every_chunking_has_the_same_bound_and_says_so():
    found = universal_bound("allgather", ring(4), MESH, MB)
    assert sentence(found).startswith(UNIVERSAL)
    assert "3145728 bytes must go into rank 0" in sentence(found)


def test_parts_at_several_ranks_start_at_the_nearest():
    far = (Demand((0,), (3,)),)
    near = (Demand((0, 2), (3,)),)
    assert bound("custom", line(4), 1, demands=far) == 3 * bound("custom", line(4), 1, demands=near)


def test_contributions_to_an_allreduce_double_with_every_round():
    assert bound("allreduce", complete(4), 4) == 2 * 1_001


def test_1024_ranks_have_a_bound():
    hardware, sketch = shipped("dgx2", 64, "mesh")
    inter = {str(i): (i,) for i in range(16)}
    from treadle.planner.documents.sketch import InternodeSketch

    sketch = with_fields(sketch, internode_sketch=InternodeSketch(strategy="relay", internode_conn=inter))
    assert bound("allgather", hardware, MB, sketch) > 0
