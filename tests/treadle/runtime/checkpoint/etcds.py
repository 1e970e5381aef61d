"""A real etcd for tests, on free ports, with its data in a temporary folder."""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in listeners]
    for each in listeners:
        each.close()
    return ports


class Etcd:
    """One member. Leases end after a second at the earliest, so elections of its own are quick."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("etcd")
        if program is None:
            pytest.skip("needs etcd, Debian's etcd-server")
        self.port, peer = free_ports(2)
        at = f"http://127.0.0.1:{peer}"
        client = f"http://127.0.0.1:{self.port}"
        self.command = [program, "--data-dir", str(folder), "--listen-client-urls", client]
        self.command += ["--advertise-client-urls", client, "--listen-peer-urls", at, "--log-level", "error"]
        self.command += ["--initial-advertise-peer-urls", at, "--initial-cluster", f"default={at}"]
        self.command += ["--heartbeat-interval", "20", "--election-timeout", "100"]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"etcd://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(500):
            if self._is_up():
                return
            time.sleep(0.02)
        raise AssertionError("etcd did not start")

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _is_up(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        except OSError:
            return False
        finally:
            connection.close()
