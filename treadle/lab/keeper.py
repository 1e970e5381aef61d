"""The process that keeps a lab: it builds the namespaces and holds them open until it ends.

`python -m treadle.lab.keeper` reads a `LabLayout` from its standard input and answers one line, empty or an error. The
lab ends at the end of that input, so with the process that asked for it, however that ends. After a line `STAY` there
is another empty answer, and the lab stays until SIGTERM.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace

import msgspec

from treadle.lab import namespaces, state
from treadle.lab.layout import LabLayout

BUSY = "busy"
"""The answer where another keeper has a lab."""
LACKING = "lacking"
"""The answer without pyroute2."""
STAY = b"stay\n"
LOCK_SECONDS = 0.5


def main() -> None:
    layout = msgspec.json.decode(sys.stdin.buffer.readline(), type=LabLayout)
    if _held() is None:
        print(BUSY, flush=True)
        raise SystemExit(1)
    try:
        state.end_left()
        lab = _kept(layout)
        state.write(lab)
    except Exception as error:
        lacking = isinstance(error, ImportError)
        print(LACKING if lacking else " ".join(f"{type(error).__name__}: {error}".split()), flush=True)
        raise SystemExit(1) from None
    _answer()
    if sys.stdin.buffer.readline() == STAY:
        state.write(replace(lab, stays=True))
        _answer()
        _let_go_of_streams()
        signal.pause()
    state.end_processes(lab)
    state.forget()


def _answer() -> None:
    with suppress(BrokenPipeError):  # the end of the input follows
        print(flush=True)


def _held() -> int | None:
    """The lock of the lab. Another process may have it for a moment, to look whether there is a lab."""
    end = time.monotonic() + LOCK_SECONDS
    while (lock := state.hold()) is None and time.monotonic() < end:
        time.sleep(LOCK_SECONDS / 10)
    return lock


def _kept(layout: LabLayout) -> state.Lab:
    user = -1 if os.geteuid() == 0 else namespaces.new_user()
    from treadle.lab.fabric import build

    mark = f"lab-{secrets.token_hex(4)}"
    networks = build(layout, mark)
    mounts = namespaces.new_names_of_addresses(_names(layout), state.folder())
    hosts = tuple(
        state.HostFiles(user, mounts, namespaces.new_name(host.name), network)
        for host, network in zip(layout.hosts, networks.hosts, strict=True)
    )
    inodes = tuple(map(namespaces.inode, (networks.bridges, *networks.hosts)))
    return state.Lab(layout, os.getpid(), mark, hosts, inodes)


def _names(layout: LabLayout) -> str:
    """The text of /etc/hosts, also for sockets of IPv6 that talk IPv4, as those of PyTorch do."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for host in layout.hosts:
        for rail, interface in enumerate(host.interfaces):
            name = f"{host.name}-{interface.name}" if rail else host.name
            lines += [f"{interface.address} {name}", f"::ffff:{interface.address} {name}"]
    return "\n".join(lines) + "\n"


def _let_go_of_streams() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)


if __name__ == "__main__":
    main()
