"""The kernels compiled for processors, called through ctypes by tests and measurements; the server includes their
text."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.host.square_roots import follow_pytorch
from treadle.planner.passes.server.problem import SETTINGS_NUMBERS, STATES, OptimizerName
from treadle.runtime.kernel_texts import texts
from treadle.runtime.native_build import compile_library

FLAGS = ("-fno-math-errno",)
"""Lets the compiler take square roots of whole vectors."""
TYPES = ("float32", "float16", "bfloat16")
"""By the numbers of `Type`."""
SETTINGS = (
    *("lr", "momentum", "dampening", "weight_decay", "beta1", "beta2", "eps"),
    *("maximize", "nesterov", "decoupled"),
)
"""Places in a group of settings."""
Floats = NDArray[np.float32]


class Update(ctypes.Structure):
    """`Update` of treadle_server_numbers.h."""

    _fields_ = [
        ("optimizer", ctypes.c_int),
        ("settings", ctypes.c_void_p),
        ("divisor", ctypes.c_float),
        ("n", ctypes.c_int64),
        ("update", ctypes.c_uint64),
        *((name, ctypes.c_void_p) for name in ("sum", "weight_in", "weight_out")),
        *((name, ctypes.c_void_p * 2) for name in ("state_in", "state_out")),
        ("ratio", ctypes.c_double),
    ]


@dataclass(frozen=True)
class KeyPart:
    """Elements of a key with what the optimizer keeps for them, all float32 [n]."""

    weight: Floats
    states: tuple[Floats, ...]

    @classmethod
    def of(cls, weight: Floats, optimizer: OptimizerName) -> KeyPart:
        """Before the first step."""
        return cls(weight, tuple(np.zeros_like(weight) for _ in range(STATES[optimizer])))


def settings_of(values: Mapping[str, float]) -> NDArray[np.float64]:
    """A group of settings, by the names of `SETTINGS`."""
    group = np.zeros(SETTINGS_NUMBERS)
    for name, value in values.items():
        group[SETTINGS.index(name)] = value
    return group


class ServerKernels:
    """Arrays are contiguous. `exact`: square roots as GPUs take them, and not as PyTorch does on processors. Raises
    MissingBackendError without the compiler."""

    def __init__(self, *, exact: bool = False) -> None:
        self._library: Any = ctypes.CDLL(str(compile_library(texts("server"), "treadle_server.cpp", "process", FLAGS)))
        self._library.treadle_lamb_ratio.restype = ctypes.c_double
        self._exact = exact
        self.ratio = 1.0
        """The ratio of LAMB's norms in the last step."""

    def add_into(self, total: Floats, incoming: NDArray[Any], dtype: str, *, first: bool, bypass: bool = False) -> None:
        """Add `incoming` [n] to `total` [n], or put it there; numbers of 16 bits come as uint16."""
        self._library.treadle_add(
            *(_address(total), _address(incoming), ctypes.c_int64(total.size)),
            *(TYPES.index(dtype), int(first), int(bypass)),
        )

    def add_chunks(
        self, total: Floats, sent: Sequence[Floats], chunk: int, *, keep: bool = False, bypass: bool = False
    ) -> None:
        """Add all of `sent` [n] up in `total` [n], a chunk of `chunk` elements after the other, as a core does; `keep`:
        to what is there."""
        addresses = (ctypes.c_void_p * len(sent))(*(each.ctypes.data for each in sent))
        size, length = ctypes.c_int64(total.size), ctypes.c_int64(chunk)
        self._library.treadle_add_chunks(_address(total), addresses, len(sent), size, length, 0, int(keep), int(bypass))

    def step_chunks(
        self,
        optimizer: OptimizerName,
        settings: NDArray[np.float64],
        total: Floats,
        part: KeyPart,
        new: KeyPart,
        chunk: int,
    ) -> None:
        """A second step, chunk after chunk, as a core makes it; LAMB without the norms of the whole key."""
        follow_pytorch(self._library)
        call = self._call(optimizer, settings, 2, 1.0, total, part, new)[0]
        call.ratio = 1.0
        self._library.treadle_optimize_chunks(ctypes.byref(call), ctypes.c_int64(chunk))

    def to_type(self, values: Floats, dtype: str) -> NDArray[Any]:
        """`values` [n] as they travel: float32, or uint16 for numbers of 16 bits."""
        out = np.empty(values.size, np.float32 if dtype == "float32" else np.uint16)
        self._library.treadle_to_type(_address(out), _address(values), ctypes.c_int64(values.size), TYPES.index(dtype))
        return out

    def step(
        self,
        optimizer: OptimizerName,
        settings: NDArray[np.float64],
        update: int,
        divisor: float,
        chunks: Sequence[tuple[Floats, KeyPart]],
    ) -> list[KeyPart]:
        """Step number `update`, from 1 on, of a key: from the sum and the part of each of its chunks to the next parts.

        LAMB's norms are those of all chunks.
        """
        if self._exact:
            self._library.treadle_follow_roots(None)
        else:
            follow_pytorch(self._library)
        calls = [
            self._call(optimizer, settings, update, divisor, total, part, KeyPart.of(np.empty_like(total), optimizer))
            for total, part in chunks
        ]
        if optimizer == "lamb":
            weights = direction = 0.0
            for call, _ in calls:
                norms = (ctypes.c_double * 2)()
                self._library.treadle_lamb_norms(ctypes.byref(call), norms)
                weights, direction = weights + norms[0], direction + norms[1]
            self.ratio = self._library.treadle_lamb_ratio(ctypes.c_double(weights), ctypes.c_double(direction))
            for call, _ in calls:
                call.ratio = self.ratio
        for call, _ in calls:
            self._library.treadle_optimize(ctypes.byref(call))
        return [part for _, part in calls]

    @staticmethod
    def _call(
        optimizer: OptimizerName,
        settings: NDArray[np.float64],
        update: int,
        divisor: float,
        total: Floats,
        old: KeyPart,
        new: KeyPart,
    ) -> tuple[Update, KeyPart]:
        number = list(STATES).index(optimizer)
        addresses = (_address(total), _address(old.weight), _address(new.weight))
        call = Update(number, _address(settings), divisor, total.size, update, *addresses)
        for mine, theirs in ((call.state_in, old.states), (call.state_out, new.states)):
            for place, state in enumerate(theirs):
                mine[place] = state.ctypes.data
        return call, new


def _address(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@cache
def server_kernels() -> ServerKernels:
    """The kernels, compiled at the first call. Raises MissingBackendError without the compiler."""
    return ServerKernels()
