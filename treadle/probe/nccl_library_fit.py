"""Factors to NCCL's model of itself, from times of nccl-tests: what each algorithm takes in each protocol.

A size belongs to what NCCL's TUNING lines say that it ran, else to what NCCL's own numbers make best of what NCCL_ALGO
and NCCL_PROTO of the run allow: NCCL chooses by them, whatever it then takes. The sizes of one algorithm and protocol
give two factors, to its latency L and to the time M of its bytes:

    minimise    sum over sizes of rho((latency L + bytes M) / T - 1)        with latency, bytes >= 0

with rho as in `nccl_fit`. A factor whose part is nowhere LEAST_SHARE of the time stays 1.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.nccl_costs import Method, NcclFactors, NcclLibrary
from treadle.planner.documents.scalars import many
from treadle.planner.machine.nccl import NcclMethod, best, candidates, library_of
from treadle.probe.nccl_fit import LEAST_SHARE, robust
from treadle.probe.nccl_tests import Collective, CollectiveTimes, RunSetting

FAR = 1 / 3
"""A residual beyond which the model is said not to hold."""
LEAST_FACTOR = 1e-3
_CHANNELS = re.compile(r"(\d+) coll channels(?:, (?:\d+ collnet channels, )?(\d+) nvls channels)?")


@dataclass(frozen=True)
class LibrarySize:
    """A size of a run: bytes as NCCL counts them, what ran, measured and modelled us."""

    collective: Collective
    method: Method
    size: int
    measured: float
    modelled: float

    @property
    def residual(self) -> float:
        return self.modelled / self.measured - 1


@dataclass(frozen=True)
class LibraryFit:
    """`hardware` has the factors; `left_out` says which runs have no part in it."""

    hardware: Hardware
    library: NcclLibrary
    rows: tuple[LibrarySize, ...]
    left_out: tuple[str, ...] = ()

    @property
    def far(self) -> tuple[LibrarySize, ...]:
        """The sizes at which the fitted model is off by more than a third."""
        return tuple(row for row in self.rows if abs(row.residual) > FAR)


def fit_library(
    runs: Iterable[CollectiveTimes], chooses: Hardware, hardware: Hardware, channels: NcclLibrary
) -> LibraryFit | None:
    """`hardware` with factors of NCCL's model in `transports.nccl_library`. `chooses` is the same machine with the
    links that NCCL counts with, `channels` what a log says of them; None where NCCL is not priced on the machine."""
    transports = replace(hardware.transports, nccl_library=channels)
    own, library = library_of(chooses), library_of(replace(hardware, transports=transports))
    if isinstance(own, str) or isinstance(library, str):
        return None
    parts: dict[Method, list[tuple[Collective, int, float, float, float]]] = defaultdict(list)
    left_out = []
    for run in runs:
        mine = candidates(own.own, run.collective)
        named = {each.method: each for each in candidates(library, run.collective)}
        able = tuple(each for each in mine if _allows(run.setting, each))
        if not able and not run.took:
            left_out.append(f"{run.collective} with {_said(run.setting)}: the model has none of these")
            continue
        for size, time in run.times.items():
            if size in run.took:
                ran = next((each for each in mine if _allows(run.took[size], each)), None)
            else:
                ran = best(able, size) if able else None
            if ran is not None:
                parts[ran.method].append((run.collective, size, time, *named[ran.method].parts_us(size)))
    methods = {method: _factors(np.array([row[2:] for row in rows])) for method, rows in sorted(parts.items())}
    rows = tuple(
        LibrarySize(collective, method, size, time, methods[method].latency * latency + methods[method].bytes * moved)
        for method, found in parts.items()
        for collective, size, time, latency, moved in found
    )
    made = replace(channels, methods=methods)
    kept: dict[str, str] = dict(hardware.sources)
    kept["transports.nccl_library"] = (
        f"factors to NCCL's model of itself, fitted to {many(len(rows), 'time')} of nccl-tests"
    )
    changed = replace(hardware, transports=replace(transports, nccl_library=made), sources=kept)
    return LibraryFit(changed, made, rows, tuple(left_out))


def channels_of(text: str) -> NcclLibrary:
    """How many channels a log of NCCL says that it has."""
    found = _CHANNELS.search(text)
    if found is None:
        return NcclLibrary()
    return NcclLibrary(channels=int(found[1]) or None, nvls_channels=int(found[2] or 0) or None)


def _factors(rows: np.ndarray) -> NcclFactors:
    """The factors of rows (measured, latency, time of the bytes)."""
    times, shares = rows[:, 0], rows[:, 1:] / rows[:, :1]
    latency, moved = 1.0, 1.0
    counts = shares.max(axis=0) >= LEAST_SHARE
    if counts.all() and len(rows) > 1:
        latency, moved = robust(shares)
    elif counts[0]:
        latency = float(np.median((times - rows[:, 2]) / rows[:, 1]))
    elif counts[1]:
        moved = float(np.median((times - rows[:, 1]) / rows[:, 2]))
    return NcclFactors(latency=_rounded(latency), bytes=_rounded(moved))


def _rounded(factor: float) -> float:
    return max(LEAST_FACTOR, float(f"{factor:.4g}"))


def _allows(setting: RunSetting, method: NcclMethod) -> bool:
    return _listed(setting.algorithms, method.algorithm) and _listed(setting.protocols, method.protocol)


def _listed(text: str, name: str) -> bool:
    """Whether a list such as `Ring,Tree` or `^NVLS` allows a name; lists by collective (`allreduce:tree`) do not."""
    if not text:
        return True
    names = {each.replace("_", "").lower() for each in text.removeprefix("^").split(",")}
    return (name.replace("_", "").lower() in names) is not text.startswith("^")


def _said(setting: RunSetting) -> str:
    parts: Mapping[str, str] = {"NCCL_ALGO": setting.algorithms, "NCCL_PROTO": setting.protocols}
    return ", ".join(f"{name}={text}" for name, text in parts.items() if text)
