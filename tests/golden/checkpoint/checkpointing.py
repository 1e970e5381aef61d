"""Checkpoints in memory by LM-Resiliency: three layers, 8 ranks.

    manager = InMemoryCheckpointManager(..., config=config(run_id="..."))

The plan decides interval, pairs and pieces. LM-Resiliency sends pieces back to back in the background, not in the idle
spans of the plan, so predicted times do not hold for it.
"""

from lm_resiliency.checkpointing import InMemoryCkptConfig

VALUES = {
    "interval": 1,
    "replication_jump": 2,
    "replication_chunk_size": 256,
    "disk_flush_interval": 10000,
    "verify_integrity": True,
    "skip_replication_if_hsdp": False,
    "pin_memory": True,
}


def config(**changes):
    """The configuration of the plan, with `changes` such as `run_id` and `disk_folder`."""
    return InMemoryCkptConfig(**{**VALUES, **changes})
