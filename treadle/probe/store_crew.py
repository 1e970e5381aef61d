"""Hosts whose processes another program started, one for each rank: they meet in PyTorch's store at MASTER_ADDR."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from queue import Empty, Queue
from threading import Thread
from typing import Any

from treadle.planner.documents.cost_matrix import CostHost
from treadle.planner.errors import CheckFailed, InputError, MissingBackendError
from treadle.probe.crew import ANSWER_SECONDS, Crew, CrewHost
from treadle.probe.local import detect
from treadle.probe.member import Message, PairMember
from treadle.runtime.joined import common_store
from treadle.runtime.sockets import address_towards, ipv4_addresses, named_interface

IDLE_SECONDS = 2 * 3600.0
"""How long a rank waits for the next experiment."""


class StoreChannel:
    """One side of the keys under which messages to a rank lie, and its answers. Raises RuntimeError as the store."""

    def __init__(self, store: Any, rank: int, reads: str, writes: str) -> None:
        self.store, self.reads, self.writes = store, f"{reads}/{rank}", f"{writes}/{rank}"
        self.read = self.written = 0

    def send(self, message: Message) -> None:
        self.store.set(f"{self.writes}/{self.written}", json.dumps(message))
        self.written += 1

    def receive(self, seconds: float = IDLE_SECONDS) -> Message:
        key = f"{self.reads}/{self.read}"
        self.store.wait([key], timedelta(seconds=seconds))
        message: Message = json.loads(self.store.get(key))
        self.store.delete_key(key)
        self.read += 1
        return message


class QueueChannel:
    """Between the leader and the rank of the same process."""

    def __init__(self, reads: Queue[Message], writes: Queue[Message]) -> None:
        self.reads, self.writes = reads, writes

    def send(self, message: Message) -> None:
        self.writes.put(message)

    def receive(self, seconds: float = IDLE_SECONDS) -> Message:
        return self.reads.get(timeout=seconds)


class StoreCrew:
    """The processes of all ranks, by rank; rank 0 is the leader and takes part as well."""

    def __init__(self, store: Any, world: int, member: PairMember) -> None:
        peers = [json.loads(store.get(f"peer/{rank}")) for rank in range(world)]
        self.hosts = tuple(CrewHost(each["facts"]["name"], 1, tuple(each["at"]), each["facts"]) for each in peers)
        there: Queue[Message] = Queue()
        back: Queue[Message] = Queue()
        self.channels: list[StoreChannel | QueueChannel] = [QueueChannel(back, there)]
        self.channels += [StoreChannel(store, rank, "from", "to") for rank in range(1, world)]
        Thread(target=_serve, args=(member, QueueChannel(there, back)), name="treadle-member", daemon=True).start()

    def send(self, place: int, message: Message) -> None:
        with self._answers(place):
            self.channels[place].send(message)

    def receive(self, place: int, seconds: float) -> Message:
        with self._answers(place):
            message = self.channels[place].receive(seconds)
        if message["kind"] == "failed":
            raise CheckFailed(f"rank {place}: {message['line']}")
        return message

    @contextmanager
    def _answers(self, place: int) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, Empty):  # what the store raises, and what the queue does
            raise CheckFailed(f"rank {place}, {self.hosts[place].name}, has ended or does not answer") from None


@contextmanager
def store_crew(rank: int, world: int) -> Iterator[StoreCrew | None]:
    """The crew on rank 0; None on all other ranks, when they have taken part in everything.

    Raises InputError for an environment that cannot be, MissingBackendError without torch, CheckFailed where another
    rank does not answer.
    """
    interface, address = interface_towards_master()
    store = _store(rank, world)
    try:
        if rank == 0:
            store.set("nonce", secrets.token_hex(16))
        member = PairMember(address, store.get("nonce"))
        store.set(f"peer/{rank}", json.dumps({"at": member.at, "facts": _facts(interface)}))
        if rank == 0:
            yield StoreCrew(store, world, member)
            return
        _serve(member, StoreChannel(store, rank, "to", "from"))
    except OSError as error:
        raise CheckFailed(f"rank {rank}: {_lost_stream(error)}") from None
    except RuntimeError as error:  # what the store raises
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckFailed(f"rank {rank}: another rank has ended or does not answer: {line}") from None
    yield None


def hosts_of(crew: Crew) -> tuple[list[int], list[CostHost]]:
    """The first rank of each host, and the hosts; ranks with one address are on one host, which has as many slots."""
    ranks: dict[str, list[int]] = {}
    for rank, each in enumerate(crew.hosts):
        ranks.setdefault(each.at[0], []).append(rank)
    firsts = [own[0] for own in ranks.values()]
    if len(firsts) < 2:
        raise InputError(f"found {len(crew.hosts)} ranks on one host, expected several hosts", where="WORLD_SIZE")
    names = [crew.hosts[rank].name for rank in firsts]
    if len(set(names)) < len(names):  # hosts of one image may all have its name
        names = list(ranks)
    hosts = [
        CostHost(name=name, address=address, slots=len(own))
        for name, (address, own) in zip(names, ranks.items(), strict=True)
    ]
    return firsts, hosts


def _serve(member: PairMember, channel: StoreChannel | QueueChannel) -> None:
    try:
        member.serve(channel)
    except OSError as error:
        channel.send({"kind": "failed", "line": _lost_stream(error)})


def _lost_stream(error: OSError) -> str:
    return f"a stream between two ranks ended: {error.strerror or error}"


def _store(rank: int, world: int) -> Any:
    try:
        from torch.distributed.distributed_c10d import PrefixStore
    except ModuleNotFoundError:
        raise MissingBackendError("measuring needs torch; install it with: pip install 'treadle[torch]'") from None
    store = common_store(rank, world)
    store.set_timeout(timedelta(seconds=ANSWER_SECONDS))
    return PrefixStore("treadle-measure", store)


def interface_towards_master() -> tuple[str, str]:
    """The interface that is measured and its address: that of GLOO_SOCKET_IFNAME, else the one towards MASTER_ADDR."""
    named = named_interface()
    if named is not None:
        return named
    master = os.environ["MASTER_ADDR"]
    try:
        address = address_towards(master, 9)
    except OSError as error:
        raise InputError(f"{master} cannot be reached: {error.strerror or error}", where="MASTER_ADDR") from None
    return next((name for name, at in ipv4_addresses().items() if at == address), "eth0"), address


def _facts(interface: str) -> Message:
    host = detect().host
    return {
        "name": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "interface": interface,
        "cpu_model": host.cpu_model or "unknown CPU",
        "cpu_cores": host.cpu_cores,
        "memory_bytes": host.memory_bytes,
    }
