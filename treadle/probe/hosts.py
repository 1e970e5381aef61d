"""Measure the network between hosts: one process per rank, started as torchrun or `treadle lab run` does.

Rank 0 says which streams run, one experiment after the other. All ranks meet in PyTorch's store at MASTER_ADDR.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any

from treadle.lab.environment import LAB
from treadle.planner.errors import CheckFailed, InputError, MissingBackendError
from treadle.probe.hosts_profile import Inside, MeasuredHost, profile
from treadle.probe.local import detect
from treadle.probe.streams import Listener, Pair, connected, latency_us, listen, rates
from treadle.probe.survey import Survey, survey
from treadle.runtime.joined import common_store, joined_rank
from treadle.runtime.sockets import added_us, ipv4_addresses, named_interface

if TYPE_CHECKING:
    from treadle.planner.documents.hardware import Hardware

ANSWER, IDLE = timedelta(seconds=60), timedelta(hours=2)
"""How long rank 0 waits for an answer, and the others for the next experiment."""
LATENCY_PAIRS = 4


@dataclass(frozen=True)
class _Member:
    rank: int
    listener: Listener
    store: Any


def measure_hosts(*, command: str, on_step: Callable[[int], None] = lambda done: None) -> Hardware | None:
    """Measure the network between the hosts of all ranks; the profile on rank 0, None on the others.

    `on_step(done)` is called on rank 0 after each experiment. Raises InputError for an environment that cannot be,
    MissingBackendError without torch, CheckFailed where another rank does not answer.
    """
    here = joined_rank()
    if here is None:
        raise InputError("found nothing, expected a number", where="RANK")
    rank, world = here
    added = added_us()
    interface, address = _interface()
    store = _store(rank, world)
    try:
        if rank == 0:
            store.set("nonce", secrets.token_hex(8))
        nonce = store.get("nonce")
        member = _Member(rank, listen(address, nonce), store)
        store.set(f"peer/{rank}", json.dumps({"at": member.listener.address, "host": _host(interface)}))
        if rank != 0:
            _follow(member)
            return None
        hosts, found, alpha, inside = _lead(member, world, on_step)
    except OSError as error:
        raise CheckFailed(f"rank {rank}: a stream between two ranks ended: {error.strerror or error}") from None
    except RuntimeError as error:  # what the store raises
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckFailed(f"rank {rank}: another rank has ended or does not answer: {line}") from None
    return profile(hosts, found, alpha + added, inside, command, added, one_machine=LAB in os.environ)


def _lead(
    member: _Member, world: int, on_step: Callable[[int], None]
) -> tuple[list[MeasuredHost], Survey, float, Inside | None]:
    """The hosts, the network between them, its latency in microseconds, and what is between processes of a host."""
    peers = [json.loads(member.store.get(f"peer/{rank}")) for rank in range(world)]
    runs = [list(run) for _, run in groupby(range(world), lambda rank: peers[rank]["at"][0])]
    if len({peers[run[0]]["at"][0] for run in runs}) < len(runs):
        raise InputError("found ranks of a host that do not follow each other, expected host after host", where="RANK")
    if len(runs) < 2:
        raise InputError(f"found {world} ranks on one host, expected several hosts", where="WORLD_SIZE")
    leaders = [run[0] for run in runs]
    experiments = 0

    def conduct(kind: str, pairs: Sequence[Pair]) -> list[float]:
        nonlocal experiments
        experiments += 1
        text = json.dumps({"kind": kind, "number": experiments, "pairs": pairs})
        taking_part = sorted({rank for pair in pairs for rank in pair})
        for rank in taking_part:
            member.store.set(f"job/{rank}/{member.store.add(f'jobs/{rank}', 1)}", text)
        if 0 in taking_part:
            _take_part(member, json.loads(text))
        found: dict[int, float] = {}
        for rank in taking_part:
            answer = json.loads(member.store.get(f"answer/{experiments}/{rank}"))
            found |= {int(place): rate for place, rate in answer.items()}
        on_step(experiments)
        return [found[place] for place in range(len(pairs))]

    def streams(pairs: Sequence[Pair]) -> list[float]:
        return conduct("rates", [(leaders[src], leaders[dst]) for src, dst in pairs])

    try:
        others = leaders[1:][:LATENCY_PAIRS]
        alpha = median(conduct("latency", [(0, rank)])[0] for rank in others)
        within = [(run[0], run[1]) for run in runs if len(run) > 1]
        inside = (
            Inside(
                median(conduct("latency", [pair])[0] for pair in within),
                median(conduct("rates", [pair])[0] for pair in within),
            )
            if within
            else None
        )
        found = survey(len(leaders), streams)
    finally:
        for rank in range(1, world):
            member.store.set(f"job/{rank}/{member.store.add(f'jobs/{rank}', 1)}", json.dumps({"kind": "end"}))
    for rank in range(1, world):  # the store ends with this process
        member.store.get(f"ended/{rank}")
    return [MeasuredHost(ranks=len(run), **peers[run[0]]["host"]) for run in runs], found, alpha, inside


def _follow(member: _Member) -> None:
    done = 0
    while True:
        done += 1
        key = f"job/{member.rank}/{done}"
        member.store.wait([key], IDLE)
        job = json.loads(member.store.get(key))
        if job["kind"] == "end":
            member.store.set(f"ended/{member.rank}", "")
            return
        _take_part(member, job)


def _take_part(member: _Member, job: dict[str, Any]) -> None:
    """Open the streams of this rank, start them together with all others of the experiment, and answer."""
    store, number = member.store, job["number"]
    pairs = [(int(src), int(dst)) for src, dst in job["pairs"]]
    taking_part = {rank for pair in pairs for rank in pair}
    addresses = {dst: _at(store, dst) for src, dst in pairs if src == member.rank}
    outgoing, incoming = connected(member.listener, member.rank, pairs, addresses)
    if store.add(f"ready/{number}", 1) == len(taking_part):
        store.set(f"go/{number}", "")
    store.wait([f"go/{number}"], ANSWER)
    if job["kind"] == "latency":
        ends = [(place, stream, True) for place, stream in outgoing.items()]
        ends += [(place, stream, False) for place, stream in incoming.items()]
        found = {}
        for place, stream, starts in ends:
            time_us = latency_us(stream, starts=starts)
            stream.close()
            if starts:
                found[place] = time_us
    else:
        found = rates(outgoing, incoming, is_alone=len(pairs) == 1)
    store.set(f"answer/{number}/{member.rank}", json.dumps(found))


def _at(store: Any, rank: int) -> tuple[str, int]:
    host, port = json.loads(store.get(f"peer/{rank}"))["at"]
    return str(host), int(port)


def _store(rank: int, world: int) -> Any:
    try:
        from torch.distributed.distributed_c10d import PrefixStore
    except ModuleNotFoundError:
        raise MissingBackendError("measuring needs torch; install it with: pip install 'treadle[torch]'") from None
    store = common_store(rank, world)
    store.set_timeout(ANSWER)
    return PrefixStore("treadle-measure", store)


def _interface() -> tuple[str, str]:
    """The interface that is measured and its address: that of GLOO_SOCKET_IFNAME, else the one towards MASTER_ADDR."""
    named = named_interface()
    if named is not None:
        return named
    master = os.environ["MASTER_ADDR"]
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((master, 9))
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise InputError(f"{master} cannot be reached: {error.strerror or error}", where="MASTER_ADDR") from None
    return next((name for name, at in ipv4_addresses().items() if at == address), "eth0"), address


def _host(interface: str) -> dict[str, object]:
    host = detect().host
    return {
        "interface": interface,
        "cpu_model": host.cpu_model or "unknown CPU",
        "cpu_cores": host.cpu_cores,
        "memory_bytes": host.memory_bytes,
    }
