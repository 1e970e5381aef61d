"""Which of the hosts of a plan a process is on, and so which ranks have which place of an order."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress

import psutil

from treadle.planner.documents.explain import short
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError
from treadle.planner.passes.ranks.problem import RankedHost


def host_here(names: Sequence[str]) -> int | None:
    """Which of `names` is this host: by its name, by one of its addresses, by what a name stands for. None where none
    is."""
    addresses = {each.address for interface in psutil.net_if_addrs().values() for each in interface}
    addresses = {address for address in addresses if not address.startswith("127.") and address != "::1"}
    own = {os.uname().nodename, socket.getfqdn(), *addresses}
    for place, name in enumerate(names):
        if name in own:
            return place
    for place, name in enumerate(names):
        with suppress(OSError, UnicodeError):
            if addresses.intersection(str(each[4][0]) for each in socket.getaddrinfo(name, None)):
                return place
    return None


def ranks_by_host(hosts: Sequence[RankedHost], found: Sequence[tuple[str, int | None]]) -> list[list[int]]:
    """The ranks of each host of a plan; `found` has the name of each rank's machine and its host there. Raises
    InputError where a rank is elsewhere, and where a host has another number of ranks than slots."""
    ranks: list[list[int]] = [[] for _ in hosts]
    for rank, (machine, place) in enumerate(found):
        if place is None:
            raise InputError(f"rank {rank} is on {short(machine)}, expected one of the {len(hosts)} hosts of the plan")
        ranks[place].append(rank)
    for host, members in zip(hosts, ranks, strict=True):
        if len(members) != host.slots:
            raise InputError(f"host {host.name} has {many(len(members), 'rank')}, expected {host.slots} as planned")
    return ranks


def in_order(ranks: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """The rank at each place where hosts come in `order`."""
    return [rank for host in order for rank in ranks[host]]
