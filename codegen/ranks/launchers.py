"""The files by which launchers start the ranks of a job in a given order of hosts, one function for each launcher.

Every function takes the hosts in their order and returns texts by file name. Names have been checked (`names`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from treadle.codegen.ranks.names import require_names, version_of
from treadle.codegen.templates import template
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.problem import RankedHost

Hosts = Sequence[RankedHost]


class Launcher(NamedTuple):
    """`addresses` are the versions of IP whose addresses may stand in place of a name. `original` are the hosts as they
    were handed out."""

    files: Callable[[Hosts, Hosts], dict[str, str]]
    addresses: tuple[int, ...] = (4, 6)


def hostfile(hosts: Hosts, original: Hosts) -> dict[str, str]:
    """`hostfile` has a line for each host; `machinefile` has one for each rank, so that no launcher can change the
    order."""
    return {
        "hostfile": "".join(f"{host.name} slots={host.slots}\n" for host in hosts),
        "machinefile": "".join(f"{name}\n" for name in _names_of_ranks(hosts)),
    }


def openmpi_rankfile(hosts: Hosts, original: Hosts) -> dict[str, str]:
    """A line for each rank; Open MPI binds the ranks of a host to its first cores."""
    slots = [(host.name, slot) for host in hosts for slot in range(host.slots)]
    return {"rankfile": "".join(f"rank {rank}={name} slot={slot}\n" for rank, (name, slot) in enumerate(slots))}


def torchrun(hosts: Hosts, original: Hosts) -> dict[str, str]:
    """A script that finds its host in the order, and starts torchrun with that node rank."""
    return {"launch.sh": template("ranks/launch.sh.j2").render(hosts=hosts)}


def slurm(hosts: Hosts, original: Hosts) -> dict[str, str]:
    """The host of each task, and a script that starts tasks so."""
    names = _names_of_ranks(hosts)
    facts = {"nodes": len(hosts), "tasks": len(names), "first": hosts[0].name}
    return {
        "hosts.txt": "".join(f"{name}\n" for name in names),
        "srun.sh": template("ranks/srun.sh.j2").render(facts),
    }


def kubernetes(hosts: Hosts, original: Hosts) -> dict[str, str]:
    """Which pod of an indexed job has which node rank, and the job around it. Pods are numbered as the hosts were
    handed out."""
    rank_of = {host.name: rank for rank, host in enumerate(hosts)}
    pods = [(index, rank_of[host.name], host.name) for index, host in enumerate(original)]
    facts = {"pods": pods, "count": len(hosts), "slots": hosts[0].slots, "first": hosts[0].name}
    facts["named"] = version_of(hosts[0].name) is None
    return {
        "ranks.yaml": template("ranks/ranks.yaml.j2").render(facts),
        "job.yaml": template("ranks/job.yaml.j2").render(facts),
    }


LAUNCHERS: Mapping[str, Launcher] = {
    "hostfile": Launcher(hostfile, addresses=(4,)),
    "openmpi-rankfile": Launcher(openmpi_rankfile),
    "torchrun": Launcher(torchrun),
    "slurm": Launcher(slurm, addresses=(4,)),
    "kubernetes": Launcher(kubernetes),
}
"""By target. Colons of IPv6 addresses mean something else to MPICH and Slurm."""


def _names_of_ranks(hosts: Hosts) -> list[str]:
    return [host.name for host in hosts for _ in range(host.slots)]


def files_of(decisions: RanksDecisions, target: str, where: str) -> dict[str, str]:
    """The files of `target` for the planned order and, in folders `original` and `worst`, for the two that measurements
    compare it with. Raises InputError for a name that they cannot hold."""
    launcher, hosts = LAUNCHERS[target], decisions.problem.hosts
    require_names([host.name for host in hosts], where, addresses=launcher.addresses)
    orders = {"": decisions.order, "original/": range(len(hosts)), "worst/": decisions.worst}
    return {
        folder + name: text
        for folder, order in orders.items()
        for name, text in launcher.files([hosts[place] for place in order], hosts).items()
    }
