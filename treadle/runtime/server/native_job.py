"""A job of a plan as the native server takes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.planner.passes.server.problem import SETTINGS_NUMBERS
from treadle.runtime.server.engine import NativeJob
from treadle.runtime.server.served_job import ServedJob


def native_job(job: ServedJob, cores: Sequence[int], snapshot_every: int) -> NativeJob:
    """The job for the native server, where slot i is on core `cores[i]`. Each key has settings of its own, which come
    with the first gradients."""
    decisions, problem = job.decisions, job.decisions.problem
    keys = len(problem.keys)
    return NativeJob(
        name=job.namespace,
        workers=len(job.workers),
        chunk_elements=job.chunk_elements,
        chunk_keys=job.chunk_keys,
        slots=np.where(job.own_slots < 0, -1, np.array(cores)[job.own_slots]),
        key_types=[key.dtype for key in problem.keys],
        key_groups=np.arange(keys),
        settings=np.zeros((keys, SETTINGS_NUMBERS)),
        optimizer=problem.optimizer,
        racks=problem.racks if decisions.two_level else 1,
        rack=job.rack if decisions.two_level else 0,
        owners=job.owners if decisions.two_level else None,
        synchronous=problem.synchronous,
        arrival_order=problem.arrival_order,
        wide=decisions.engine == "wide",
        bypass=decisions.aggregator == "bypass",
        shared=problem.carrier == "shared",
        snapshot_every=snapshot_every,
    )
