"""The random number generator's state, saved where an op first draws from it and put back where the op runs again.

A recomputed dropout must drop the same elements (MONeT, section 4.3: "save and restore RNG state"). CPU and CUDA
devices each have their own default generator; the state of a CPU generator is about 5 KB, of a CUDA one 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def state(device: torch.device) -> Tensor:
    """A copy of the state of the default generator of `device`, as bytes in host memory."""
    now = torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
    # The generator hands out its state behind the dispatcher's back; a copy is a tensor that a meter sees.
    return now.clone()


def restore(saved: Tensor, device: torch.device) -> None:
    """Make the default generator of `device` go on from `saved`."""
    if device.type == "cpu":
        torch.set_rng_state(saved)
    else:
        torch.get_device_module(device).set_rng_state(saved, device)


@contextmanager
def replayed(saved: Tensor, device: torch.device) -> Iterator[None]:
    """Inside the block the generator draws what it drew after `saved`; afterwards it goes on where it was."""
    now = state(device)
    restore(saved, device)
    try:
        yield
    finally:
        restore(now, device)
