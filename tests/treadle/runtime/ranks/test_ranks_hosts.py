"""Which host a process is on, and which ranks have which places."""

from __future__ import annotations

import os
import socket
from collections import namedtuple

import pytest

from treadle.planner.errors import InputError
from treadle.planner.passes.ranks.problem import RankedHost
from treadle.runtime.ranks import hosts as module
from treadle.runtime.ranks.hosts import host_here, in_order, ranks_by_host

Address = namedtuple("Address", ["address"])


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is called alpha, with an address for which the name beta.example stands, too."""
    addresses = {"lo": [Address("127.0.0.1"), Address("::1")], "eth0": [Address("10.0.0.9")]}

    def looked_up(name: str, _port: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if name == "localhost":
            return [(0, 0, 0, "", ("127.0.0.1", 0))]
        if name == "beta.example":
            return [(0, 0, 0, "", ("10.0.0.9", 0))]
        raise socket.gaierror

    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "alpha", "", "", "")))
    monkeypatch.setattr(socket, "getfqdn", lambda: "alpha.example")
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    monkeypatch.setattr(module.psutil, "net_if_addrs", lambda: addresses)


@pytest.mark.parametrize("name", ["alpha", "alpha.example", "10.0.0.9", "beta.example"])
def test_a_host_is_found_by_its_name_its_address_or_what_a_name_stands_for(name: str) -> None:
    assert host_here(["gamma", name, "delta"]) == 1


def test_a_name_that_is_the_hosts_own_comes_before_one_that_stands_for_its_address() -> None:
    assert host_here(["beta.example", "alpha"]) == 1


def test_loopback_addresses_are_those_of_every_host() -> None:
    assert host_here(["gamma", "localhost", "127.0.0.1"]) is None


TWO = (RankedHost(name="a", slots=2), RankedHost(name="b", slots=2))


def test_ranks_of_a_host_stay_together_whatever_order_they_were_started_in() -> None:
    ranks = ranks_by_host(TWO, [("x", 1), ("y", 0), ("x", 1), ("y", 0)])
    assert ranks == [[1, 3], [0, 2]]
    assert in_order(ranks, (1, 0)) == [0, 2, 1, 3]


def test_ranks_that_are_elsewhere_or_too_many_are_refused() -> None:
    with pytest.raises(InputError, match="rank 1 is on 'y', expected one of the 2 hosts of the plan"):
        ranks_by_host(TWO, [("x", 0), ("y", None)])
    with pytest.raises(InputError, match="host a has 3 ranks, expected 2 as planned"):
        ranks_by_host(TWO, [("x", 0), ("x", 0), ("x", 0), ("y", 1)])
