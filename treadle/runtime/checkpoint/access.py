"""The access file of an agent: how ranks of its host reach it. Only its owner reads it."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import msgspec

from treadle.planner.errors import InputError
from treadle.runtime.nonces import check_nonce, nonce_of_environment, nonce_of_file
from treadle.runtime.private_files import read_private, write_private
from treadle.runtime.wire.greeting import NAMESPACE

NONCE = "TREADLE_CHECKPOINT_NONCE"
"""Environment variable: the nonce as hexadecimal digits, for agents without a file of it."""

CONNECT_SECONDS = 1.0


class AgentAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`plan` is the digest of the decisions. `machine`, `local` (the name of the AF_UNIX socket) and `address` are None
    as long as the agent stands by or takes memory."""

    job: str
    nonce: str
    plan: str
    machine: int | None = None
    local: str | None = None
    address: tuple[str, int] | None = None

    @property
    def key(self) -> bytes:
        return bytes.fromhex(self.nonce)


def read(path: Path) -> AgentAccess:
    """Raises InputError where it is none, or others may read it."""
    where = str(path)
    try:
        found = msgspec.json.decode(read_private(path), type=AgentAccess)
    except msgspec.DecodeError as error:
        raise InputError(f"found no access file of `treadle checkpoint agent`: {error}", where=where) from error
    check_nonce(found.nonce, where)
    if not NAMESPACE.fullmatch(found.job):
        raise InputError("found no name of a job, expected an access file of `treadle checkpoint agent`", where=where)
    return found


def write(path: Path, access: AgentAccess) -> None:
    write_private(path, msgspec.json.format(msgspec.json.encode(access)) + b"\n")


def require_free(path: Path) -> None:
    """Raises InputError where an agent that still runs has written the file, by which alone ranks reach it."""
    try:
        found = read(path)
    except InputError:
        return
    if found.local is not None and _runs(found.local):
        text = f"the agent of machine {found.machine} of {found.job} runs here and wrote it; end that, or give --access"
        raise InputError(text, where=str(path))


def _runs(local: str) -> bool:
    """Whether an agent listens under that name."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_SECONDS)
        try:
            probe.connect("\0" + local)
        except OSError:
            return False
    return True


def withdraw(path: Path, access: AgentAccess) -> None:
    """Take the file away, unless another agent has written it since."""
    with suppress(InputError, OSError):
        if read(path) == access:
            path.unlink()


def job_nonce(file: Path) -> str:
    """The nonce of TREADLE_CHECKPOINT_NONCE, otherwise that of the file, which is made where it is not there."""
    return nonce_of_environment(NONCE) or nonce_of_file(file)
