"""Round trips of small datagrams between processes that share a nonce: one side sends, the other sends them back.

A datagram is 4 bytes, the number of the round and of the probe in it, and 8 bytes that only a process with the nonce
can add, others in the answer. Anything else is dropped, so nothing foreign is answered or counted.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread

from treadle.probe.signing import TAG_BYTES, payload_of, signed

PAYLOAD = struct.Struct("!HH")
THERE, BACK = b"there", b"back"
WAIT_SECONDS = 0.05
"""How long an answer is waited for before the next probe; a later one is a straggler."""
LAST_SECONDS = 0.5
"""How long stragglers are waited for at the end."""
SILENT = 10
"""After this number of probes without any answer the rest is not sent."""
MOST_PROBES = 2**16 - 1


@dataclass(frozen=True)
class RoundTrips:
    """Times of answered probes in us, in the order in which they were sent. `late` of them are stragglers; `lost` were
    sent and never came back."""

    times_us: tuple[float, ...]
    late: int
    lost: int


class EchoServer:
    """Answers datagrams at `address` on any free port, on a thread of its own, until `close`. Raises OSError."""

    def __init__(self, address: str, nonce: bytes) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, 0))
        self.nonce, self.closed = nonce, False
        Thread(target=self._answer, name="treadle-echo", daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.socket.getsockname()[:2]
        return str(host), int(port)

    def close(self) -> None:
        self.closed = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # a thread that waits in recvfrom would keep it open
        self.socket.close()

    def _answer(self) -> None:
        size = PAYLOAD.size + TAG_BYTES
        while True:
            try:
                data, sender = self.socket.recvfrom(size + 1)
            except OSError:
                return
            payload = payload_of(data, self.nonce, THERE)
            if payload is not None:
                with suppress(OSError):
                    self.socket.sendto(signed(payload, self.nonce, BACK), sender)
            elif self.closed:
                return


def round_trips(source: str, target: tuple[str, int], nonce: bytes, number: int, probes: int) -> RoundTrips:
    """Send `probes` datagrams of round `number` from the address `source` to `target`, each after the answer to the
    last one. Raises OSError."""
    sent: dict[int, float] = {}
    found: dict[int, float] = {}
    late = 0
    out = [signed(PAYLOAD.pack(number % 2**16, place), nonce, THERE) for place in range(probes)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind((source, 0))
        end.connect(target)

        def receive(until: float, wanted: int | None) -> None:
            """Take in answers until that of probe `wanted` is there, of all probes where it is None."""
            nonlocal late
            while wanted not in found and len(found) < len(sent) and (left := until - time.perf_counter()) > 0:
                end.settimeout(left)
                try:
                    data = end.recv(PAYLOAD.size + TAG_BYTES + 1)
                except TimeoutError:
                    return
                except ConnectionRefusedError:  # no process listens there: the probe is lost
                    continue
                now = time.perf_counter()
                place = _answered(data, nonce, number)
                if place in sent and place not in found:
                    found[place] = (now - sent[place]) * 1e6
                    late += place != wanted

        for place, datagram in enumerate(out):
            sent[place] = time.perf_counter()
            with suppress(ConnectionRefusedError):
                end.send(datagram)
            receive(sent[place] + WAIT_SECONDS, place)
            if place + 1 == SILENT and not found:
                break
        receive(time.perf_counter() + LAST_SECONDS, None)
    return RoundTrips(tuple(found[place] for place in sorted(found)), late, len(sent) - len(found))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of `values`, which are not empty, that at least `percent` per cent of them do not exceed."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def _answered(data: bytes, nonce: bytes, number: int) -> int:
    """The probe that `data` answers, -1 for anything but an answer of this round."""
    payload = payload_of(data, nonce, BACK)
    if payload is None or len(payload) != PAYLOAD.size:
        return -1
    of, place = PAYLOAD.unpack(payload)
    return int(place) if of == number % 2**16 else -1
