"""A server and a worker in C++ for RDMA by libibverbs: the plan as tables, and the texts that run it.

Chunks are written straight into the other end's memory, and the chunk's number travels in the 32-bit immediate, as in
"Parameter Hub: a Rack-Scale Parameter Server for Distributed Deep Neural Network Training".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from treadle.codegen.interface import Made
from treadle.codegen.templates import quote, template
from treadle.planner import resources
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.keys import TYPE_NUMBERS
from treadle.planner.passes.server.problem import OPTIMIZER_NUMBERS

KERNELS = ("treadle_server_kernels.h", "treadle_server_numbers.h", "treadle_server_order.h")
TEXTS = ("chunks.h", "core.h", "domains.h", "fabric.h", "server.cpp", "worker.cpp", "worker.h", "Makefile")
DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,62}")
MOST_SLOTS = 1 << 16


def verbs(plan: Plan[ServerDecisions]) -> Made:
    """Raises InputError for what the program does not run."""
    decisions, problem = plan.decisions, plan.decisions.problem
    for path, found, expected in _refused(decisions):
        raise InputError(f"found {found}, expected {expected} for verbs", where=f"$.decisions.{path}")
    digest = hashlib.sha256(repr((problem, decisions.chunk_bytes, decisions.slots, decisions.places)).encode())
    tables = template("server/verbs_plan.h.j2").render(
        name=f"{problem.name}: {problem.workers} workers",
        quoted=quote,
        digest=digest.hexdigest(),
        workers=problem.workers,
        servers=problem.servers,
        optimizer=OPTIMIZER_NUMBERS[problem.optimizer],
        arrival_order=problem.arrival_order,
        bypass=decisions.aggregator == "bypass",
        chunk_bytes=decisions.chunk_bytes,
        keys=problem.keys,
        types=TYPE_NUMBERS,
        interfaces=[interface.name for interface in problem.machine.interfaces],
        slots=decisions.slots,
        worker_interfaces=decisions.worker_interfaces or (-1,) * problem.workers,
        places=[slot for places in decisions.places for slot in places],
    )
    texts = resources.folder("templates") / "server"
    files = {name: (texts / f"verbs_{name}").read_text(encoding="utf-8") for name in TEXTS}
    files |= {name: (texts / name).read_text(encoding="utf-8") for name in KERNELS}
    facts = {"workers": problem.workers, "servers": problem.servers, "planned_ns": decisions.time_ns}
    return Made(files | {"plan.h": tables}, facts)


def _refused(decisions: ServerDecisions) -> Iterator[tuple[str, str, str]]:
    problem = decisions.problem
    if decisions.two_level:
        yield "two_level", "two levels", "one level"
    if decisions.engine != "tall":
        yield "engine", decisions.engine, "tall"
    if not problem.synchronous:
        yield "problem.synchronous", "an asynchronous server", "a synchronous one"
    if len(decisions.slots) > MOST_SLOTS:
        yield "slots", str(len(decisions.slots)), f"at most {MOST_SLOTS}"
    for place, interface in enumerate(problem.machine.interfaces):
        if not DEVICE.fullmatch(interface.name):
            yield (
                f"problem.machine.interfaces[{place}].name",
                repr(interface.name),
                "the name of a device, such as mlx5_0",
            )
