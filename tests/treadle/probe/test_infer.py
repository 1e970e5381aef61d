"""Topology inference driven by a simulated PCIe tree: fair sharing on every PCIe link, noise, shuffled GPU numbers."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from treadle.planner.documents.hardware import Hardware, Link
from treadle.planner.errors import InputError
from treadle.probe.infer import PcieTree, infer_pcie, visible_devices
from treadle.probe.resolve import load_hardware

NDV2 = load_hardware("ndv2")


class SimulatedNode:
    """A node whose GPU i is the profile's GPU order[i]; a PCIe switch shares its uplink among what crosses it."""

    def __init__(self, hardware: Hardware, order: tuple[int, ...], nic: str, noise: float = 0.0, seed: int = 0) -> None:
        self.order = order
        self.switch = {gpu: pcie.name for pcie in hardware.pcie for gpu in pcie.devices}
        self.nic = nic
        self.nic_cpu = next(pcie.numa for pcie in hardware.pcie if pcie.name == nic)
        self.random = random.Random(seed)
        self.noise = noise
        self.cpus = (0, 1)
        self.gpus = tuple(range(len(order)))

    def _noisy(self, value: float) -> float:
        return value * (1 + self.random.uniform(-self.noise, self.noise))

    def loopback_latency_us(self, cpu: int) -> float:
        return self._noisy(1.6 if cpu == self.nic_cpu else 2.2)

    def copy_bandwidths(self, gpus, cpu, loopback):
        load: dict[str, int] = {}
        for gpu in gpus:
            load[self.switch[self.order[gpu]]] = load.get(self.switch[self.order[gpu]], 0) + 1
        if loopback and cpu == self.nic_cpu:
            load[self.nic] = load.get(self.nic, 0) + 1
        return [self._noisy(13.0 / load[self.switch[self.order[gpu]]]) for gpu in gpus]


def renumbered(hardware: Hardware, order: tuple[int, ...]) -> Hardware:
    """What `nvidia-smi topo -m` shows on the node: the links in its own numbering."""
    back = {canonical: own for own, canonical in enumerate(order)}
    links = tuple(
        Link(src=back[link.src], dst=back[link.dst], kind=link.kind, count=link.count) for link in hardware.links
    )
    return replace(hardware, name="seen", links=links)


@given(st.permutations(range(8)), st.sampled_from([pcie.name for pcie in NDV2.pcie]), st.integers(0, 99))
def test_the_tree_is_found_whatever_the_numbering_and_place_of_the_nic(order, nic, seed):
    node = SimulatedNode(NDV2, tuple(order), nic, noise=0.1, seed=seed)
    tree = infer_pcie(node)
    assert tree.nic_cpu == node.nic_cpu
    own = {canonical: gpu for gpu, canonical in enumerate(order)}
    expected = {pcie.name: tuple(sorted(own[gpu] for gpu in pcie.devices)) for pcie in NDV2.pcie}
    assert set(tree.pairs) == set(expected.values())
    assert tree.nic_pair == expected[nic]


@given(st.permutations(range(8)), st.sampled_from(["pcie0", "pcie2"]))
def test_the_chosen_order_keeps_every_link_and_puts_the_nic_next_to_gpu_0(order, nic):
    node = SimulatedNode(NDV2, tuple(order), nic)
    tree = infer_pcie(node)
    seen = renumbered(NDV2, node.order)
    chosen = visible_devices(seen, NDV2, tree)
    counts = {(link.src, link.dst): link.count for link in seen.links}
    assert {(chosen[link.src], chosen[link.dst]): link.count for link in NDV2.links} == counts
    assert set(chosen[:2]) == set(tree.nic_pair)
    assert node.switch[node.order[chosen[0]]] == nic


@pytest.mark.parametrize("nic", ["pcie1", "pcie3"])
def test_a_nic_outside_the_orbit_of_gpu_0_is_reported(nic):
    tree = infer_pcie(SimulatedNode(NDV2, tuple(range(8)), nic))
    with pytest.raises(InputError, match=r"expected it next to one of \[0, 1, 4, 5\]"):
        visible_devices(NDV2, NDV2, tree)


def test_of_the_four_automorphisms_the_smallest_good_one_is_taken():
    tree = PcieTree(1, ((0, 1), (2, 3), (4, 5), (6, 7)), (4, 5))
    count = {(link.src, link.dst): link.count for link in NDV2.links}
    good = [
        p
        for p in permutations(range(8))
        if p[0] in (4, 5) and all(count.get((p[a], p[b])) == number for (a, b), number in count.items())
    ]
    assert visible_devices(NDV2, NDV2, tree) == min(good)
    assert len(good) == 2


def test_another_graph_or_another_pairing_is_refused():
    tree = PcieTree(0, ((0, 1), (2, 3), (4, 5), (6, 7)), (0, 1))
    with pytest.raises(InputError, match="not those of 'ndv2' in any numbering"):
        visible_devices(load_hardware("mi300x"), NDV2, tree)
    crossed = PcieTree(0, ((0, 2), (1, 3), (4, 5), (6, 7)), (0, 2))
    with pytest.raises(InputError, match="fit no numbering"):
        visible_devices(NDV2, NDV2, crossed)


def test_unclear_answers_come_with_the_raw_numbers():
    node = SimulatedNode(NDV2, tuple(range(8)), "pcie0")
    node.switch[1] = "elsewhere"
    with pytest.raises(InputError, match=r"each GPU in exactly one pair; copies alone ran at GPU 0: 13,"):
        infer_pcie(node)
    node = SimulatedNode(NDV2, tuple(range(8)), "pcie0")
    node.nic = "under no GPU"
    with pytest.raises(InputError, match=r"slows down \(\), expected exactly one of the pairs"):
        infer_pcie(node)
