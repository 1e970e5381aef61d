"""Stream sockets between all ranks of a job, each accepted only from a peer that knows the job's secret."""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import struct
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import psutil

from treadle.host.loopback import stay_on_loopback
from treadle.planner.errors import CheckFailed, InputError

SECRET_BYTES = 32
JOIN_SECONDS = 60.0
GREETING = struct.Struct(f"!4sI{SECRET_BYTES}s")
MAGIC = b"trdl"
LOCAL = sys.platform == "linux"
"""Whether ranks of one host reach each other by name."""
UNSENT_BYTES = 32 << 10
"""How much of a stream the kernel may hold that it has not sent, so that what is most urgent goes next."""

Gather = Callable[[Any], list[Any]]
"""Exchanges a value of each rank: returns those of all ranks, in order, on all of them."""
LATENCY = "TREADLE_LATENCY_US"
"""Environment variable: microseconds that a lab adds to each message between hosts."""


_connected: weakref.WeakSet[socket.socket] = weakref.WeakSet()
TCP_RTO_MAX_MS = 44
"""Linux 6.15; Python has no name for it."""


def connect(rank: int, ranks: int, gather: Gather, address: str | None = None) -> list[socket.socket | None]:
    """A socket to every other rank, by rank: of the family AF_UNIX to one of this host, else TCP. All ranks call it.

    They listen at `address`, by default that of the interface of GLOO_SOCKET_IFNAME, or of the loopback interface where
    it is not set; ranks of one address are on one host. Raises InputError for an interface that is not there,
    CheckFailed where a rank cannot be reached.
    """
    address = address or interface_address()
    with ExitStack() as listening, ExitStack() as connected:
        listeners = [listening.enter_context(socket.create_server((address, 0), backlog=ranks))]
        name = f"treadle-{secrets.token_hex(16)}"
        if LOCAL:
            near = listening.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            near.bind("\0" + name)
            near.listen(ranks)
            listeners.append(near)
        met = gather((address, listeners[0].getsockname()[1], name, secrets.token_bytes(SECRET_BYTES)))
        job = met[0][3]
        found: list[socket.socket | None] = [None] * ranks
        connected.callback(close, found)
        for other in range(rank):
            here = LOCAL and met[other][0] == address
            found[other] = _reach("\0" + met[other][2] if here else met[other][:2], rank, other, job)
        _accept(listeners, found, rank, job)
        for each in found:
            if each is not None:
                _tune(each)
                _connected.add(each)
        connected.pop_all()
        return found


def _accept(listeners: Sequence[socket.socket], found: list[socket.socket | None], rank: int, job: bytes) -> None:
    """The sockets of all later ranks, into `found`."""
    end = time.monotonic() + JOIN_SECONDS
    with selectors.DefaultSelector() as selector:
        for listener in listeners:
            selector.register(listener, selectors.EVENT_READ, listener)
        while late := [other for other in range(rank + 1, len(found)) if found[other] is None]:
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                raise CheckFailed(f"rank {', '.join(map(str, late))} did not connect within {JOIN_SECONDS:g} s")
            peer, _ = ready[0][0].data.accept()
            other = _greeted(peer, job)
            if other in late:
                found[other] = peer
            else:
                peer.close()


def close(sockets: Iterable[socket.socket | None]) -> None:
    for each in sockets:
        if each is not None:
            each.close()


if hasattr(os, "register_at_fork"):
    # A worker of a DataLoader would otherwise keep them open after its parent has died.
    os.register_at_fork(after_in_child=lambda: close(_connected))


def close_in_forks(claim: socket.socket) -> None:
    """Have processes that are forked from this one close their copy."""
    _connected.add(claim)


def interface_address() -> str:
    """The IPv4 address of the interface that GLOO_SOCKET_IFNAME names, by default the loopback interface's."""
    stay_on_loopback()
    named = named_interface()
    assert named is not None
    return named[1]


def named_interface() -> tuple[str, str] | None:
    """The interface that GLOO_SOCKET_IFNAME names first, with its IPv4 address; None where it is not set."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if not name:
        return None
    found = ipv4_addresses()
    if name not in found:
        have = ", ".join(sorted(found))
        raise InputError(f"found no interface {name!r} with an IPv4 address, have: {have}", where="GLOO_SOCKET_IFNAME")
    return name, found[name]


def ipv4_addresses() -> dict[str, str]:
    """The first IPv4 address of each interface that has one."""
    return {
        name: each.address
        for name, addresses in psutil.net_if_addrs().items()
        for each in reversed(addresses)
        if each.family == socket.AF_INET
    }


def address_towards(host: str, port: int) -> str:
    """The IPv4 address of this host from which another one is reached. Raises OSError where it is not."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing
        return str(probe.getsockname()[0])


def host_and_port(text: str, where: str) -> tuple[str, int]:
    """`HOST:PORT`. Raises InputError for anything else."""
    host, _, port = text.strip().rpartition(":")
    valid = port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
    if not host or not valid or any(each in host for each in "/@?#") or not host.isprintable():
        raise InputError(f"found {text[:80]!r}, expected HOST:PORT", where=where)
    return host, int(port)


def _reach(address: str | tuple[str, int], rank: int, other: int, job: bytes) -> socket.socket:
    """A connection to rank `other`: by name on this host, by address and port on another."""
    end = time.monotonic() + JOIN_SECONDS
    while True:
        peer = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET, socket.SOCK_STREAM)
        try:
            peer.settimeout(JOIN_SECONDS)
            peer.connect(address)
            peer.sendall(GREETING.pack(MAGIC, rank, job))
            return peer
        except OSError as error:
            peer.close()
            if time.monotonic() > end:
                place = "on this host" if isinstance(address, str) else f"at {address[0]}"
                raise CheckFailed(f"rank {other} {place} cannot be reached: {error.strerror or error}") from None
            time.sleep(0.05)


def _greeted(peer: socket.socket, job: bytes) -> int:
    """The rank of a peer that knows the secret; -1 for any other."""
    peer.settimeout(5)
    data = b""
    try:
        while len(data) < GREETING.size and (part := peer.recv(GREETING.size - len(data))):
            data += part
    except OSError:
        return -1
    if len(data) < GREETING.size:
        return -1
    magic, rank, secret = GREETING.unpack(data)
    return int(rank) if magic == MAGIC and hmac.compare_digest(secret, job) else -1


def _tune(peer: socket.socket) -> None:
    """No delay of small messages; a silent host is lost after some seconds where no data waits for its answer (where
    some does, the kernel would also give up a rank that is only late, so executors ask what was acknowledged); no BBR,
    whose pacing lets a link that several messages share one after the other idle: an allreduce took 1.6 times as long
    with it."""
    peer.settimeout(None)
    if peer.family != socket.AF_INET:
        return
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
        ("TCP_NOTSENT_LOWAT", UNSENT_BYTES),
    ):
        if hasattr(socket, option):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if LOCAL:
        with suppress(OSError):  # so that a host whose rank is late is still asked often
            peer.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, 2000)
    if LOCAL and peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"bbr"):
        for control in (b"cubic", b"reno"):
            with suppress(OSError):
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)
                break


def added_us() -> float:
    """Microseconds that a lab adds to each message between hosts. Raises InputError for a latency that is no number."""
    text = os.environ.get(LATENCY, "").strip() or "0"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e6:
        raise InputError(f"found {text!r}, expected microseconds from 0 to 1000000", where=LATENCY)
    return value
