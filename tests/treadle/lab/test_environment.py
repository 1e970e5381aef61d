"""Programs for several hosts find their place with the names they look for."""

from __future__ import annotations

from tests.treadle.lab.test_layout import cluster
from treadle.lab.environment import per_host, per_rank
from treadle.lab.layout import layout
from treadle.planner.documents.hardware import Device, OtherNodes


def test_ranks_count_through_unequal_hosts() -> None:
    devices = (Device(model="cpu", kind="cpu", count=3),)
    made = layout(cluster(2, 2, other_nodes=(OtherNodes(devices=devices),)), 10)
    places = [(place, local) for place, host in enumerate(made.hosts) for local in range(host.devices)]
    found = [per_rank(made, *place) for place in places]
    assert [each["RANK"] for each in found] == [str(rank) for rank in range(7)]
    assert [each["LOCAL_RANK"] for each in found] == ["0", "1", "0", "1", "0", "1", "2"]
    assert [each["LOCAL_WORLD_SIZE"] for each in found] == ["2"] * 4 + ["3"] * 3
    assert {each["WORLD_SIZE"] for each in found} == {"7"}
    assert {each["MASTER_ADDR"] for each in found} == {"10.64.0.1"}
    assert {each["TREADLE_LATENCY_US"] for each in found} == {"300"}
    assert not any(name.startswith("PET") for each in found for name in each)


def test_torchrun_gets_its_node_and_the_number_of_devices() -> None:
    found = per_host(layout(cluster(3, 2)), 1, 29501)
    assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_WORLD_SIZE"]) == ("1", "3", "1")
    assert {name: value for name, value in found.items() if name.startswith("PET")} == {
        "PET_NNODES": "3",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.64.0.1",
        "PET_MASTER_PORT": "29501",
        "PET_NPROC_PER_NODE": "2",
    }
