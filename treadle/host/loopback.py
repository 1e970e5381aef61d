"""The network interface for processes of one machine."""

from __future__ import annotations

import os

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def stay_on_loopback() -> None:
    """Let gloo and NCCL listen on the loopback interface only, unless the environment names another interface. Their
    sockets authenticate no peer."""
    for variable in VARIABLES:
        if not os.environ.get(variable):
            os.environ[variable] = _loopback()


def _loopback() -> str:
    import psutil

    for name, addresses in sorted(psutil.net_if_addrs().items()):
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    return "lo"
