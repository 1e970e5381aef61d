"""Hosts by name, one a line, as launchers of MPI jobs read them.

`name`, `name slots=8` (Open MPI), `name:8` (MPICH, Horovod); `#` begins a comment.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from treadle.planner.documents.cost_matrix import MOST_HOSTS
from treadle.planner.documents.files import read_text
from treadle.planner.errors import InputError

MOST_SLOTS = 1024
LINE = re.compile(r"(?P<name>\S+?)(?::(?P<mpich>\S*)|\s+slots\s*=\s*(?P<openmpi>\S+))?(?P<more>\s+\S.*)?", re.ASCII)
NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", re.ASCII)
"""Never an option of the program that gets it, never more than one word of a shell."""
FORMS = "a name, `name slots=8` or `name:8`"


class ListedHost(NamedTuple):
    """`slots` is the number of processes that a job starts there."""

    name: str
    slots: int


def read_hostfile(path: Path | str) -> tuple[ListedHost, ...]:
    """The hosts in the file `path`. Raises InputError, naming file and line."""
    return parse_hostfile(read_text(path), str(path))


def parse_hostfile(text: str, where: str) -> tuple[ListedHost, ...]:
    """The hosts in `text`, at least two. Raises InputError; `where` is what errors call the file."""
    lines: dict[str, int] = {}
    found: list[ListedHost] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        host = _host(line, f"{where}: line {number}")
        if host.name in lines:
            first = f"expected each host once; it is in line {lines[host.name]}"
            raise InputError(f"found {host.name} again, {first}", where=f"{where}: line {number}")
        lines[host.name] = number
        found.append(host)
    if not 2 <= len(found) <= MOST_HOSTS:
        raise InputError(f"found {len(found)} hosts, expected 2 to {MOST_HOSTS}", where=where)
    return tuple(found)


def _host(line: str, where: str) -> ListedHost:
    match = LINE.fullmatch(line)
    if match is None or match["more"]:
        raise InputError(f"found {line!r}, expected {FORMS}", where=where)
    name, slots = match["name"], match["mpich"] if match["mpich"] is not None else match["openmpi"]
    if not NAME.fullmatch(name):
        raise InputError(f"found {name!r}, expected the name or IPv4 address of a host", where=where)
    if slots is None:
        return ListedHost(name, 1)
    if not (slots.isascii() and slots.isdecimal()) or len(slots) > 4 or not 1 <= int(slots) <= MOST_SLOTS:
        raise InputError(f"found {slots!r} slots of {name}, expected a number from 1 to {MOST_SLOTS}", where=where)
    return ListedHost(name, int(slots))
