"""Recovery of torchft's replicas from memory: three layers.

    manager = Manager(..., checkpoint_transport=transport(key, "10.0.0.1"))

`key` are 32 secret bytes that all ranks of the job share; the address is where others reach this host. Each rank holds
1.953 KiB of host memory.
"""

from torchft.checkpointing import CheckpointTransport

from treadle.checkpoint.torchft import HeldTransport

STATE_BYTES = 1000

CheckpointTransport.register(HeldTransport)


def transport(key, address, **options):
    """The transport of this rank; options are those of `HeldTransport`, such as `state_dict` for sharded tensors."""
    return HeldTransport(STATE_BYTES, key, address, **options)
