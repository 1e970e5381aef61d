"""Every template of every collective as kernels, on virtual ranks of one card, compared with a plain reference.

In a dry run the ranks are fibers of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from benchmarks.collective.gpu import PROTOCOLS, without_bound
from benchmarks.collective.machines import EVERY_LINK
from benchmarks.gpu.items import Kernel, Outcome
from treadle.codegen.collective.cuda.kernels import Kernel as Which
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import CollectiveProgram
from treadle.planner.documents.collective import Collective, Protocol
from treadle.planner.errors import CheckFailed, InputError, TreadleError
from treadle.planner.passes.collective.planning import METHODS, make_request
from treadle.probe.resolve import load_hardware

COLLECTIVES: tuple[Collective, ...] = (
    "allgather",
    "reducescatter",
    "allreduce",
    "alltoall",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
)
SOLVING = frozenset({"exact", "milp", "trees"})
"""Methods that need a solver, which the machine with the card has not."""
MACHINES = ("switch4", "hosts-2x2")
"""Profiles: the second has the templates of several hosts."""
SIZES, DRY_SIZES = (0, 1, 1000, 65537), (33,)
DTYPES, DRY_DTYPES = ("float32", "float16", "bfloat16", "int32"), ("float32",)
OPS = ("sum", "avg", "min", "max")
TIMEOUT = 10.0
BYTES = 1 << 20


@cache
def programs() -> dict[str, CollectiveProgram]:
    """The programs of all templates, by collective and method, without the bounds of plans: those need a solver."""
    found: dict[str, CollectiveProgram] = {}
    for machine in MACHINES:
        hardware = load_hardware(machine)
        for collective in COLLECTIVES:
            for method in METHODS:
                name = f"{collective} {method}"
                if method not in SOLVING and name not in found:
                    try:
                        request = make_request(collective, hardware, EVERY_LINK, BYTES)
                        found[name] = lower(without_bound(request, method))
                    except InputError:
                        continue  # the method has no such collective, or needs another machine
    return found


def specialised(protocol: Protocol) -> dict[str, CollectiveProgram]:
    """A third of the programs, which have kernels of their own in this protocol; each is in one third."""
    place = PROTOCOLS.index(protocol)
    return {name: each for at, (name, each) in enumerate(programs().items()) if at % len(PROTOCOLS) == place}


def kernels(dry: bool) -> Iterator[Kernel]:
    """The interpreter of each protocol with sums and without, and the specialised kernels."""
    for protocol in PROTOCOLS:
        for collective in ("allgather", "allreduce"):
            program = replace(programs()[f"{collective} ring"], protocol=protocol)
            yield Kernel(f"interpreter {protocol} {collective}", partial(_built, program, "interpreter"), True)
        for name, program in specialised(protocol).items():
            yield Kernel(f"{name} {protocol}", partial(_built, replace(program, protocol=protocol), "specialised"))


def _built(program: CollectiveProgram, which: Which, arch: str | None, target: Any = "cuda") -> Any:
    from treadle.runtime.collective.native import LaunchSettings, build

    return build(program, target, kernel=which, arch=arch, settings=LaunchSettings(timeout=TIMEOUT))


def check(dry: bool, word: str) -> Outcome:
    """All programs in the protocol `word`. Raises CheckFailed with a line for each that is wrong or hangs."""
    protocol = next(each for each in PROTOCOLS if each == word)
    jobs: list[tuple[str, CollectiveProgram, Which]] = [
        (name, each, "interpreter") for name, each in programs().items()
    ]
    jobs += [] if dry else [(name, each, "specialised") for name, each in specialised(protocol).items()]
    target = "fibers" if dry else "cuda"
    made = [
        (f"{name}, {which}", partial(_built, replace(program, protocol=protocol), which, None, target))
        for name, program, which in jobs
    ]
    return compared(made, dry)


def compared(jobs: Sequence[tuple[str, Callable[[], Any]]], dry: bool) -> Outcome:
    """Run what each job makes on all sizes, data types and operations. Raises CheckFailed with a line for each that is
    wrong or hangs."""
    from treadle.runtime.collective.compare_native import compare

    findings, count, worst = [], 0, 0.0
    for title, make in jobs:
        try:
            library = make()
            rows = compare(
                {title: library},
                sizes=DRY_SIZES if dry else SIZES,
                dtypes=DRY_DTYPES if dry else DTYPES,
                ops=OPS[:1] if dry else OPS,
                seeds=1,
                devices=("cpu" if dry else "cuda:0",),
            )
            getattr(library, "close", lambda: None)()
        except TreadleError as error:
            findings.append(f"{title}: {error} {next(iter(getattr(error, 'findings', ())), '')}".strip())
            continue
        count += len(rows)
        worst = max([worst, *(row.max_error / row.tolerance for row in rows if row.tolerance)])
        wrong = [row for row in rows if not row.good]
        findings += [f"{title}: {row.dtype} {row.op} {row.elements}: off by {row.max_error:.3g}" for row in wrong[:2]]
    if findings:
        raise CheckFailed(f"{len(findings)} findings in {len(jobs)} programs: {findings[0]}", tuple(findings))
    return Outcome(f"{len(jobs)} programs right in {count} comparisons, rounding up to {worst:.2f} of what is allowed")
