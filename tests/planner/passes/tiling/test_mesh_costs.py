"""Axes of a mesh on hardware: which links they run over, and what a transfer along them costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.planner.machine.gradient_links import inter_link, intra_link
from treadle.planner.passes.tiling.extract import mesh_axes
from treadle.planner.passes.tiling.problem import TransferCost

MIB = 1 << 20


def profile(name: str) -> Hardware:
    return store.load(Path("profiles") / f"{name}.yaml", Hardware)


def test_the_last_axis_lies_inside_a_node_and_the_first_shares_its_nics() -> None:
    hosts = profile("hosts-2x2")  # two nodes of two ranks
    between, inside = mesh_axes((2, 2), hosts)
    rates = [round(MIB * 1e6 / (link.beta_us_per_MB * share)) for link, share in
             ((inter_link(hosts), 2), (intra_link(hosts), 1))]  # fmt: skip
    assert [between.costs[0].rate, inside.costs[0].rate] == pytest.approx([2 * rate for rate in rates], rel=1e-6)
    assert between.costs[0].alpha_ns == round(inter_link(hosts).alpha_us * 1e3)
    assert (between.alltoall, inside.alltoall) == ("gathered", "gathered")  # processes of CPUs, so gloo


def test_costs_are_those_of_rings() -> None:
    (axis,) = mesh_axes((4,), profile("ndv4"))
    link = intra_link(profile("ndv4"))
    rate = MIB * 1e6 / link.beta_us_per_MB
    found = {cost.transfer: (cost.alpha_ns / (link.alpha_us * 1e3), cost.rate / rate) for cost in axis.costs}
    assert found == {
        "allgather": (3, pytest.approx(4 / 3)),
        "reduce-scatter": (3, pytest.approx(4 / 3)),
        "allreduce": (6, pytest.approx(2 / 3)),
        "alltoall": (3, pytest.approx(16 / 3)),
    }


def test_planned_costs_take_the_place_of_modelled_ones() -> None:
    planned = TransferCost(transfer="allreduce", alpha_ns=5, rate=7)
    (axis,) = mesh_axes((4,), profile("ndv4"), planned={"x0": [planned]})
    assert planned in axis.costs
    assert len(axis.costs) == 4


def test_a_mesh_needs_as_many_ranks() -> None:
    assert mesh_axes((64,))[0].costs == ()
    with pytest.raises(InputError, match="found a mesh of 64 workers, expected at most the 8 ranks"):
        mesh_axes((64,), profile("ndv4"))
