"""Servers of several racks that exchange sums and values: each has a control stream to every other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.server import access
from treadle.runtime.server.access import Access, address_of
from treadle.runtime.server.control import JOIN_SECONDS, Control
from treadle.runtime.server.job_service import JobService
from treadle.runtime.wire.greeting import Address


def connect_peers(service: JobService, own: Access, path: Path, peers: Sequence[tuple[str, int]]) -> None:
    """Connect a job's service with the servers of all other racks, at `peers` or where its access file says. Of two
    servers the one of the later rack opens the data streams.

    Raises InputError for other addresses than one for each, CheckFailed where one does not come, runs another plan, or
    goes on from another step.
    """
    job = service.job
    if peers and len(peers) != len(job.peers):
        raise InputError(f"found {len(peers)}, expected {len(job.peers)}, the other servers in order", where="--peer")
    until = time.monotonic() + JOIN_SECONDS
    for number, server in enumerate(job.peers):
        address: Address = peers[number] if peers else _entered(path, server, until)
        wait = max(0.0, until - time.monotonic())
        link = Control(
            address, job.namespace, own.key, job.server, kind="peer", on_notice=service.hear, wait_seconds=wait
        )
        service.links[server] = link
        layout = link.layout
        if (layout.plan, layout.server) != (job.digest, server):
            raise InputError(f"server {layout.server} of {job.namespace} runs another plan, or is not server {server}")
        if layout.step != service.step:
            raise CheckFailed(
                f"this server goes on from step {service.step} and server {server} from {layout.step}; start all of "
                f"them with --resume {min(layout.step, service.step)}"
            )
        if job.server > server:
            for slot, stream in link.streams().items():
                service.engine.peer(service.native, server, service.cores[slot], stream)


def _entered(path: Path, server: int, until: float) -> Address:
    """Where a server has entered itself in the access file."""
    while True:
        place = access.read(path).servers[server]
        if place is not None:
            return address_of(place)
        if time.monotonic() >= until:
            raise CheckFailed(f"server {server} did not start within {JOIN_SECONDS:g} s: it is not in {path}")
        time.sleep(0.1)
