"""Names of hosts that may stand in the files of launchers, which know no quotes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from treadle.planner.documents.explain import short
from treadle.planner.errors import InputError

LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
NAME = re.compile(rf"(?=.{{1,253}}\Z)(?:{LABEL}\.)*(?![0-9]+\Z){LABEL}")
"""RFC 1123; the last label is no number, which would be taken for an address."""


def require_names(names: Iterable[str], where: str, *, addresses: tuple[int, ...] = (4, 6)) -> None:
    """Raises InputError for what is no name of a host and no IP address of one of the versions `addresses`, without a
    zone."""
    for place, name in enumerate(names):
        version = version_of(name)
        if version not in addresses and (version is not None or NAME.fullmatch(name) is None):
            listed = "".join(f" or an IPv{each} address" for each in addresses)
            path = f"$.decisions.problem.hosts[{place}].name"
            message = f"found {short(name)}, expected the name of a host (RFC 1123){listed}"
            raise InputError(message, where=where, path=path)


def version_of(name: str) -> int | None:
    """The version of the IP address that a name is; None for any other."""
    try:
        return None if "%" in name else ipaddress.ip_address(name).version
    except ValueError:
        return None
