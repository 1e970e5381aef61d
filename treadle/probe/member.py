"""What each host does while hosts are probed: it answers echoes, and takes part in experiments as its leader says.

The leader sends messages, dictionaries of JSON, over a `Channel`; a host answers each one.

- `peers`: where all hosts listen, by their places: [address, port of streams, port of echoes];
- an experiment: its `kind`, its `number`, the `pairs` that begin or end here as [place, from, to]; the host answers
  that it is ready, and after `go` with what it found, by place;
- `end`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from treadle.probe.echo import EchoServer, round_trips
from treadle.probe.streams import Listener, Pair, connected, latency_us, listen, rates

Message = dict[str, Any]


class Channel(Protocol):
    """Between a host and its leader."""

    def send(self, message: Message) -> None: ...

    def receive(self) -> Message: ...


class PairMember:
    """A host that takes part: its sockets, all at `address`, and the secret of all. Raises OSError."""

    def __init__(self, address: str, nonce: bytes) -> None:
        self.listener: Listener = listen(address, nonce)
        self.echo = EchoServer(address, nonce)
        self.place = -1
        self.peers: list[tuple[str, int, int]] = []

    @property
    def at(self) -> tuple[str, int, int]:
        """Address, port of streams, port of echoes."""
        address, port = self.listener.address
        return address, port, self.echo.address[1]

    def serve(self, channel: Channel) -> None:
        """Do what the leader says until it says `end`. Raises OSError where a stream to another host ends."""
        try:
            while (message := channel.receive())["kind"] != "end":
                if message["kind"] == "peers":
                    self.place = message["place"]
                    self.peers = [(str(at), int(streams), int(echoes)) for at, streams, echoes in message["peers"]]
                else:
                    self._experiment(message, channel)
            channel.send({"kind": "ended"})
        finally:
            self.listener.server.close()
            self.echo.close()

    def _experiment(self, job: Message, channel: Channel) -> None:
        pairs = {int(place): (int(src), int(dst)) for place, src, dst in job["pairs"]}
        if job["kind"] == "echo":
            channel.send({"kind": "ready"})
            channel.receive()
            found: dict[int, Any] = self._echo(pairs, job)
        else:
            addresses = {dst: self.peers[dst][:2] for src, dst in pairs.values() if src == self.place}
            outgoing, incoming = connected(self.listener, self.place, pairs, addresses)
            channel.send({"kind": "ready"})
            channel.receive()
            if job["kind"] == "latency":
                found = _latencies(outgoing, incoming)
            else:
                found = dict(rates(outgoing, incoming, is_alone=job["alone"]))
        channel.send({"kind": "found", "found": found})

    def _echo(self, pairs: Mapping[int, Pair], job: Message) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for place, (src, dst) in pairs.items():
            if src == self.place:
                address, _, port = self.peers[dst]
                number, probes = int(job["number"]), int(job["probes"])
                found[place] = asdict(round_trips(self.at[0], (address, port), self.listener.nonce, number, probes))
        return found


def _latencies(outgoing: Mapping[int, socket.socket], incoming: Mapping[int, socket.socket]) -> dict[int, float]:
    """Microseconds by the place of each outgoing pair; one pair of an experiment begins or ends on a host."""
    found = {}
    for starts, streams in ((True, outgoing), (False, incoming)):
        for place, stream in streams.items():
            time_us = latency_us(stream, starts=starts)
            stream.close()
            if starts:
                found[place] = time_us
    return found
