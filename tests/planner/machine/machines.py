"""Machines that tests of prices share."""

from __future__ import annotations

from random import Random

from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Device, Hardware, Network, Nic, Switch, Transport, scaled
from treadle.planner.machine.rates import Machine, machine_of


def profile(name: str, nodes: int = 1) -> Hardware:
    return scaled(store.load(resources.locate("profiles", name), Hardware), nodes)


def shipped(name: str, nodes: int = 1) -> Machine:
    return machine_of(profile(name, nodes))


def random_machine(random: Random) -> Machine:
    """From one rank to some 100, slow and fast in every part."""
    per_node = random.choice([1, 2, 3, 4, 8, 16])
    device = Device(
        model="any",
        kind="gpu",
        count=per_node,
        memory_bandwidth=10 ** random.uniform(9, 13),
        peak_flops={"float16": 10 ** random.uniform(10, 15), "float32": 10 ** random.uniform(9, 14)},
        launch_us=random.choice([0.0, 1.0, 20.0]),
        multiprocessors=random.choice([None, 8, 80]),
    )
    switch = Switch(
        name="switch",
        kind=random.choice(["nvswitch", "pcie"]),
        members=tuple(range(per_node)),
        alpha_us=random.uniform(0, 10),
        beta_us_per_MB=10 ** random.uniform(-2, 3),
    )
    network = Network(kind="ib", alpha_us=random.uniform(0, 40), beta_us_per_MB=10 ** random.uniform(-2, 3))
    slow = Transport(launch_us=0.5, link_efficiency=1.0, local_gbps=0.5, step_us=3.0)
    return machine_of(
        Hardware(
            version=1,
            name="random",
            nodes=random.choice([1, 2, 3, 8]),
            devices=(device,),
            switches=(switch,),
            network=network,
            nics=random.choice([(), (Nic(name="nic", devices=(0,)),)]),
            transport=random.choice([None, Transport(), slow]),
        )
    )
