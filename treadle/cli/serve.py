"""`treadle serve`: one of the servers of plans of the server pass, until their workers are done."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.json_output import print_json
from treadle.cli.named_plan import named_plan
from treadle.cli.options import Json, folder_option, whole
from treadle.cli.output import note, printable
from treadle.cli.signals import end_signals
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.errors import CheckFailed, InputError

if TYPE_CHECKING:
    from treadle.runtime.server.served_job import ServedJob
    from treadle.runtime.server.serving import JobEnd, ParameterServer


def command(
    *,
    plans: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAMESPACE=]PLAN",
            help="Plans of `treadle plan server`; a namespace by default is the name of its file up to a dot.",
        ),
    ],
    access: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Write addresses and nonce here for workers, for each plan in order; servers of one plan may share "
            "it. [default: NAMESPACE.access.json]",
        ),
    ] = None,
    server: Annotated[int, whole("Which of the plan's servers this is: a shard, or that of a rack.", least=0)] = 0,
    address: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST|INTERFACE",
            help="Listen here: one address for all interfaces of the plan, or one for each in order. "
            "[default: 127.0.0.1]",
        ),
    ] = None,
    port: Annotated[int, whole("Listen at this port of each address; 0 takes any.", least=0, most=65535)] = 0,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where servers of other racks listen, in order. [default: as the access file says, where all enter "
            "themselves]",
        ),
    ] = None,
    rejoin: Annotated[
        bool, typer.Option("--rejoin", help="Wait for a worker that is lost, instead of ending the job.")
    ] = False,
    snapshot: Annotated[
        str | None,
        folder_option("Keep snapshots here, and go on from the newest one.", "--snapshot"),
    ] = None,
    every: Annotated[int, whole("Steps between snapshots.", least=1)] = 100,
    resume: Annotated[int | None, whole("Go on from the newest snapshot of at most this step.", least=0)] = None,
    as_json: Json = False,
) -> None:
    """Serve the parameters of one or several jobs, until all workers have left.

    Workers join with the access file, `treadle.server.attach(model, optimizer, "vgg.access.json")`. When one dies, the
    others and this command end with an error, unless --rejoin lets it come back. Ctrl-C and SIGTERM end the server with
    a snapshot. Needs g++ (docs/server.md).
    """
    from treadle.runtime.server.serving import ParameterServer, ServeOptions
    from treadle.runtime.sockets import host_and_port

    if resume is not None and snapshot is None:
        raise InputError("found no --snapshot, which names the folder to go on from", where="--resume")
    jobs = [_job(text, server) for text in plans]
    names = [job.namespace for job in jobs]
    if len(set(names)) < len(names):
        raise InputError(f"found {', '.join(names)}, expected different namespaces: NAMESPACE=PLAN", where="PLAN...")
    if access and len(access) != len(jobs):
        raise InputError(f"found {many(len(access), 'file')} for {many(len(jobs), 'plan')}", where="--access")
    files = [Path(name) for name in access or [f"{name}.access.json" for name in names]]
    if len(set(files)) < len(files):
        raise InputError("found a file twice, expected one for each plan", where="--access")
    if peer and len(jobs) > 1:
        raise InputError("found several plans, expected one; several find their peers by access files", where="--peer")
    options = ServeOptions(
        addresses=tuple(map(_host, address or ["127.0.0.1"])),
        port=port,
        rejoin=rejoin,
        snapshots=None if snapshot is None else Path(snapshot),
        every=every,
        resume=resume,
        peers=tuple(host_and_port(each, "--peer") for each in peer or ()),
    )
    with end_signals() as stopped:
        with ParameterServer(jobs, files, options, note) as running:
            if not as_json:
                for job, file in zip(jobs, files, strict=True):
                    typer.echo(printable(_ready(job, file, running)))
            ends = running.run(stopped)
            counts = [running.engine.counts(core) for core in range(running.engine.cores)]
        _finish(ends, counts, stopped(), as_json)


def _job(text: str, server: int) -> ServedJob:
    from treadle.planner.passes.server.decisions import ServerDecisions
    from treadle.runtime.server.served_job import ServedJob

    namespace, decisions = named_plan(text, ServerDecisions, "namespace")
    servers = decisions.problem.servers
    if server >= servers:
        raise InputError(f"found {server}, the plan has {many(servers, 'server')}, counted from 0", where="--server")
    return ServedJob(namespace, decisions, server)


def _host(text: str) -> str:
    """An address of this machine, or the IPv4 address of its interface of that name."""
    from treadle.runtime.sockets import ipv4_addresses

    return ipv4_addresses().get(text, text)


def _ready(job: ServedJob, file: Path, running: ParameterServer) -> str:
    problem = job.decisions.problem
    which = f" (server {job.server} of {problem.servers})" if problem.servers > 1 else ""
    places = ", ".join(f"{host}:{port}" for host, port in running.door.ports.items())
    what = f"{many(len(problem.keys), 'key')}, {format_bytes(problem.bytes)}, {many(len(job.workers), 'worker')}"
    how = f"{problem.optimizer}, {job.decisions.engine}, {many(len(job.slots), 'core')}"
    return f"serves {job.namespace}{which} at {places}: {what}; {how}; access in {file}"


def _finish(ends: list[JobEnd], counts: list[dict[str, int]], stopped: str | None, as_json: bool) -> None:
    """Raises CheckFailed for jobs that failed, typer.Exit where a signal lost what workers had trained."""
    if as_json:
        rows = [
            {
                "namespace": end.namespace,
                "reason": end.reason,
                "failed": end.failed,
                "steps": end.steps,
                "step": end.step,
                "snapshot": None if end.snapshot is None else str(end.snapshot),
            }
            for end in ends
        ]
        print_json("serve", {"jobs": rows, "cores": counts})
    failed = [end for end in ends if end.failed]
    if len(failed) == 1:
        raise CheckFailed(f"{failed[0].namespace}: {failed[0].reason}")
    if failed:
        findings = tuple(f"{end.namespace}: {end.reason}" for end in failed)
        raise CheckFailed(f"{len(failed)} of {many(len(ends), 'job')} failed", findings)
    unwritten = [end.namespace for end in ends if end.steps and end.unwritten]
    if unwritten:
        raise InputError(f"the last state of {', '.join(unwritten)} is not written", where="--snapshot")
    if stopped and any(end.steps and end.snapshot is None for end in ends):
        number = signal.Signals[stopped.rpartition(" ")[2]]
        raise typer.Exit(128 + number)
