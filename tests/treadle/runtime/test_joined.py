"""Processes that another program started find each other by their environment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from treadle.planner.errors import InputError
from treadle.runtime.joined import joined_rank

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_process_of_its_own_has_no_rank(environment: pytest.MonkeyPatch) -> None:
    assert joined_rank() is None


def test_the_only_rank_works_on_its_own(environment: pytest.MonkeyPatch) -> None:
    """Some batch systems set the two for a single process as well, and no address."""
    environment.setenv("RANK", "0")
    environment.setenv("WORLD_SIZE", "1")
    assert joined_rank() is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("1", "2", None, "29500"), "MASTER_ADDR: found nothing"),
        (("2", "2", "127.0.0.1", "29500"), "RANK: found 2, expected a number below 2, which is WORLD_SIZE"),
        (("x", "2", "127.0.0.1", "29500"), "RANK: found 'x'"),
        (("0", "2", "127.0.0.1", "http"), "MASTER_PORT: found 'http', expected a whole number"),
    ],
)
def test_what_cannot_be_is_refused(
    environment: pytest.MonkeyPatch, values: tuple[str | None, ...], message: str
) -> None:
    for name, value in zip(NAMES, values, strict=True):
        if value is not None:
            environment.setenv(name, value)
    with pytest.raises(InputError) as found:
        joined_rank()
    assert message in str(found.value)


@pytest.mark.slow
def test_every_rank_has_the_results_of_all() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from treadle.runtime.joined import run_joined; print(run_joined(max, (7,)))"
    addresses = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, **addresses, "RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(2)
    ]
    for each in started:
        said, _ = each.communicate(timeout=60)
        assert b"[7, 7]" in said


CLEAN_UP = """
import atexit, sys
import torch.distributed
from treadle.cli.main import main

class Kept:
    def __del__(self):
        print("destroyed")

kept = Kept()
atexit.register(print, "exit functions ran")
sys.argv = ["treadle", "profile", "show", sys.argv[1]]
main()
"""


@pytest.mark.parametrize(("profile", "code"), [("hosts-2x2", 0), ("no-such-machine", 2)])
def test_a_rank_ends_without_destroying_what_threads_may_use(profile: str, code: int) -> None:
    environment = os.environ | {"WORLD_SIZE": "2"}
    command = [sys.executable, "-c", CLEAN_UP, profile]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout.endswith("exit functions ran\n")
    assert "destroyed" not in done.stdout
    assert done.stderr == "" if code == 0 else "error: " in done.stderr
