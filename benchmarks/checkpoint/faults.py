"""What happens to a training with checkpoints in memory: each fault as a function on a cluster."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.checkpoint import hosts
from benchmarks.checkpoint.cluster import Cluster, NotRecovered
from treadle.planner.errors import LimitError

MEMORY_NAME = "treadle-checkpoint"
STILL_S = 0.3
"""Until what was sent has arrived."""
CUT_S = 4.0
"""How long a host is cut off: longer than the lease of its agent."""


@dataclass(frozen=True)
class Fault:
    """`strike` does it at its moment and sees to replacements; ranks are started again afterwards."""

    name: str
    strike: Callable[[Cluster, Random], None]
    prepare: Callable[[Cluster], None] = lambda cluster: None
    in_transfer: bool = False
    """Whether its moment is right after an update, when the state is under way."""
    expected: str = "memory"
    """Where the states come from afterwards."""


def software_crash(cluster: Cluster, dice: Random) -> None:
    """One rank is killed; all agents live."""
    dice.choice(list(cluster.ranks.values())).signal(signal.SIGKILL)


def one_host(cluster: Cluster, dice: Random) -> None:
    _lose(cluster, dice.choice([each for each in range(cluster.machines) if each != cluster.root]))


def two_of_a_group(cluster: Cluster, dice: Random) -> None:
    first = 2 * dice.randrange(cluster.machines // 2)
    _lose(cluster, first, first + 1)


def two_of_different_groups(cluster: Cluster, dice: Random) -> None:
    _lose(cluster, dice.randrange(2), 2 + dice.randrange(2))


def root(cluster: Cluster, dice: Random) -> None:
    _lose(cluster, cluster.root)


def root_and_holder(cluster: Cluster, dice: Random) -> None:
    """The root, and the one other machine that holds its state."""
    _lose(cluster, cluster.root, cluster.root ^ 1)


def partition(cluster: Cluster, dice: Random) -> None:
    """A host is cut off for longer than its lease, another takes its machine, and the cable comes back."""
    machine = dice.randrange(cluster.machines)
    host = cluster.host_of(machine)
    assert host is not None
    hosts.cut(cluster.lab, host)
    time.sleep(CUT_S)
    cluster.lost.add(host)
    cluster.replace(machine)
    cluster.wait(lambda: cluster.host_of(machine) is not None, "a machine for the spare host")
    hosts.cut(cluster.lab, host, connected=True)


def full_memory(cluster: Cluster, dice: Random) -> None:
    """The host that is to replace a lost one has too little memory: its agent says so, and another host does it."""
    machine = dice.randrange(cluster.machines)
    cluster.lose(machine)
    host = cluster.spare[0]
    cluster.replace(machine, "--memory", "64KiB")
    full = cluster.agents[host]
    cluster.wait(lambda: full.code is not None, "the refusal of a full host")
    if full.code != LimitError.exit_code:
        raise NotRecovered(f"the agent of a full host ended with {full.code}")
    cluster.lost.add(host)
    cluster.replace(machine)


def flipped_bit(cluster: Cluster, dice: Random) -> None:
    """A bit of the only other copy is flipped, in each of both versions, and the host of the first is lost. Ranks are
    stopped first, so that nothing which arrives repairs it."""
    machine = dice.randrange(cluster.machines)
    for each in cluster.ranks.values():
        each.signal(signal.SIGSTOP)
    time.sleep(STILL_S)
    holder = cluster.host_of(machine ^ 1)
    assert holder is not None
    flip(cluster.agents[holder].pid, state=1, dice=dice)
    _lose(cluster, machine)


def standby_joins(cluster: Cluster, dice: Random) -> None:
    """A host is lost, and an agent that stands by takes its machine with no one's help."""
    machine = dice.randrange(cluster.machines)
    cluster.lose(machine)
    cluster.wait(lambda: cluster.host_of(machine) is not None, "a machine for the standby")


def start_standby(cluster: Cluster) -> None:
    cluster.start_agent(cluster.spare.pop(0), "--standby")


FAULTS = (
    Fault("a rank is killed", software_crash),
    Fault("a host is lost", one_host),
    Fault("two hosts of a group are lost", two_of_a_group, expected="storage"),
    Fault("two hosts of different groups are lost", two_of_different_groups),
    Fault("the root's host is lost", root),
    Fault("the root's host and its holder are lost", root_and_holder, expected="storage"),
    Fault("a host is lost in a transfer", one_host, in_transfer=True),
    Fault("a host is cut off and comes back", partition),
    Fault("a replacement has too little memory", full_memory),
    Fault("a bit of a copy flips, then its owner is lost", flipped_bit, expected="storage"),
    Fault("a standby takes a lost host's place", standby_joins, prepare=start_standby),
)
LOSSES = (one_host, two_of_different_groups, root)
"""Those after which other hosts have all states in memory."""


def flip(agent: int, state: int, dice: Random) -> None:
    """Flip one bit of each version of the `state`-th state (0 is its own) that the agent with this process ID holds."""
    files = sorted(Path(f"/proc/{agent}/fd").iterdir(), key=lambda each: int(each.name))
    memories = [each for each in files if MEMORY_NAME in _target(each)]
    with memories[state].open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        half = len(memory) // 2
        for begin in (0, half):
            written = len(memory[begin : begin + half].rstrip(b"\0"))
            if written:
                memory[begin + dice.randrange(written)] ^= 1 << dice.randrange(8)


def _target(file: Path) -> str:
    try:
        return os.readlink(file)
    except OSError:  # closed meanwhile
        return ""


def _lose(cluster: Cluster, *machines: int) -> None:
    """Lose the hosts of machines at once; spare hosts take their places."""
    for machine in machines:
        cluster.lose(machine)
    for machine in machines:
        cluster.replace(machine)
