"""Both stores do the same: revisions, leases that end, writes that only a right guess makes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.treadle.runtime.checkpoint.etcds import Etcd, free_ports
from treadle.planner.errors import InputError
from treadle.runtime.checkpoint.store import (
    ABSENT,
    KeyStore,
    LeaseEnded,
    StoreAway,
    StoreWrite,
    compare_and_put,
    open_store,
    parsed,
)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    running = Etcd(tmp_path_factory.mktemp("etcd"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def tcp() -> Iterator[str]:
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    served = open_store(address, serve=True)
    yield address
    served.close()


@pytest.fixture(params=["etcd", "tcp"])
def store(request: pytest.FixtureRequest) -> Iterator[KeyStore]:
    found = request.getfixturevalue(request.param)
    made = open_store(found if isinstance(found, str) else found.address, serve=False)
    for key in made.get_prefix("/t/"):
        made.delete(key)
    yield made
    made.close()


def until(holds: Callable[[], bool]) -> None:
    for _ in range(400):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def test_writes_are_read_with_growing_revisions(store: KeyStore) -> None:
    first, second = store.put("/t/a", b"1"), store.put("/t/b", bytes(range(256)))
    assert first < second
    assert store.get("/t/b") == (bytes(range(256)), second)
    assert store.get_prefix("/t/") == {"/t/a": (b"1", first), "/t/b": (bytes(range(256)), second)}
    assert store.get("/t/") is None


def test_only_who_knows_the_revision_writes(store: KeyStore) -> None:
    first = compare_and_put(store, "/t/a", ABSENT, b"1")
    assert first
    assert compare_and_put(store, "/t/a", ABSENT, b"2") is None
    second = compare_and_put(store, "/t/a", first, b"3")
    assert second is not None
    assert second > first
    assert compare_and_put(store, "/t/a", first, b"4") is None
    assert store.commit({"/t/a": first, "/t/b": ABSENT}, [StoreWrite("/t/b", b"x")]) is None
    assert store.get("/t/b") is None
    assert store.commit({"/t/a": second}, [StoreWrite("/t/b", b"x"), StoreWrite("/t/c", b"y")])
    assert [entry.value for entry in store.get_prefix("/t/").values()] == [b"3", b"x", b"y"]
    store.delete("/t/a")
    assert compare_and_put(store, "/t/a", second, b"5") is None
    assert compare_and_put(store, "/t/a", ABSENT, b"6")


def test_of_many_claims_one_succeeds(store: KeyStore) -> None:
    won: list[int] = []

    def claim(number: int) -> None:
        if compare_and_put(store, "/t/root", ABSENT, str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    root = store.get("/t/root")
    assert root
    assert [int(root.value)] == won


def test_keys_end_with_their_lease(store: KeyStore) -> None:
    kept, silent = store.lease(1), store.lease(1)
    store.put("/t/kept", b"", kept)
    store.put("/t/silent", b"", silent)

    def silent_ended() -> bool:
        store.keep_alive(kept)
        return store.get("/t/silent") is None

    until(silent_ended)
    assert store.get("/t/kept") is not None
    for late in (
        lambda: store.keep_alive(silent),
        lambda: store.put("/t/late", b"", silent),
        lambda: store.commit({"/t/late": ABSENT}, [StoreWrite("/t/late", b"", silent)]),
    ):
        with pytest.raises(LeaseEnded):
            late()
    store.revoke(kept)
    store.revoke(kept)
    assert store.get_prefix("/t/") == {}


def test_a_watch_sees_what_came_before_it_and_after(store: KeyStore) -> None:
    since = store.put("/t/a", b"")
    store.put("/t/epoch", b"1")
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.extend(store.watch("/t/epoch", since)), daemon=True)
    thread.start()
    until(lambda: len(seen) == 1)
    store.put("/t/other", b"")
    store.put("/t/epoch", b"2")
    until(lambda: len(seen) == 2)
    assert set(seen) == {"/t/epoch"}
    store.close()
    thread.join(10)
    assert not thread.is_alive()


def test_the_next_member_answers_where_the_first_is_away(etcd: Etcd) -> None:
    port = free_ports(1)[0]
    store = open_store(f"etcd://127.0.0.1:{port},127.0.0.1:{etcd.port}", serve=False)
    assert store.put("/t/a", b"1")
    with pytest.raises(StoreAway, match=rf"^the store at etcd://127.0.0.1:{port} cannot be reached: Connection"):
        open_store(f"etcd://127.0.0.1:{port}", serve=False).get("/t/a")


def test_a_store_that_was_away_goes_on(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path / "data")
    store = open_store(etcd.address, serve=False)
    try:
        revision, lease = store.put("/t/a", b"1"), store.lease(60)
        seen: list[str] = []
        threading.Thread(target=lambda: seen.extend(store.watch("/t/", revision)), daemon=True).start()
        etcd.stop()
        etcd.start()
        assert store.get("/t/a")
        etcd.stop()
        with pytest.raises(StoreAway):
            store.get("/t/a")
        etcd.start()
        assert store.get("/t/a") == (b"1", revision)
        store.keep_alive(lease)
        store.put("/t/b", b"", lease)
        until(lambda: seen == ["/t/b"])
    finally:
        store.close()
        etcd.stop()


@pytest.mark.parametrize(
    "address",
    ["", "etcd:", "http://a:1", "etcd://a", "etcd://a:x", "etcd://a:1,", "tcp://a:1,b:1", "etcd://u@a:1", "tcp://a:0"],
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(InputError, match=r"^--store: found"):
        parsed(address)


def test_a_scheme_may_stand_before_every_member() -> None:
    assert parsed("etcd://a:1,etcd://b:2, c:3") == ("etcd", [("a", 1), ("b", 2), ("c", 3)])
