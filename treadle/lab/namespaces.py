"""Namespaces of Linux: making, entering and finding them.

They are anonymous: each lives as long as a process or an open file of it does, so nothing is left in the file system.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

NEW_MOUNTS, NEW_NAME, NEW_NETWORK, NEW_USER = 0x0002_0000, 0x0400_0000, 0x4000_0000, 0x1000_0000
BIND, RECURSIVE, FOLLOW_MACHINE = 0x1000, 0x4000, 0x8_0000
HOSTS = "/etc/hosts"


def new_user() -> int:
    """Enter a new user namespace, in which this process may do what root may, and return an open file of it.

    Only for a process with one thread; its user keeps its number. Raises OSError where the kernel forbids it.
    """
    user, group = os.geteuid(), os.getegid()
    _call("unshare", NEW_USER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return _own("user")


def new_network() -> int:
    """Enter a new network namespace and return an open file of it. Raises OSError where the kernel forbids it."""
    _call("unshare", NEW_NETWORK)
    return _own("net")


def new_name(name: str) -> int:
    """Enter a namespace in which this machine is called `name`, and return an open file of it. Raises OSError."""
    _call("unshare", NEW_NAME)
    socket.sethostname(name)
    return _own("uts")


def new_names_of_addresses(text: str, folder: Path) -> int:
    """Enter a view of the file system with `text` as /etc/hosts, and return an open file of it. Raises OSError.

    The text passes through a file in `folder`, which is deleted at once.
    """
    _call("unshare", NEW_MOUNTS)
    _call("mount", None, b"/", None, RECURSIVE | FOLLOW_MACHINE, None)
    if Path(HOSTS).is_file():
        with NamedTemporaryFile("w", dir=folder) as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            _call("mount", os.fsencode(file.name), HOSTS.encode(), None, BIND, None)
    return _own("mnt")


def enter(namespace: int) -> None:
    """Let this thread work in the namespace of an open file. Raises OSError."""
    _call("setns", namespace, 0)


def inode(namespace: int) -> int:
    return os.fstat(namespace).st_ino


def processes_in(networks: frozenset[int], mark: str) -> Iterator[int]:
    """Process IDs in network namespaces with these inodes and an interface `mark`; the kernel reuses inodes."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            inside = (entry / "ns/net").stat().st_ino in networks
            if inside and any(line.split(":")[0].strip() == mark for line in (entry / "net/dev").open()):
                yield int(entry.name)
        except OSError:  # it ended, or it is another user's
            continue


def _own(kind: str) -> int:
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)


def _call(name: str, *arguments: int | bytes | None) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_libc = ctypes.CDLL(None, use_errno=True)
