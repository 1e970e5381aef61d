"""One command on every host of a lab, its output marked with the host's name."""

from __future__ import annotations

import os
import secrets
import select
import selectors
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

from treadle.lab import state
from treadle.lab.environment import FIRST_PORT, per_host, per_rank
from treadle.lab.guard import guarded
from treadle.lab.processes import HostProcess, start
from treadle.lab.state import Lab
from treadle.planner.endings import ending
from treadle.planner.errors import CheckFailed, InputError

PORTS = 100
GRACE_SECONDS = 5.0
"""Time to end after SIGTERM before SIGKILL."""
LOOK_SECONDS = 0.05
WHOLE_LINE = 1 << 16
"""A longer line is printed in parts."""
RUN = "TREADLE_LAB_RUN"
"""The environment variable of all processes of a run."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FREE_PORT = f"""import socket, sys
for port in range(int(sys.argv[1]), {FIRST_PORT + PORTS}):
    try:
        socket.create_server(("", port), reuse_port=False).close()
    except OSError:
        continue
    sys.exit(print(port))
"""

Print = Callable[[str, bool, bytes], None]
"""Called with the name of a process, whether it was standard error, and a line."""


class HostFailed(CheckFailed):
    """A process on a host failed; treadle ends with its exit code, 128 plus the number of the signal that killed it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code if code > 0 else 128 - code


class SignalReceived(CheckFailed):
    """This process got a signal, and passed it on; treadle ends with 128 plus its number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}, and with it the command on every host")
        self.exit_code = 128 + number


def run(lab: Lab, command: Sequence[str], show: Print, *, once: bool = False, reader: int | None = None) -> None:
    """Run `command` on every host, `once` or for each device of it, until all have ended.

    SIGINT, SIGTERM and SIGHUP of this process reach all of them, unless it ignores them. Raises what ended them first:
    InputError where there is no such command or it starts processes per device of its own, HostFailed with the process
    that failed, KeyboardInterrupt or SignalReceived, CheckFailed where the lab has ended, BrokenPipeError where
    nothing reads the pipe `reader`, an open file, any more.
    """
    if shutil.which(command[0]) is None:
        raise InputError(f"found no command {command[0]!r} on the hosts, which have the files of this machine")
    layout = lab.layout
    if not once and Path(command[0]).name == "torchrun" and any(host.devices > 1 for host in layout.hosts):
        raise InputError("torchrun starts the processes of a host itself; add --once", where=layout.profile)
    running: list[HostProcess] = []
    mark = secrets.token_hex(8)
    with ExitStack() as stack:
        port = _reserved_port(lab, stack)
        stack.enter_context(guarded(lab, f"{RUN}={mark}") if lab.stays else nullcontext())
        received: list[int] = []
        for number in FORWARDED:
            if signal.getsignal(number) is signal.SIG_IGN:  # as under nohup
                continue
            before = signal.signal(number, lambda it, _: received.append(it))
            stack.callback(signal.signal, number, before)
        stack.callback(_end, lab, running)
        for place, host in enumerate(layout.hosts):
            for local in range(1 if once else host.devices):
                variables = per_host(layout, place, port) if once else per_rank(layout, place, local, port)
                name = host.name if once or host.devices == 1 else f"{host.name}:{local}"
                running.append(start(lab, place, name, command, {**variables, RUN: mark}))
        _follow(lab, running, received, show, reader)


def _follow(lab: Lab, running: list[HostProcess], received: list[int], show: Print, reader: int | None) -> None:
    """Print what they print until all have ended. Raises what ended them first."""
    cause: BaseException | None = None
    end = float("inf")
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        keeper = os.pidfd_open(lab.keeper)
        stack.callback(os.close, keeper)
        for each in running:
            for stream, is_error in ((each.stdout, False), (each.stderr, True)):
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, (each.name, is_error, bytearray()))
        watch = select.poll()
        watch.register(keeper, select.POLLIN)
        if reader is not None:
            watch.register(reader, 0)  # only errors
        while selector.get_map() or any(each.poll() is None for each in running):
            events = selector.select(LOOK_SECONDS)
            for key, _ in events:
                name, is_error, rest = key.data
                if not _forward(key.fd, name, is_error, rest, show):
                    selector.unregister(key.fileobj)
            while received:
                number = received.pop(0)
                end = _pass_on(running, number)
                cause = cause or (KeyboardInterrupt() if number == signal.SIGINT else SignalReceived(number))
            for each in running:
                if (stop := each.stopped()) is not None:
                    what = f"treadle: stopped by {signal.Signals(stop).name}; the others wait for it until SIGCONT"
                    show(each.name, True, what.encode())
            if cause is None:
                cause = _failure(lab, running, [file for file, _ in watch.poll(0)], keeper)
                if cause is not None:
                    end = _pass_on(running, signal.SIGTERM)
            all_ended = all(each.poll() is not None for each in running)
            if time.monotonic() > end or (all_ended and (end < float("inf") or not events)):
                for each in running:  # what they started and left
                    each.signal(signal.SIGKILL)
                if all_ended and not events:
                    break
    if cause is not None:
        raise cause


def _failure(lab: Lab, running: list[HostProcess], gone: list[int], keeper: int) -> BaseException | None:
    """Why all must end: the keeper or the reader among the open files that are `gone`, or a process that failed."""
    if keeper in gone:
        return CheckFailed(f"the lab of {lab.layout.profile} has ended, and with it what ran on its hosts")
    if gone:
        return BrokenPipeError()
    for each in running:
        if code := each.poll():
            others = "; the others were ended" if len(running) > 1 else ""
            return HostFailed(f"{each.name} {ending(code)}{others}", code)
    return None


def _end(lab: Lab, running: list[HostProcess]) -> None:
    """End all, and wait for what they started and left in their groups."""
    for each in running:
        each.end()
    groups = frozenset(each.process.pid for each in running)
    state.end_processes(lab, lambda pid: state.in_groups(pid, groups))


def _pass_on(running: list[HostProcess], number: int) -> float:
    """Send the signal to all; returns when to stop waiting for them to end."""
    for each in running:
        each.signal(number)
    return time.monotonic() + GRACE_SECONDS


def _forward(stream: int, name: str, is_error: bool, kept: bytearray, show: Print) -> bool:
    """Print whole lines of what can be read; False at the end of the stream."""
    part = os.read(stream, WHOLE_LINE)
    kept += part
    *lines, rest = bytes(kept).split(b"\n")
    if rest and (not part or len(rest) >= WHOLE_LINE):
        lines.append(rest)
        rest = b""
    kept[:] = rest
    for line in lines:
        show(name, is_error, line)
    return bool(part)


def _reserved_port(lab: Lab, stack: ExitStack) -> int:
    """The first port from 29500 on which no process listens on the first host, and which no other run has until the
    stack ends: its own processes listen seconds later."""
    first = FIRST_PORT
    while True:
        port = _free_port(lab, first)
        if (lock := state.hold_port(port)) is not None:
            stack.callback(os.close, lock)
            return port
        first = port + 1


def _free_port(lab: Lab, first: int) -> int:
    process = start(lab, 0, "", [sys.executable, "-I", "-c", FREE_PORT, str(first)], {})
    found, _ = process.process.communicate()
    if not found.strip():
        host = lab.layout.hosts[0].name
        raise InputError(f"found no free port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1} on {host}, expected one")
    return int(found)
