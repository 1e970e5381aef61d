"""Echoes: what is injected is measured, lost and late answers are counted, strangers are neither answered nor heard."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from treadle.probe.echo import BACK, PAYLOAD, THERE, WAIT_SECONDS, EchoServer, percentile, round_trips
from treadle.probe.signing import payload_of, signed

NONCE = b"n" * 32
LOOPBACK = "127.0.0.1"


@contextmanager
def server() -> Iterator[EchoServer]:
    each = EchoServer(LOOPBACK, NONCE)
    try:
        yield each
    finally:
        each.close()


@contextmanager
def relay(target: tuple[str, int], fate: Callable[[int], float | None]) -> Iterator[tuple[str, int]]:
    """Between one prober and `target`: delays datagram n by `fate(n)` seconds on its way there, or drops it."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far,
    ):
        near.bind((LOOPBACK, 0))
        far.connect(target)
        far.settimeout(0.5)

        def there() -> None:
            for number in range(10**6):
                try:
                    data, prober = near.recvfrom(64)
                except OSError:
                    return
                if not data:
                    return
                delay = fate(number)
                if delay is not None:
                    time.sleep(delay)
                    far.send(data)
                    near.sendto(far.recv(64), prober)

        thread = Thread(target=there)
        thread.start()
        try:
            yield near.getsockname()[:2]
        finally:
            near.sendto(b"", near.getsockname())
            thread.join()


def test_every_probe_is_answered_on_loopback() -> None:
    with server() as each:
        found = round_trips(LOOPBACK, each.address, NONCE, 7, 50)
    assert len(found.times_us) == 50
    assert (found.late, found.lost) == (0, 0)
    assert 0 < percentile(found.times_us, 10) <= percentile(found.times_us, 50)


def test_an_injected_delay_is_measured() -> None:
    with server() as each, relay(each.address, lambda number: 0.004) as at:
        found = round_trips(LOOPBACK, at, NONCE, 1, 20)
    assert len(found.times_us) == 20
    assert min(found.times_us) >= 4000


def test_a_low_percentile_sees_through_probes_that_were_slowed() -> None:
    with server() as each, relay(each.address, lambda number: 0.01 if number % 4 else 0.0) as at:
        found = round_trips(LOOPBACK, at, NONCE, 1, 24)
    assert percentile(found.times_us, 10) < 10_000 <= percentile(found.times_us, 90)


def test_dropped_probes_are_lost_and_delayed_ones_late() -> None:
    """A straggler has its whole time, and is no answer to the probe that was sent after it."""
    fates = {2: None, 5: None, 8: WAIT_SECONDS * 1.5}
    with server() as each, relay(each.address, lambda number: fates.get(number, 0.0)) as at:
        found = round_trips(LOOPBACK, at, NONCE, 1, 12)
    assert found.lost == 2
    assert found.late >= 1
    assert len(found.times_us) == 10
    assert max(found.times_us) >= WAIT_SECONDS * 1.5e6


def test_who_never_answers_is_not_asked_for_long() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind((LOOPBACK, 0))
        found = round_trips(LOOPBACK, deaf.getsockname()[:2], NONCE, 1, 60_000)
        assert (found.times_us, found.late) == ((), 0)
        assert found.lost < 20
    closed = round_trips(LOOPBACK, deaf_port(), NONCE, 1, 3)
    assert (closed.times_us, closed.lost) == ((), 3)


def deaf_port() -> tuple[str, int]:
    """Where nothing listens, which the kernel says."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as each:
        each.bind((LOOPBACK, 0))
        host, port = each.getsockname()
    return host, port


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"x" * 12,
        PAYLOAD.pack(0, 0) + bytes(8),
        signed(PAYLOAD.pack(0, 0), b"other" * 4, THERE),
        signed(PAYLOAD.pack(0, 0), NONCE, BACK),
        signed(PAYLOAD.pack(0, 0), NONCE, THERE) + b"x",
    ],
    ids=["empty", "noise", "no tag", "another nonce", "an answer", "a byte more"],
)
def test_what_is_not_signed_gets_no_answer(datagram: bytes) -> None:
    with server() as each, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.settimeout(2)
        stranger.connect(each.address)
        stranger.send(datagram)
        stranger.send(signed(PAYLOAD.pack(1, 2), NONCE, THERE))
        assert payload_of(stranger.recv(64), NONCE, BACK) == PAYLOAD.pack(1, 2)


@pytest.mark.parametrize(
    "forged",
    [
        lambda sent: signed(sent[:4], b"other" * 4, BACK),
        lambda sent: sent,
        lambda sent: signed(PAYLOAD.pack(9, PAYLOAD.unpack(sent[:4])[1]), NONCE, BACK),
        lambda sent: signed(b"", NONCE, BACK),
    ],
    ids=["another nonce", "the probe itself", "another round", "nothing"],
)
def test_a_forged_answer_does_not_count(forged: Callable[[bytes], bytes]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as liar:
        liar.bind((LOOPBACK, 0))

        def lie() -> None:
            for _ in range(3):
                data, prober = liar.recvfrom(64)
                liar.sendto(forged(data), prober)

        thread = Thread(target=lie)
        thread.start()
        found = round_trips(LOOPBACK, liar.getsockname()[:2], NONCE, 1, 3)
        thread.join()
    assert (found.times_us, found.lost) == ((), 3)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [percentile(values, each) for each in (0, 20, 21, 50, 100)] == [1, 1, 2, 3, 5]
