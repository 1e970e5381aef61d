"""Makes the arenas of all ranks reachable: those on a host are memory that its ranks share, others go over TCP."""

from __future__ import annotations

from treadle.host.identity import host_identity
from treadle.planner.errors import InputError
from treadle.runtime.fusion.session import FusionSession
from treadle.runtime.sockets import Gather, added_us, connect, interface_address


def join(
    session: FusionSession, rank: int, gather: Gather, address: str | None = None, *, watched: bool = False
) -> None:
    """Attach or reach the arenas of all other ranks; each of them calls it, and returns once all have.

    Ranks at the same `address`, by default that of the interface between hosts, share memory. The end of one ends the
    runs of all others, unless they are `watched` by the process that started them. Raises InputError where
    the interface is missing or not named, CheckFailed where a rank cannot be reached.
    """
    here = address or interface_address(), host_identity()
    met = gather((here, session.share(rank)))
    hosts = [where for where, _ in met]
    remote = [other for other, where in enumerate(hosts) if where != here]
    for other, (_, handle) in enumerate(met):
        if other != rank and other not in remote:
            session.attach(other, handle)
    if remote:
        if len({identity for _, identity in hosts}) > 1 and any(each.startswith("127.") for each, _ in hosts):
            message = "found ranks on several hosts, expected the name of the interface between them"
            raise InputError(message, where="GLOO_SOCKET_IFNAME")
        session.reach(connect(rank, len(met), gather, address), remote, added_us())
    elif not watched:
        session.watch()
    gather(None)  # a rank that ends earlier would take its arena with it
