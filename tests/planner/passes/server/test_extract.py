"""Problems of servers from keys, traces, parts and hardware profiles."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware, Host, Nic, PcieSwitch
from treadle.planner.documents.server_parts import ServerCosts, ServerDomain, ServerInterface, ServerParts
from treadle.planner.documents.trace import Costs, Op, Tensor, Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.server.extract import (
    ServerSetup,
    keys_of,
    parts_of,
    problem_again,
    problem_of,
    setup_of,
    unmeasured,
)
from treadle.planner.passes.server.keys import ServerKey, ServerKeys
from treadle.planner.passes.server.problem import CoreWork, MachineInterface, ServerMachine

KEYS = ServerKeys(version=1, name="net", keys=(ServerKey(name="w", elements=1000, ready_ns=7),), compute_ns=9)
PARTS = ServerParts(
    version=1,
    name="box",
    domains=(ServerDomain(cores=4), ServerDomain(cores=2)),
    interfaces=(
        ServerInterface(name="eth0", link_gbps=10),
        ServerInterface(name="eth1", domain=1, link_gbps=56, encoding=0.5, slot_GBps=8),
    ),
    memory_GBps=20,
    bridge_GBps=9.5,
    optimize_us_per_MB={"sgd": 50, "adam": 90.5},
    costs={"tcp": ServerCosts(receive_us_per_MB=100, add_us_per_MB=80.25, send_us_per_MB=90, message_us=1.5)},
)


def profile(name: str, **changes: Any) -> Hardware:
    return replace(store.load(resources.locate("profiles", name), Hardware), **changes)


def tensor(key: str, **fields: Any) -> Tensor:
    return Tensor(id=key, **{"role": "activation", "bytes": 40, "dtype": "float32", **fields})


def op(key: str, phase: Any, outputs: str, time_ns: int | None = 5) -> Op:
    return Op(id=key, target=f"t.{key}", phase=phase, outputs=tuple(outputs.split()), time_ns=time_ns)


STEP = Trace(
    version=1,
    name="net",
    mode="train",
    source="torch-aot",
    costs=Costs(model="measured"),
    tensors=(
        tensor("w", role="parameter", name="layer.w"),
        tensor("b", role="parameter", name="layer.b"),
        tensor("h"),
        tensor("dw", gradient_of="w"),
        tensor("db", gradient_of="b", bytes=8, dtype="bfloat16"),
        tensor("new"),
    ),
    ops=(op("f", "forward", "h"), op("g", "backward", "db"), op("k", "backward", "dw", 3), op("o", "optimizer", "new")),
    gradient_order=("db", "dw"),
)


def test_a_trace_gives_its_gradients_as_they_become_ready_and_no_optimizer() -> None:
    assert keys_of(STEP).keys == (
        ServerKey(name="layer.b", elements=4, dtype="bfloat16", ready_ns=10),
        ServerKey(name="layer.w", elements=10, ready_ns=13),
    )
    assert keys_of(STEP).compute_ns == 13


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (replace(STEP, gradient_order=()), "no gradients of parameters"),
        (replace(STEP, ops=(op("f", "forward", "h", None), *STEP.ops[1:])), "op 'f' has no time"),
        (replace(STEP, tensors=tuple(replace(each, dtype="float64") for each in STEP.tensors)), "layer.b in float64"),
    ],
    ids=("no gradients", "no times", "numbers that do not travel"),
)
def test_traces_that_no_server_can_serve(step: Trace, message: str) -> None:
    with pytest.raises(InputError, match=message):
        keys_of(step)


def test_parts_become_whole_rates_and_the_costs_of_the_carrier() -> None:
    problem = problem_of(KEYS, PARTS, setup=ServerSetup(workers=3, optimizer="adam"))
    assert problem.machine == ServerMachine(
        name="box",
        domains=(4, 2),
        interfaces=(
            MachineInterface(name="eth0", domain=0, rate=1_250_000_000),
            MachineInterface(name="eth1", domain=1, rate=3_500_000_000, slot_rate=8_000_000_000),
        ),
        memory_rate=20_000_000_000,
        bridge_rate=9_500_000_000,
        work=CoreWork(
            receive_ns_per_MB=100_000,
            add_ns_per_MB=80_250,
            optimize_ns_per_MB=90_500,
            send_ns_per_MB=90_000,
            message_ns=1500,
        ),
    )
    assert (problem.carrier, problem.worker_rate, problem.latency_ns) == ("tcp", 3_500_000_000, 0)
    assert (problem.keys, problem.compute_ns) == (KEYS.keys, 9)
    shared = problem_of(KEYS, PARTS, setup=ServerSetup(workers=3, carrier="shared"))
    assert (shared.worker_rate, shared.machine.work) == (None, CoreWork(optimize_ns_per_MB=50_000))


@pytest.mark.parametrize(
    ("setup", "servers"),
    [
        (ServerSetup(workers=6, mode="cs"), 6),
        (ServerSetup(workers=6, mode="ncs"), 6),
        (ServerSetup(workers=6, mode="ncs", shards=2), 2),
        (ServerSetup(workers=6, mode="cc"), 1),
        (ServerSetup(workers=6, racks=3, rack_gbps=10), 3),
    ],
    ids=("cs", "ncs", "two shards", "cc", "racks"),
)
def test_each_mode_has_its_servers_and_a_setup_can_be_read_back(setup: ServerSetup, servers: int) -> None:
    problem = problem_of(KEYS, PARTS, setup=setup)
    assert problem.servers == servers
    assert problem_again(problem, {"keys": KEYS, "parts": PARTS}) == problem
    assert problem_again(problem, {"keys": KEYS}) is None
    assert problem_again(problem, {"problem": problem}) == problem
    assert setup_of(problem).workers == 6


def test_nodes_of_a_cluster_are_workers_and_its_uplinks_racks() -> None:
    hosts = profile("racks-2x4", host=Host(cpu_cores=4))
    problem = problem_of(KEYS, parts_of(hosts), hardware=hosts)
    assert (problem.workers, problem.racks, problem.servers) == (8, 2, 2)
    assert hosts.network is not None
    beta = hosts.network.uplinks[0].beta_us_per_MB
    assert problem.core_rate == round((1 << 20) * 1e6 / beta)
    assert problem.latency_ns >= 1000 * hosts.network.alpha_us
    one = problem_of(KEYS, parts_of(hosts), hardware=hosts, setup=ServerSetup(racks=1))
    assert (one.racks, one.core_rate) == (1, None)
    slow = problem_of(KEYS, parts_of(hosts), hardware=hosts, setup=ServerSetup(rack_gbps=1e-9))
    assert slow.core_rate == 1


def test_a_node_of_a_profile_is_a_server_with_its_cards_in_their_domains() -> None:
    node = profile(
        "cluster-25gbe",
        host=Host(cpu_cores=9, numa_nodes=2, memory_bytes=1 << 30),
        nics=(Nic(name="n0", devices=(0,), speed_gbps=100, pcie="leaf"), Nic(name="n1", devices=(0,))),
        pcie=(PcieSwitch(name="root", numa=1), PcieSwitch(name="leaf", parent="root")),
    )
    assert node.network is not None
    parts = parts_of(node)
    assert [(each.name, each.domain) for each in parts.interfaces] == [("n0", 1), ("n1", 0)]
    assert parts.interfaces[0].link_gbps == 100
    assert parts.interfaces[1].link_gbps == pytest.approx((1 << 20) * 8e-3 / node.network.beta_us_per_MB)
    assert ([each.cores for each in parts.domains], parts.memory_bytes) == ([5, 4], 1 << 30)
    assert parts.bridge_GBps is None
    with pytest.raises(InputError, match=r"host.cpu_cores: found no number of cores"):
        parts_of(replace(node, host=Host()))


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (ServerSetup(), "--workers"),
        (ServerSetup(workers=5, racks=2, rack_gbps=10), "as many in each rack"),
        (ServerSetup(workers=4, racks=2), "the rate of a rack's link"),
        (ServerSetup(workers=4, cores_per_interface=3), "at least 3, for its interfaces"),
        (ServerSetup(workers=4, mode="ncs", shards=10**30), "expected at most 4096"),
    ],
    ids=("no workers", "uneven racks", "no link", "too few cores", "too many servers"),
)
def test_setups_that_do_not_fit_are_refused(setup: ServerSetup, message: str) -> None:
    with pytest.raises(InputError, match=message):
        problem_of(KEYS, PARTS, setup=setup)


def test_what_was_not_measured_is_said() -> None:
    setup = ServerSetup(workers=2)
    assert unmeasured(problem_of(KEYS, PARTS, setup=setup)) == []
    bare = problem_of(KEYS, replace(PARTS, bridge_GBps=None, memory_GBps=None, costs={}), setup=setup)
    said = " ".join(unmeasured(bare))
    assert "bridge between cards and memory was not measured" in said
    assert "rate of memory is not known" in said
    idle = problem_of(KEYS, replace(PARTS, optimize_us_per_MB={}), setup=setup)
    assert unmeasured(idle) == ["no costs of the optimizer sgd are known, so it takes no time"]
    assert (
        "no costs of cores"
        in unmeasured(problem_of(KEYS, replace(PARTS, costs={}, optimize_us_per_MB={}), setup=setup))[0]
    )
