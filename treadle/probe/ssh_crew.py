"""Hosts of a hostfile, on each of which ssh, or another launcher, starts `treadle.probe.daemon`."""

from __future__ import annotations

import json
import resource
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from queue import Empty, Queue
from threading import Thread
from typing import IO

from treadle.planner.documents.scalars import many
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.version import __version__
from treadle.probe.crew import CrewHost
from treadle.probe.hostfile import ListedHost
from treadle.probe.member import Message

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"
JOIN_SECONDS = 60.0
"""How long a host may take until its daemon says that it is there."""
FILES = 4
"""Open files of one daemon."""
GRACE_SECONDS = 2.0
"""How long a daemon may take to end after its stdin has."""


class _Daemon:
    """The launcher's process of one host."""

    def __init__(self, name: str, launcher: Sequence[str], errors: IO[bytes]) -> None:
        self.name, self.errors = name, errors
        self.lines: Queue[bytes] = Queue()
        remote = shlex.join([sys.executable, "-m", "treadle.probe.daemon"])
        try:
            self.process = subprocess.Popen(
                [*launcher, name, remote], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        except OSError as error:
            raise InputError(f"{launcher[0]}: {error.strerror or error}", where="--ssh") from None
        Thread(target=self._read, name=f"treadle-{name}", daemon=True).start()

    def _read(self) -> None:
        """Lines of the daemon, and an empty one where it has ended."""
        assert self.process.stdout is not None
        with suppress(ValueError, OSError):
            while line := self.process.stdout.readline():
                self.lines.put(line)
        self.lines.put(b"")

    def send(self, message: Message) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self.ended() from None

    def receive(self, seconds: float) -> Message:
        end = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, end - time.monotonic()))
            except Empty:
                raise CheckFailed(f"{self.name} does not answer within {seconds:g} s") from None
            if not line:
                raise self.ended()
            with suppress(ValueError):  # what a login shell prints is no message
                message = json.loads(line)
                if isinstance(message, dict) and "kind" in message:
                    break
        if message["kind"] == "failed":
            raise CheckFailed(f"{self.name}: {message['line']}")
        return message

    def ended(self) -> CheckFailed:
        """Why the daemon is gone: the last line of the launcher, with its exit code."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE_SECONDS)
        self.errors.seek(0)
        said = self.errors.read()[-4096:].decode(errors="replace").strip().splitlines()
        code = self.process.poll()
        how = "its connection has ended" if code is None else f"its launcher ended with exit code {code}"
        return CheckFailed(f"{self.name} does not answer: {how}{': ' + said[-1].strip() if said else ''}")

    def leave(self) -> None:
        """Have it end."""
        with suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()

    def wait(self) -> None:
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class SshCrew:
    """The hosts by their places in the hostfile."""

    def __init__(self, daemons: Sequence[_Daemon], hosts: Sequence[CrewHost]) -> None:
        self.daemons, self.hosts = daemons, tuple(hosts)

    def send(self, place: int, message: Message) -> None:
        self.daemons[place].send(message)

    def receive(self, place: int, seconds: float) -> Message:
        return self.daemons[place].receive(seconds)


@contextmanager
def ssh_crew(listed: Sequence[ListedHost], launcher: str, interface: str | None) -> Iterator[SshCrew]:
    """Start a daemon on each host with `launcher NAME COMMAND`; all end with the block.

    Raises InputError for a launcher that cannot start, and for two names of one host; CheckFailed, with a finding for
    each host that does not answer.
    """
    words = _words(launcher)
    nonce = secrets.token_hex(16)
    _allow_files(len(listed))
    daemons: list[_Daemon] = []
    with ExitStack() as stack:
        stack.callback(_end, daemons)
        for host in listed:
            errors = stack.enter_context(tempfile.TemporaryFile())
            daemons.append(_Daemon(host.name, words, errors))
        hosts, silent = [], []
        end = time.monotonic() + JOIN_SECONDS
        for host, daemon in zip(listed, daemons, strict=True):
            try:
                daemon.send({"nonce": nonce, "interface": interface})
                hosts.append(_joined(host, daemon.receive(max(0.0, end - time.monotonic()))))
            except CheckFailed as error:
                silent.append(str(error))
        if silent:
            raise CheckFailed(f"{many(len(silent), 'host')} of {len(listed)} cannot be probed", tuple(silent))
        _require_apart(hosts)
        yield SshCrew(daemons, hosts)


def _words(launcher: str) -> list[str]:
    try:
        words = shlex.split(launcher)
    except ValueError as error:
        raise InputError(f"found {launcher!r}, expected a command: {error}", where="--ssh") from None
    if not words:
        raise InputError("found nothing, expected a command such as ssh", where="--ssh")
    return words


def _allow_files(hosts: int) -> None:
    """Let this process have the open files that the daemons need, as far as the operating system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES * hosts + soft
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _end(daemons: Sequence[_Daemon]) -> None:
    for each in daemons:
        each.leave()
    for each in daemons:
        each.wait()


def _joined(host: ListedHost, hello: Message) -> CrewHost:
    if hello.get("version") != __version__:
        raise CheckFailed(f"{host.name}: found treadle {hello.get('version')}, expected {__version__} as here")
    address, streams, echoes = hello["at"]
    return CrewHost(host.name, host.slots, (str(address), int(streams), int(echoes)), {})


def _require_apart(hosts: Sequence[CrewHost]) -> None:
    names: dict[str, str] = {}
    for host in hosts:
        address = host.at[0]
        if address in names:
            raise InputError(
                f"found {host.name} and {names[address]} at the address {address}, expected each host once; "
                "leave one out, or name the interface with --interface"
            )
        names[address] = host.name
