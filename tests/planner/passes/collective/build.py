"""Small machines and sketches for the tests of the collective pass. Costs are us, chunks are 1 MB unless said."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from msgspec import structs

from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Device, Hardware, Link, Network, Nic, Switch
from treadle.planner.documents.sketch import Contiguity, InternodeSketch, IntranodeSketch, Sketch
from treadle.planner.documents.transports import SymmetricTransport, Transports
from treadle.planner.passes.collective.contiguity import batch
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.ordering import best_ordering
from treadle.planner.passes.collective.problem import Batching, Problem, build_problem
from treadle.planner.passes.collective.route_moves import moves_of
from treadle.planner.passes.collective.routing import route
from treadle.probe.resolve import load_hardware

MB = 2**20
MESH = store.load(resources.locate("sketches", "mesh"), Sketch)
RING = store.load(resources.locate("sketches", "ring"), Sketch)


def machine(devices: int, pairs, alpha: float = 1, beta: float = 8, nodes: int = 1, **more) -> Hardware:
    """`pairs` are directed links (src, dst) or (src, dst, alpha, beta) of one node."""
    links = tuple(
        Link(src=p[0], dst=p[1], kind="link", alpha_us=(p[2:] or (alpha,))[0], beta_us_per_MB=(p[2:] or (0, beta))[1])
        for p in pairs
    )
    device = Device(model="toy", kind="gpu", count=devices)
    return Hardware(version=1, name="toy", nodes=nodes, devices=(device,), links=links, **more)


def both(*pairs: tuple[int, int]) -> list[tuple[int, int]]:
    return [edge for a, b in pairs for edge in ((a, b), (b, a))]


def ring(n: int, one_way: bool = False) -> Hardware:
    pairs = [(i, (i + 1) % n) for i in range(n)]
    return machine(n, pairs if one_way else both(*pairs))


def line(n: int) -> Hardware:
    return machine(n, both(*((i, i + 1) for i in range(n - 1))))


def complete(n: int) -> Hardware:
    return machine(n, both(*combinations(range(n), 2)))


def switch(n: int) -> Hardware:
    fabric = Switch(name="fabric", kind="switch", members=tuple(range(n)), alpha_us=1, beta_us_per_MB=8)
    return machine(n, (), switches=(fabric,))


SYMMETRIC = SymmetricTransport(launch_us=3, barrier_us=2, access_us=1, copy_us_per_MB=0.5, link_efficiency=0.5)


def readable(hardware: Hardware) -> Hardware:
    """With links that GPUs read through, and costs of symmetric memory."""
    return structs.replace(
        hardware,
        links=tuple(structs.replace(link, kind="nvlink") for link in hardware.links),
        switches=tuple(structs.replace(each, kind="nvswitch") for each in hardware.switches),
        transports=Transports(symmetric=SYMMETRIC),
    )


def in_network(n: int, alpha: float = 1, beta: float = 8, ops=("multicast", "reduce")) -> Hardware:
    fabric = Switch(
        name="fabric", kind="switch", members=tuple(range(n)), alpha_us=alpha, beta_us_per_MB=beta, in_network=ops
    )
    return machine(n, (), switches=(fabric,))


def switch_sketch(n: int, policy: str) -> Sketch:
    return Sketch(
        version=1,
        name=f"switch-{policy}",
        intranode_sketch=IntranodeSketch(
            strategy="switch", switches=(tuple(range(n)),), switch_hyperedge_strategy=(policy,)
        ),
    )


def relay(inside: float, alpha: float, beta: float) -> Hardware:
    """Spec 6.2: links inside a node cost `inside` us for each MB and no alpha, those across alpha + beta."""
    return machine(
        2,
        [(0, 1, 0, inside), (1, 0, 0, inside)],
        nodes=2,
        nics=(Nic(name="nic", devices=(0, 1)),),
        network=Network(kind="ib", alpha_us=alpha, beta_us_per_MB=beta),
    )


def relay_sketch(*, batching: bool) -> Sketch:
    return Sketch(
        version=1,
        name="relay",
        intranode_sketch=IntranodeSketch(strategy="direct"),
        internode_sketch=InternodeSketch(strategy="relay", internode_conn={"1": (0,)}, chunk_to_relay_map=(2, 1)),
        contiguity=Contiguity(links=("ib",), max_run=64) if batching else Contiguity(),
    )


def shipped(profile: str, nodes: int, sketch: str) -> tuple[Hardware, Sketch]:
    return load_hardware(profile, nodes), store.load(resources.locate("sketches", sketch), Sketch)


def problem_for(collective: str, hardware: Hardware, sketch: Sketch = MESH, chunk: int = MB, **more) -> Problem:
    """The problem whose chunks have `chunk` bytes."""
    ranks = hardware.nodes * hardware.devices_per_node
    u = sketch.hyperparameters.input_chunkup
    cuts = u if collective in ("allgather", "broadcast", "reduce") else ranks * u
    return build_problem(collective, hardware, sketch, chunk * cuts, **more)


def stages(problem: Problem, batching: Batching | None = None) -> tuple[int, int, int]:
    """(T1, T2, T3) in ns."""
    problem = problem if batching is None else replace(problem, batching=batching)
    routing = route(problem, Effort())
    moves = moves_of(problem, routing.trees)
    ordering = best_ordering(moves, problem.ranks)
    final = batch(moves, ordering, problem.batching, Effort())
    return routing.time_ns, ordering.schedule.makespan, final.schedule.makespan
