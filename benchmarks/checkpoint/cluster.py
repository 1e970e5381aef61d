"""Machines that train with checkpoints in memory on hosts of a lab: an agent and a rank on each, spare hosts, a store,
and a launcher that starts the ranks again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.checkpoint import hosts
from benchmarks.checkpoint.curves import Curve, read
from benchmarks.checkpoint.hosts import Started, run_command
from benchmarks.checkpoint.training import RankWork, train
from treadle.lab.layout import layout
from treadle.lab.lifecycle import the_lab
from treadle.lab.state import Lab
from treadle.probe.resolve import load_hardware

FIRST_PORT = 29500
LOOK_S, LIMIT_S = 0.02, 60.0
NONCE = "21" * 32
PERIOD_S, TIMEOUT_S = 0.5, 2.0
PROFILE = """kind: hardware
version: 1
name: machines and spares
nodes: {hosts}
devices:
  - {{model: a process on a CPU, kind: cpu, count: 1}}
network: {{kind: ethernet, alpha_us: 30, beta_us_per_MB: {beta:.0f}}}
sources: {{nodes: "by definition", network: "the lab's"}}
"""


class NotRecovered(Exception):
    """The training did not go on; the text says what was waited for."""


@contextmanager
def lab_of(number: int, bits_per_second: float, folder: Path) -> Iterator[Lab]:
    """A lab of so many equal hosts."""
    profile = folder / "hosts.yaml"
    profile.write_text(PROFILE.format(hosts=number, beta=8 * 2**20 * 1e6 / bits_per_second))
    with the_lab(layout(load_hardware(str(profile)))) as lab:
        yield lab


class Cluster:
    """`machines` machines, at first on the first hosts of a lab; the last host has the store, those between are spare.

    `work` says what is trained; `folder` gets curves, logs, access files and persistent checkpoints. A context."""

    def __init__(self, lab: Lab, machines: int, work: RankWork, folder: Path) -> None:
        self.lab, self.machines, self.work, self.folder = lab, machines, work, folder
        self.store_host = len(lab.layout.hosts) - 1
        self.spare = list(range(machines, self.store_host))
        self.lost: set[int] = set()
        """Hosts that no rank is started on."""
        self.agents: dict[int, Started] = {}
        """By host, as the next."""
        self.ranks: dict[int, Started] = {}
        self.store: Started | None = None
        self.root = 0
        """The machine whose agent is root, as `find_root` has seen it."""
        self._ports = count(FIRST_PORT)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self.ranks.values(), *self.agents.values(), *filter(None, [self.store])):
            each.kill()

    # store and agents

    def start_store(self) -> None:
        """etcd, which nothing outlives."""
        url = f"http://{self.address(self.store_host)}:2379"
        command = [
            *("etcd", "--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync", "--log-level", "error"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", "http://127.0.0.1:2380"),
        ]
        self.store = hosts.start(self.lab, self.store_host, self.log("etcd"), run_command(command))

    @property
    def store_address(self) -> str:
        return f"etcd://{self.address(self.store_host)}:2379"

    def start_agents(self) -> None:
        for machine in range(self.machines):
            self.start_agent(machine, "--machine", str(machine))

    def start_agent(self, host: int, *options: str) -> Started:
        """An agent with `--machine I` or `--standby`, and further options."""
        command = [
            *(sys.executable, "-m", "treadle", "checkpoint", "agent", str(self.work.plan)),
            *("--store", self.store_address, "--access", str(self.access_file(host))),
            *("--period", f"{PERIOD_S:g}", "--timeout", f"{TIMEOUT_S:g}", *options),
        ]
        variables = {"TREADLE_CHECKPOINT_NONCE": NONCE}
        self.agents[host] = hosts.start(self.lab, host, self.log(f"agent{host}"), run_command(command, variables))
        return self.agents[host]

    def machine_of(self, host: int) -> int | None:
        """The machine that the agent of a host is."""
        with suppress(OSError, ValueError):
            return json.loads(self.access_file(host).read_text()).get("machine")
        return None

    def host_of(self, machine: int) -> int | None:
        """The host of a machine, None while it has none that lives."""
        return next((host for host in self.agents if host not in self.lost and self.machine_of(host) == machine), None)

    def find_root(self) -> None:
        """Ask `treadle checkpoint status`. Raises NotRecovered where there is no root."""
        log = self.log("status")
        command = [
            *(sys.executable, "-m", "treadle", "checkpoint", "status", str(self.work.plan)),
            *("--store", self.store_address, "--json"),
        ]
        asked = hosts.start(self.lab, self.store_host, log, run_command(command))
        asked.process.join()
        root = json.loads(log.read_text()).get("root") if asked.code == 0 else None
        if root is None:
            raise NotRecovered("no agent is root")
        self.root = root

    def lose(self, machine: int) -> None:
        """Kill what is on a machine's host, all at once."""
        host = self.host_of(machine)
        assert host is not None
        self.lost.add(host)
        for running in (self.agents, self.ranks):
            if host in running:
                running.pop(host).kill()

    def replace(self, machine: int, *options: str) -> None:
        """A new agent for a machine, on a spare host."""
        self.start_agent(self.spare.pop(0), "--machine", str(machine), *options)

    # ranks

    def start_ranks(self) -> None:
        """Start every rank, each on its machine's host, once all machines have one."""
        found: list[int] = []
        if self.work.plan is None:
            found = list(range(self.machines))
        else:

            def placed() -> bool:
                found[:] = [host for each in range(self.machines) if (host := self.host_of(each)) is not None]
                return len(found) == self.machines

            self.wait(placed, "an agent for each machine")
        address = f"{self.address(found[0])}:{next(self._ports)}"
        for rank, host in enumerate(found):
            mine = replace(
                self.work,
                rank=rank,
                world=self.machines,
                address=address,
                interface=self.lab.layout.hosts[host].interfaces[0].name,
                curve=self.curve(rank),
                agent=None if self.work.plan is None else self.access_file(host),
            )
            self.ranks[host] = hosts.start(self.lab, host, self.log(f"rank{rank}"), partial(train, mine))

    def end_ranks(self) -> None:
        for host in list(self.ranks):
            self.ranks.pop(host).kill()

    def wait_for_step(self, step: int) -> None:
        """Wait until rank 0 has made a step. Raises NotRecovered where a rank fails first."""
        self.wait(lambda: self.last_step() >= step, f"step {step}", with_ranks=True)

    def finish(self) -> None:
        """Wait until all ranks have ended well. Raises NotRecovered where one fails first."""
        self.wait(lambda: all(each.code == 0 for each in self.ranks.values()), "the last step", with_ranks=True)
        self.end_ranks()

    def last_step(self) -> int:
        return read(self.curve(0)).last_step

    def curves(self) -> list[Curve]:
        return [read(self.curve(rank)) for rank in range(self.machines)]

    def wait(self, until: Callable[[], bool], what: str, *, with_ranks: bool = False, limit_s: float = LIMIT_S) -> None:
        """Wait for `until`. Raises NotRecovered after `limit_s`, and `with_ranks` where one of these fails."""
        end = time.monotonic() + limit_s
        while not until():
            failed = [host for host, each in self.ranks.items() if each.code not in (None, 0)]
            if with_ranks and failed:
                raise NotRecovered(f"the rank on host {failed[0]} failed before {what}")
            if time.monotonic() > end:
                raise NotRecovered(f"{what}: not within {limit_s:g} s")
            time.sleep(LOOK_S)

    # files and addresses

    def address(self, host: int) -> str:
        return self.lab.layout.hosts[host].interfaces[0].address

    def curve(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.curve"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def access_file(self, host: int) -> Path:
        return self.folder / f"host{host}.agent.json"
