"""Servers for tests: small plans, and a server in a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from treadle.planner.documents.server_parts import Carrier
from treadle.planner.passes.server.decided import ServerOptions, best_of, decisions_of
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.keys import ServerKey
from treadle.planner.passes.server.problem import MachineInterface, OptimizerName, ServerMachine, ServerProblem
from treadle.runtime.server.served_job import ServedJob
from treadle.runtime.server.serving import ParameterServer, ServeOptions

CARRIERS: tuple[Carrier, ...] = ("tcp", "shared")


def plan_for(model: nn.Module, optimizer: OptimizerName, workers: int, carrier: Carrier = "tcp") -> ServerDecisions:
    """One server with two cores, and chunks so small that most keys have several."""
    named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    interfaces = tuple(MachineInterface(name=f"eth{number}", domain=0, rate=10**9) for number in range(2))
    problem = ServerProblem(
        version=1,
        name=f"{optimizer} over {carrier}",
        keys=tuple(
            ServerKey(name=name, elements=each.numel(), dtype=str(each.dtype).removeprefix("torch."))  # type: ignore[arg-type]
            for name, each in reversed(named)
        ),
        workers=workers,
        worker_rate=None if carrier == "shared" else 10**9,
        mode="ncc",
        machine=ServerMachine(name="here", domains=(2,), interfaces=interfaces),
        carrier=carrier,
        optimizer=optimizer,
    )
    options = ServerOptions(chunk_bytes=64)
    return decisions_of(best_of(problem, options), options)


@contextmanager
def served(
    folder: Path, jobs: Mapping[str, ServerDecisions], options: ServeOptions | None = None
) -> Iterator[dict[str, Path]]:
    """The access file of each job, by its namespace. The server ends with the context, whatever its workers do."""
    files = {name: folder / f"{name}.json" for name in jobs}
    served_jobs = [ServedJob(name, decisions, 0) for name, decisions in jobs.items()]
    over = threading.Event()
    with ParameterServer(served_jobs, list(files.values()), options or ServeOptions(), lambda _: None) as server:
        loop = threading.Thread(target=server.run, args=(lambda: "the test is over" if over.is_set() else None,))
        loop.start()
        try:
            yield files
        finally:
            over.set()
            loop.join()
