"""The kernels compiled for GPUs, called through ctypes; the same text runs by fibers of a CPU, for tests.

Tensors are contiguous and on one device. Calls queue their work on the current stream. Square roots are exact, as those
of PyTorch on GPUs.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from treadle.kernels.server.library import TYPES, Update
from treadle.planner.errors import InputError
from treadle.planner.passes.server.problem import STATES, OptimizerName
from treadle.runtime.kernel_texts import texts
from treadle.runtime.native_build import Target, compile_library

MAIN = "treadle_server.cu"


class _Call(ctypes.Structure):
    _fields_ = [
        ("update", Update),
        ("incoming", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("chunk", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("type", "first", "device")),
        ("stream", ctypes.c_void_p),
        ("order", ctypes.c_uint64),
    ]


class GpuServerKernels:
    """The text compiled for GPUs (`cuda`), or for GPUs and run by fibers of a CPU, whose threads `order` interleaves.
    Raises MissingBackendError without the compiler."""

    def __init__(self, target: Target = "cuda", arch: str | None = None) -> None:
        self._library: Any = ctypes.CDLL(str(compile_library(texts("server"), MAIN, target, (), arch)))
        self._library.treadle_message.restype = ctypes.c_char_p
        self._library.treadle_lanes.restype = ctypes.c_int64
        self.order = 0
        self.ratio = torch.ones(1, dtype=torch.float64)
        """The ratio of LAMB's norms in the last step."""

    def add_into(self, total: Tensor, incoming: Tensor, *, first: bool) -> None:
        """Add `incoming` [n] of any type of keys to `total` [n], float32, or put it there."""
        call = self._call(total.device, Update(n=total.numel(), sum=total.data_ptr()))
        call.incoming, call.type, call.first = incoming.data_ptr(), _type_of(incoming), first
        self._run("add", call)

    def narrowed(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """`values` [n], float32, rounded to a type of 16 bits."""
        out = torch.empty_like(values, dtype=dtype)
        call = self._call(values.device, Update(n=values.numel(), sum=values.data_ptr()))
        call.incoming, call.type = out.data_ptr(), _type_of(out)
        self._run("narrow", call)
        return out

    def step(
        self,
        optimizer: OptimizerName,
        settings: NDArray[np.float64],
        update: int,
        divisor: float,
        total: Tensor,
        weight: Tensor,
        states: tuple[Tensor, ...],
        chunk: int,
    ) -> None:
        """Step number `update`, from 1 on, of a whole key, whose new weights and states take the place of the old ones
        (LAMB's weights are copied for it). LAMB's norms are added over chunks of `chunk` elements."""
        old = weight.clone() if optimizer == "lamb" else weight
        addresses = (total.data_ptr(), old.data_ptr(), weight.data_ptr())
        number = list(STATES).index(optimizer)
        call = self._call(
            weight.device, Update(number, settings.ctypes.data, divisor, weight.numel(), update, *addresses)
        )
        for place, state in enumerate(states):
            call.update.state_in[place] = call.update.state_out[place] = state.data_ptr()
        lanes = 2 * self._library.treadle_lanes(ctypes.c_int64(weight.numel()), ctypes.c_int64(chunk))
        scratch = torch.empty(lanes if optimizer == "lamb" else 0, dtype=torch.float64, device=weight.device)
        call.scratch, call.chunk = scratch.data_ptr(), chunk
        self._run("step", call)
        self.ratio = scratch[:1]

    def _call(self, device: torch.device, update: Update) -> _Call:
        call = _Call(update=update, device=device.index or 0, order=self.order)
        if device.type == "cuda":
            call.stream = torch.cuda.current_stream(device).cuda_stream
        return call

    def _run(self, name: str, call: _Call) -> None:
        if self._library[f"treadle_{name}"](ctypes.byref(call)):
            raise InputError(self._library.treadle_message().decode(), where="parameters")


def _type_of(tensor: Tensor) -> int:
    return TYPES.index(str(tensor.dtype).removeprefix("torch."))
