"""Proof on both sides of a new connection that the other knows the job's nonce, which itself never travels.

The server sends a challenge, 32 random bytes. The caller sends a greeting of fixed size, whose end is an HMAC-SHA256
over the challenge and the rest; the server answers with one of its own over both. What follows is neither encrypted nor
signed, so networks must be trusted not to change it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import socket
import struct
import time
from typing import Literal, NamedTuple

from treadle.planner.errors import CheckFailed, InputError

CHALLENGE_BYTES = NONCE_BYTES = PROOF_BYTES = hashlib.sha256().digest_size
GREETING_SECONDS = 10.0
NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")
WHO: dict[bytes, CallerKind] = {
    b"trdw": "worker",
    b"trdp": "peer",
    b"trds": "stream",
    b"trdr": "rank",
    b"trda": "agent",
}
_OF_AGENTS = ("rank", "agent")
_GREETING = struct.Struct("!4sqqQ32s64s")
GREETING_BYTES = _GREETING.size + PROOF_BYTES

Address = str | tuple[str, int]
"""The name of an AF_UNIX socket, or a host and a port."""
CallerKind = Literal["worker", "peer", "stream", "rank", "agent"]
"""Workers of a server, servers of other racks and data streams of both call a server; ranks and agents call an
agent."""


class Greeting(NamedTuple):
    """Who calls. `number` is a worker, a rank, an agent's machine or, of a peer, its server; a stream belongs to the
    session that the server has named, and to one of its slots. The session of ranks and agents is their epoch."""

    kind: CallerKind
    number: int
    namespace: str
    slot: int = 0
    session: int = 0


def written(greeting: Greeting, challenge: bytes, key: bytes) -> bytes:
    """What the caller sends. `key` is the nonce, of a stream the session's key."""
    magic = next(magic for magic, kind in WHO.items() if kind == greeting.kind)
    name = greeting.namespace.encode()
    fresh = secrets.token_bytes(32)
    body = _GREETING.pack(magic, greeting.number, greeting.slot, greeting.session, fresh, name)
    return body + _proof(key, b"caller", challenge, body)


def read(data: bytes) -> Greeting | None:
    """Who says to call, not yet proved; None where it is no greeting."""
    magic, number, slot, session, _, name = _GREETING.unpack(data[: _GREETING.size])
    namespace = name.rstrip(b"\0").decode("ascii", "replace")
    if magic not in WHO or not NAMESPACE.fullmatch(namespace):
        return None
    return Greeting(WHO[magic], number, namespace, slot, session)


def is_proved(data: bytes, challenge: bytes, key: bytes) -> bool:
    body, proof = data[: _GREETING.size], data[_GREETING.size :]
    return hmac.compare_digest(proof, _proof(key, b"caller", challenge, body))


def answer(data: bytes, challenge: bytes, key: bytes) -> bytes:
    """The server's proof."""
    return _proof(key, b"server", challenge, data)


def session_key(data: bytes, challenge: bytes, nonce: bytes) -> bytes:
    """The key for the streams that belong to a control stream."""
    return _proof(nonce, b"session", challenge, data)


def _proof(key: bytes, role: bytes, challenge: bytes, data: bytes) -> bytes:
    return hmac.digest(key, role + challenge + data, "sha256")


class ServerAway(CheckFailed):
    """No server or agent answers at an address; one may later."""


def call(
    address: Address, greeting: Greeting, key: bytes, wait_seconds: float = 0.0, *, patience: float = GREETING_SECONDS
) -> tuple[socket.socket, bytes]:
    """A connection whose server is the right one, and the session's key, which streams of a control stream use.

    An address without a listener is tried for `wait_seconds`; a host that answers nothing is waited for `patience`
    seconds at each step. Raises ServerAway where no server answers, CheckFailed
    where it refuses, InputError for a host that is not known.
    """
    called = f"the {_called(greeting)} at {place(address)}"
    peer = _connected(address, called, wait_seconds, patience)
    try:
        challenge = exactly(peer, CHALLENGE_BYTES)
        data = written(greeting, challenge, key)
        peer.sendall(data)
        proof = exactly(peer, PROOF_BYTES)
    except OSError as error:
        peer.close()
        reason = (
            f"it is busy or no treadle {_called(greeting)}"
            if isinstance(error, TimeoutError)
            else f"its nonce{', epoch' if greeting.kind in _OF_AGENTS else ''} or namespace is another"
        )
        raise CheckFailed(f"{called} refuses {_caller(greeting)}: {reason}") from None
    if not hmac.compare_digest(proof, answer(data, challenge, key)):
        peer.close()
        raise CheckFailed(f"{called} does not know this job's nonce")
    peer.settimeout(None)
    return peer, session_key(data, challenge, key)


def _connected(address: Address, called: str, wait_seconds: float, patience: float) -> socket.socket:
    end = time.monotonic() + wait_seconds
    while True:
        peer = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET, socket.SOCK_STREAM)
        try:
            peer.settimeout(patience)
            peer.connect(address)
            return peer
        except socket.gaierror as error:
            peer.close()
            raise InputError(f"found no host of this name: {error.strerror}", where=place(address)) from None
        except OSError as error:
            peer.close()
            if time.monotonic() >= end:
                reason = error.strerror or error
                raise ServerAway(f"{called} cannot be reached: {reason}") from None
            time.sleep(0.1)


def exactly(peer: socket.socket, count: int) -> bytes:
    """`count` bytes. Raises OSError where the stream ends before."""
    data = bytearray()
    while len(data) < count:
        part = peer.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the stream ended")
        data += part
    return bytes(data)


def place(address: Address) -> str:
    """The address as a message shows it."""
    return "this host" if isinstance(address, str) else f"{address[0]}:{address[1]}"


def _caller(greeting: Greeting) -> str:
    job = f"of namespace {greeting.namespace!r}"
    if greeting.kind == "stream":
        return f"a data stream {job}"
    return f"{'server' if greeting.kind == 'peer' else greeting.kind} {greeting.number} {job}"


def _called(greeting: Greeting) -> str:
    return "agent" if greeting.kind in _OF_AGENTS else "server"
