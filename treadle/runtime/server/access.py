"""The access file of a job: where its servers are and the nonce that proves who may join. Only its owner reads it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from treadle.planner.errors import InputError
from treadle.runtime.nonces import check_nonce, nonce_of_environment
from treadle.runtime.private_files import read_private, write_private
from treadle.runtime.sockets import host_and_port
from treadle.runtime.wire.greeting import NAMESPACE, Address

NONCE = "TREADLE_SERVER_NONCE"
"""Environment variable: the nonce as hexadecimal digits, for workers and servers without the file."""


class ServerPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one server takes control streams. `local` is the name of its AF_UNIX socket on its host."""

    address: tuple[str, int]
    local: str | None = None


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`servers[s]` is None until server s has started. `plan` is the digest of its decisions; empty where unknown.
    `two_level_workers` are those of all racks where each reaches the server of its own rack alone, else 0."""

    namespace: str
    nonce: str
    plan: str
    servers: tuple[ServerPlace | None, ...]
    two_level_workers: int = 0

    @property
    def key(self) -> bytes:
        return bytes.fromhex(self.nonce)


def register(path: Path, access: Access, server: int, place: ServerPlace) -> Access:
    """Enter server number `server` into the file, which servers of the same plan share with what they have written.

    The nonce of the file, then that of the environment, goes before that of `access`. Raises InputError where the file
    cannot be written, or others may read it, or where a server that it would replace runs on this host.
    """
    with _locked(path):
        found = _same_plan(path, access)
        if found:
            _require_free(path, found.namespace, found.servers[server : server + 1])
        nonce = nonce_of_environment(NONCE) or (found.nonce if found else access.nonce)
        before = found.servers if found else access.servers
        servers = tuple(place if number == server else each for number, each in enumerate(before))
        made = msgspec.structs.replace(access, nonce=nonce, servers=servers)
        _write(path, made)
    return made


def withdraw(path: Path, server: int, place: ServerPlace) -> None:
    """Take the server out of the file, and the file away once it was the last; unless another has taken its place."""
    try:
        with _locked(path):
            found = read(path)
            if server >= len(found.servers) or found.servers[server] != place:
                return
            rest = tuple(None if number == server else each for number, each in enumerate(found.servers))
            if any(rest):
                _write(path, msgspec.structs.replace(found, servers=rest))
            else:
                path.unlink()
    except (InputError, OSError):
        return


def read(path: Path) -> Access:
    """The access of a file. Raises InputError where it is none, or others may read it."""
    where = str(path)
    try:
        found = msgspec.json.decode(read_private(path), type=Access)
    except msgspec.DecodeError as error:
        raise InputError(f"found no access file of `treadle serve`: {error}", where=where) from error
    check_nonce(found.nonce, where)
    if not NAMESPACE.fullmatch(found.namespace) or not found.servers:
        raise InputError("found no namespace or no server, expected an access file of `treadle serve`", where=where)
    return found


def access_of(address: str) -> Access:
    """The access that a worker is given: a file, or `NAMESPACE@HOST:PORT`, with a comma between several servers, and
    the nonce in TREADLE_SERVER_NONCE. Raises InputError for anything else."""
    namespace, at, places = address.partition("@")
    if not at or Path(address).is_file():
        return read(Path(address))
    nonce = nonce_of_environment(NONCE)
    if nonce is None:
        raise InputError(f"found nothing, expected the nonce of the server at {places}", where=NONCE)
    if not NAMESPACE.fullmatch(namespace):
        raise InputError(f"found namespace {namespace!r}, expected letters, digits, '.', '_' or '-'", where=address)
    return Access(namespace, nonce, "", tuple(ServerPlace(host_and_port(each, address)) for each in places.split(",")))


def address_of(place: ServerPlace) -> Address:
    """How a server is reached from here: by name if this is its host."""
    return "\0" + place.local if place.local and _is_bound(place.local) else place.address


def _is_bound(name: str) -> bool:
    """Whether an abstract AF_UNIX socket of the name is on this host, in this network namespace."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as lines:
            return any(line.rstrip("\n").endswith(f" @{name}") for line in lines)
    except OSError:
        return False


def _same_plan(path: Path, access: Access) -> Access | None:
    """What servers of the same job have written."""
    try:
        found = read(path)
    except InputError:
        if path.exists() and (path.is_dir() or not path.is_file()):
            raise
        return None
    same = (found.namespace, found.plan, len(found.servers)) == (access.namespace, access.plan, len(access.servers))
    if not same:
        _require_free(path, found.namespace, found.servers)
    return found if same else None


def _require_free(path: Path, namespace: str, places: Iterable[ServerPlace | None]) -> None:
    """Raises InputError where one of the servers, which workers would no longer find, runs on this host."""
    for each in places:
        if each and each.local and _is_bound(each.local):
            host, port = each.address
            running = f"a server of {namespace!r} runs already at {host}:{port}"
            raise InputError(f"{running}; end it, or give another --access", where=str(path))


def _write(path: Path, access: Access) -> None:
    write_private(path, msgspec.json.format(msgspec.json.encode(access)) + b"\n")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The folder's lock, so that of servers that enter themselves at once each sees the others."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", where=str(path)) from error
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)
