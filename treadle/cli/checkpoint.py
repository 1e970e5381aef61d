"""`treadle checkpoint`: the agents that keep checkpoints in the memory of their hosts, and how they are."""

from __future__ import annotations

import time
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli.json_output import print_json
from treadle.cli.lazy import UsageError, new_app
from treadle.cli.named_plan import named_plan
from treadle.cli.options import Json, seconds, size_option, whole
from treadle.cli.output import note, print_table, printable
from treadle.cli.signals import end_signals
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.errors import InputError

if TYPE_CHECKING:
    from treadle.runtime.checkpoint.status import JobStatus, MachineStatus

command = new_app(
    help="""Keep or show checkpoints in the memory of hosts.

Every host runs one agent; agents find each other through a store (docs/checkpoint.md).
"""
)

Store = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        help="etcd://HOST:PORT, more members behind a comma, or tcp://HOST:PORT: the agent of machine 0 serves it, "
        "and stays root.",
    ),
]


@command.command()
def agent(
    *,
    plan: Annotated[
        str,
        typer.Argument(
            metavar="[JOB=]PLAN",
            help="A plan of `treadle plan checkpoint`; the job by default has the name of its file up to a dot.",
        ),
    ],
    store: Store,
    machine: Annotated[int | None, whole("The machine of the plan that this host is.", least=0)] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait until a machine is lost, and take its place.")
    ] = False,
    memory: Annotated[
        int | None, size_option("--memory", "Take at most this memory. [default: as the plan needs]", least=1)
    ] = None,
    access: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write here how ranks of this host reach the agent. [default: JOB.MACHINE.agent.json; "
            "JOB.standby.HOST.agent.json]",
        ),
    ] = None,
    nonce: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The job's secret, which is made where it is not there; TREADLE_CHECKPOINT_NONCE goes before it. "
            "[default: JOB.nonce]",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST|INTERFACE", help="Listen here. [default: the address from which the store is reached]"
        ),
    ] = None,
    port: Annotated[int, whole("Listen at this port; 0 takes any.", least=0, most=65535)] = 0,
    period: Annotated[float, seconds("--period", "Time between heartbeats.")] = 2.0,
    timeout: Annotated[float, seconds("--timeout", "A machine without a heartbeat for so long is lost.")] = 10.0,
    as_json: Json = False,
) -> None:
    """Keep the checkpoints of one machine.

    The agent of the machine of PLAN holds its own state and those of others, until Ctrl-C or SIGTERM.
    Ranks of this host reach the agent by its access file: `treadle.checkpoint.attach(model, optimizer, plan,
    agent=FILE)`. One of the agents is root, which sees that a machine is lost and plans how all go on. Needs g++
    (docs/checkpoint.md).
    """
    from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
    from treadle.runtime.checkpoint.access import job_nonce
    from treadle.runtime.checkpoint.agent_job import AgentJob
    from treadle.runtime.checkpoint.recovering import AgentMemory
    from treadle.runtime.checkpoint.serving import AgentOptions, run_agent
    from treadle.runtime.checkpoint.store import parsed
    from treadle.runtime.sockets import ipv4_addresses

    if (machine is None) != standby:
        raise UsageError("found both or none, expected one of --machine and --standby")
    if timeout < 2 * period:
        raise InputError(f"found {timeout:g} s, expected at least two periods, {2 * period:g} s", where="--timeout")
    parsed(store)
    name, decisions = named_plan(plan, CheckpointDecisions, "job")
    problem = decisions.problem
    if machine is not None and machine >= problem.machines:
        raise InputError(
            f"found {machine}, the plan has {many(problem.machines, 'machine')}, counted from 0", where="--machine"
        )
    job = AgentJob(name, job_nonce(Path(nonce or f"{name}.nonce")), decisions)
    file = Path(access or f"{name}.{f'standby.{gethostname()}' if machine is None else machine}.agent.json")
    options = AgentOptions(
        store=store,
        machine=machine,
        memory_bytes=memory,
        access=file,
        address=ipv4_addresses().get(address, address) if address else None,
        port=port,
        period=period,
        timeout=timeout,
    )

    def ready(number: int, held: AgentMemory) -> None:
        host, at = held.address
        others = ", ".join(map(str, job.hosted(number)[1:])) or "no other"
        size = format_bytes(2 * len(job.hosted(number)) * problem.devices * problem.state_bytes)
        line = f"machine {number} of {name} at {host}:{at} holds its state and that of {others}, {size}"
        if not as_json:
            typer.echo(printable(f"{line}; access in {file}"))

    with end_signals() as stopped:
        last = run_agent(job, options, ready, note, stopped)
    if as_json:
        print_json("checkpoint-agent", {"job": name, "machine": last.machine, "epoch": last.epoch})


@command.command()
def status(
    *,
    job: Annotated[str, typer.Argument(metavar="JOB|PLAN", help="The job's name, or the file of its plan.")],
    store: Store,
    as_json: Json = False,
) -> None:
    """Show the machines of JOB.

    Which of them have an agent, which versions they hold, and how many copies there are of the state of each.
    """
    from treadle.runtime.checkpoint.status import job_status
    from treadle.runtime.checkpoint.store import open_store
    from treadle.runtime.wire.greeting import NAMESPACE

    name = Path(job).name.partition(".")[0] if Path(job).is_file() else job
    if not NAMESPACE.fullmatch(name):
        raise InputError("found no name, expected letters, digits, '.', '_' or '-', up to 64", where=job)
    found = job_status(open_store(store, serve=False), name)
    if as_json:
        print_json("checkpoint-status", {"job": name, **_document(found)})
    else:
        _print(name, found)


def _document(found: JobStatus) -> dict[str, Any]:
    epoch, root = found.view.epoch, found.view.root
    return {
        "epoch": epoch.number if epoch else 0,
        "settled": bool(epoch and epoch.settled),
        "root": root.machine if root else None,
        "standby": [each.host for each in found.standby],
        "degraded": [each.machine for each in found.degraded],
        "machines": [_machine(each) for each in found.machines],
    }


def _machine(each: MachineStatus) -> dict[str, Any]:
    beat = each.heartbeat
    return {
        "machine": each.machine,
        "holders": list(each.holders),
        "copies": each.copies,
        "newest": each.newest,
        "state": beat.state if beat else "lost",
        "address": f"{beat.address[0]}:{beat.address[1]}" if beat and beat.address else None,
        "time": beat.time if beat else None,
        "epoch": beat.epoch if beat else None,
    }


def _print(name: str, found: JobStatus) -> None:
    shown = _document(found)
    root = "no root" if shown["root"] is None else f"root is machine {shown['root']}"
    how = "all machines are whole" if shown["settled"] else "a recovery" if shown["epoch"] else "machines join"
    typer.echo(f"{name}: epoch {shown['epoch']}, {how}; {root}; {many(len(found.standby), 'agent')} on standby")
    if found.degraded:
        machines = ", ".join(str(each.machine) for each in found.degraded)
        typer.echo(f"degraded: copies of the states of {machines} are missing until the next checkpoint is complete")
    rows = [
        (
            each["machine"],
            each["address"],
            each["state"],
            "" if each["time"] is None else f"{max(0.0, time.time() - each['time']):.0f} s ago",
            each["newest"],
            f"{each['copies']} of {len(each['holders'])}",
        )
        for each in shown["machines"]
    ]
    print_table("", ("machine", "address", "state", "heartbeat", "newest", "copies"), rows)
