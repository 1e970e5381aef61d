"""Random problems of serving parameters: every mode, carrier and optimizer, parts that are known or not."""

from __future__ import annotations

import random

from treadle.planner.passes.server.decided import ServerOptions
from treadle.planner.passes.server.keys import ServerKey
from treadle.planner.passes.server.price_list import NetworkPrices, ServerPrices
from treadle.planner.passes.server.problem import (
    VERSION,
    CoreWork,
    MachineInterface,
    ServerMachine,
    ServerProblem,
)

RATES = (10**9, 12 * 10**8, 7 * 10**9, 6_800_000_000, 333_333_333)


def random_problem(rng: random.Random) -> ServerProblem:
    """A sound problem of few small keys."""
    mode = rng.choice(("cc", "cs", "ncc", "ncs"))
    racks = rng.choice((1, 1, 2, 3)) if mode == "ncc" else 1
    workers = racks * rng.randint(1, 4)
    servers = {"cs": workers, "ncs": rng.randint(1, 3)}.get(mode, racks)
    carrier = rng.choice(("tcp", "rdma", "shared"))
    optimizers = ["mean", "sgd", "nesterov", "adam"] + ["lamb"] * (servers == 1)
    return ServerProblem(
        version=VERSION,
        name="random",
        keys=_keys(rng),
        compute_ns=rng.choice((0, rng.randint(1, 10**7))),
        workers=workers,
        worker_rate=rng.choice((None, rng.choice(RATES))),
        mode=mode,
        servers=servers,
        machine=_machine(rng),
        carrier=carrier,
        optimizer=rng.choice(optimizers),
        synchronous=rng.random() < 0.8,
        arrival_order=rng.random() < 0.2,
        latency_ns=rng.choice((0, rng.randint(1, 100_000))),
        racks=racks,
        core_rate=rng.choice(RATES) if racks > 1 else None,
        shared_cores=rng.choice((None, rng.randint(1, 4))),
        prices=_prices(rng) if rng.random() < 0.2 else None,
    )


def random_options(rng: random.Random, problem: ServerProblem) -> ServerOptions:
    return ServerOptions(
        policy=rng.choice((None, "key-by-interface", "worker-by-interface")),
        engine=rng.choice(("tall", "wide")),
        aggregator=rng.choice(("cached", "bypass")),
        chunk_bytes=rng.choice((None, 64, 4096, 64 * rng.randint(1, 100))),
        levels=rng.choice((None, "flat", "two-level")) if problem.racks > 1 else None,
    )


def _keys(rng: random.Random) -> tuple[ServerKey, ...]:
    ready, keys = 0, []
    for number in range(rng.randint(1, 4)):
        ready += rng.choice((0, rng.randint(0, 10**6)))
        dtype = rng.choice(("float32", "float16", "bfloat16"))
        keys.append(ServerKey(name=f"k{number}", elements=rng.randint(1, 6000), dtype=dtype, ready_ns=ready))
    return tuple(keys)


def _machine(rng: random.Random) -> ServerMachine:
    cores, domains = rng.randint(1, 2), rng.randint(1, 3)
    rate = rng.choice(RATES)
    interfaces = tuple(
        MachineInterface(
            name=f"eth{number}",
            domain=rng.randrange(domains),
            rate=rng.choice((rate, rate, rng.choice(RATES))),
            slot_rate=rng.choice((None, rng.choice(RATES))),
        )
        for number in range(rng.randint(1, 4))
    )
    known = lambda: rng.choice((None, rng.choice(RATES) * 10))  # noqa: E731
    work = [rng.choice((0, rng.randint(1, 10**6))) for _ in range(6)]
    return ServerMachine(
        name="machine",
        domains=(8,) * domains,
        interfaces=interfaces,
        cores_per_interface=cores,
        memory_bytes=rng.choice((None, 10**9)),
        memory_rate=known(),
        bridge_rate=known(),
        between_rate=known(),
        cached_extra_ppm=rng.choice((0, 170_000)),
        work=CoreWork(
            receive_ns_per_MB=work[0],
            add_ns_per_MB=work[1],
            optimize_ns_per_MB=work[2],
            send_ns_per_MB=work[3],
            message_ns=work[4] // 100,
            worker_ns_per_MB=work[5],
        ),
    )


def _prices(rng: random.Random) -> ServerPrices:
    networks = [NetworkPrices(card=rng.randint(1, 900), port=rng.randint(1, 700), cable=31.25) for _ in range(2)]
    return ServerPrices(
        version=1,
        name="prices",
        worker=4117,
        accelerator=699,
        server=8407,
        server_card=162.5,
        baseline=networks[0],
        served=networks[1],
        workers_per_server=rng.randint(1, 80),
        oversubscription=rng.randint(1, 3),
        baseline_throughput=100,
        served_throughput=120.5,
    )
