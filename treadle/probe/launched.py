"""Which rank this process is, as the program that started it says: torchrun and `treadle lab run`, a step of Slurm, or
a pod of a Job of Kubernetes with an index."""

from __future__ import annotations

import os

from treadle.planner.errors import InputError
from treadle.runtime.joined import joined_rank

LAUNCHERS = (("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("JOB_COMPLETION_INDEX", "WORLD_SIZE"))
"""Variables of other launchers that have what torchrun calls RANK and WORLD_SIZE. All need MASTER_ADDR and MASTER_PORT,
where rank 0 listens."""


def launched_rank() -> tuple[int, int]:
    """This process's rank and the number of ranks. Raises InputError where it was not started as one of several."""
    if not os.environ.get("RANK"):
        for rank, world in LAUNCHERS:
            if os.environ.get(rank) and os.environ.get(world):
                os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ[rank], os.environ[world]
                break
    here = joined_rank()
    if here is None:
        raise InputError(
            "found a process on its own, expected one rank of several, as torchrun, `treadle lab run`, srun or an "
            "indexed Job of Kubernetes starts them; or give --hosts HOSTFILE",
            where="--pairs",
        )
    return here
