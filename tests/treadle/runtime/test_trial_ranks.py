"""Where plans may be measured, and ranks that others started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from msgspec.structs import replace

from treadle.planner.documents.hardware import Device, Hardware
from treadle.planner.errors import InputError
from treadle.planner.search.clock import Clock
from treadle.probe.local import cpu_model, detect
from treadle.probe.resolve import load_hardware
from treadle.runtime import trial_ranks
from treadle.runtime.trial_ranks import LAB, SCALE, require_memory, require_priced_here

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", LAB, SCALE)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def here(count: int = 4, model: str | None = None) -> Hardware:
    return replace(detect(), devices=(Device(model=model or cpu_model(), kind="cpu", count=count),))


def joined(environment: pytest.MonkeyPatch, world: int, **more: str) -> None:
    values = {"RANK": "0", "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **more}
    for name, value in values.items():
        environment.setenv(name, value)


def test_processes_of_this_machine_are_measured_for_its_own_profile(environment: pytest.MonkeyPatch) -> None:
    require_priced_here(4, here())
    require_priced_here(4, None)


@pytest.mark.parametrize(
    ("ranks", "hardware", "message"),
    [
        (4, load_hardware("hosts-2x2"), "found 2 nodes in the profile, expected this machine; `treadle lab run"),
        (4, here(model="another"), "found a profile of another, expected one of this machine, "),
        (8, load_hardware("dgx1"), "found GPUs in the profile dgx1, expected CPUs"),
        (17, here(17), "found 17 ranks, expected at most 16 to be measured here"),
        (17, None, "found 17 ranks, expected at most 16 to be measured here"),
    ],
)
def test_links_of_another_machine_are_refused(
    environment: pytest.MonkeyPatch, ranks: int, hardware: Hardware | None, message: str
) -> None:
    with pytest.raises(InputError) as found:
        require_priced_here(ranks, hardware)
    assert str(found.value).startswith(f"--measure: {message}")
    assert "\n" not in str(found.value)


def test_ranks_on_hosts_are_measured_on_their_links(environment: pytest.MonkeyPatch) -> None:
    hosts = load_hardware("hosts-2x2")
    joined(environment, 4)
    require_priced_here(4, hosts)
    with pytest.raises(InputError, match="WORLD_SIZE: found 4 processes, expected the 8 of the profile"):
        require_priced_here(8, hosts)
    joined(environment, 4, **{LAB: "node0", SCALE: "1"})
    require_priced_here(4, hosts)
    joined(environment, 4, **{LAB: "node0", SCALE: "100"})
    with pytest.raises(InputError, match="found a lab in slow motion, --scale 100, expected --scale 1"):
        require_priced_here(4, hosts)


def test_more_memory_than_there_is_is_refused(environment: pytest.MonkeyPatch) -> None:
    require_memory(1)
    with pytest.raises(InputError, match="free, expected about 1024 PiB to measure; or less"):
        require_memory(1 << 60, "; or less")
    joined(environment, 2)
    require_memory(1 << 60)


CODE = """
from treadle.runtime.trial_ranks import trial_ranks
with trial_ranks(2) as ask:
    print("asked nothing" if ask is None else (ask(max, (7,)), ask(max, (1,))))
"""


@pytest.mark.slow
def test_the_first_of_started_ranks_asks_and_the_others_do_it_too() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    addresses = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CODE], env={**os.environ, **addresses, "RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(2)
    ]
    said = [each.communicate(timeout=60)[0] for each in started]
    assert said == [b"([7, 7], [2, 2])\n", b"asked nothing\n"]


def test_processes_of_this_machine_are_started_for_each_question(environment: pytest.MonkeyPatch) -> None:
    asked = []

    def started(*given: object) -> list[int]:
        asked.append(given)
        return [1, 2]

    environment.setattr(trial_ranks, "launch", started)
    with trial_ranks.trial_ranks(2) as ask:
        assert ask is not None
        assert ask(max, (3,)) == [1, 2]
    assert asked == [(2, max, (3,))]


def test_ctrl_c_ends_the_processes_though_the_search_around_only_remembers_it(
    environment: pytest.MonkeyPatch,
) -> None:
    def interrupted(*given: object) -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)

    environment.setattr(trial_ranks, "launch", interrupted)
    clock = Clock(stop=threading.Event())
    with clock.listening():
        with pytest.raises(KeyboardInterrupt):
            trial_ranks.launched(2, max, (3,))
        assert clock.stop.is_set()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
