"""Access files: for their owner alone, shared by the servers of a plan, gone with the last of them."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from treadle.planner.errors import InputError
from treadle.runtime.nonces import fresh_nonce
from treadle.runtime.server import access
from treadle.runtime.server.access import Access, ServerPlace

HERE, THERE = ServerPlace(("127.0.0.1", 4000)), ServerPlace(("127.0.0.1", 4001), "name")


def empty(plan: str = "plan", servers: int = 2) -> Access:
    return Access("small", fresh_nonce(), plan, (None,) * servers)


def test_servers_of_a_plan_share_a_file_and_its_nonce(tmp_path: Path) -> None:
    file = tmp_path / "new" / "small.json"
    first = access.register(file, empty(), 0, HERE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    second = access.register(file, empty(), 1, THERE)
    assert second == access.read(file)
    assert second.nonce == first.nonce
    assert second.servers == (HERE, THERE)
    access.withdraw(file, 0, HERE)
    assert access.read(file).servers == (None, THERE)
    access.withdraw(file, 1, HERE)  # its place was taken by another
    assert access.read(file).servers == (None, THERE)
    access.withdraw(file, 1, THERE)
    assert not file.exists()


def test_a_restarted_server_keeps_the_nonce_and_another_plan_gets_one_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "small.json"
    first = access.register(file, empty(servers=1), 0, HERE)
    assert access.register(file, empty(servers=1), 0, THERE).nonce == first.nonce
    assert access.register(file, empty("other", 1), 0, HERE).nonce != first.nonce


@pytest.mark.parametrize("plan", ["plan", "other"])
def test_a_server_that_runs_is_not_replaced(plan: str, tmp_path: Path) -> None:
    file, name = tmp_path / "small.json", f"treadle-test-{os.getpid()}"
    access.register(file, empty(servers=1), 0, ServerPlace(("127.0.0.1", 4001), name))
    with socket.socket(socket.AF_UNIX) as running:
        running.bind(f"\0{name}")
        with pytest.raises(InputError, match=r"a server of 'small' runs already at 127\.0\.0\.1:4001; end it, or give"):
            access.register(file, empty(plan, servers=1), 0, HERE)
    assert access.register(file, empty(plan, servers=1), 0, HERE).servers == (HERE,)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "small.json"
    access.register(file, empty(), 0, HERE)
    file.chmod(0o640)
    with pytest.raises(InputError, match=r"small\.json: others may read it \(mode 0640\); chmod 600 it"):
        access.access_of(str(file))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "found no access file of `treadle serve`"),
        ("no JSON", "found no access file of `treadle serve`"),
        ('{"namespace":"a","nonce":"12","plan":"","servers":[null]}', "found no nonce, expected 64 hexadecimal digits"),
        (f'{{"namespace":"a b","nonce":"{"0" * 64}","plan":"","servers":[null]}}', "found no namespace"),
    ],
    ids=("empty", "words", "nonce", "namespace"),
)
def test_what_is_no_access_file_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "small.json"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(InputError, match=why):
        access.read(file)


def test_an_address_needs_the_nonce_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(access.NONCE, raising=False)
    with pytest.raises(InputError, match="TREADLE_SERVER_NONCE: found nothing, expected the nonce"):
        access.access_of("small@h:1")
    monkeypatch.setenv(access.NONCE, "12")
    with pytest.raises(InputError, match="TREADLE_SERVER_NONCE: found no nonce"):
        access.access_of("small@h:1")
    monkeypatch.setenv(access.NONCE, "ab" * 32)
    found = access.access_of("small@h:1,g:22")
    assert [each and each.address for each in found.servers] == [("h", 1), ("g", 22)]
    for wrong in ("small@h", "small@h:0", "small@h:70000", "small@:1", "a b@h:1"):
        with pytest.raises(InputError, match="expected"):
            access.access_of(wrong)
