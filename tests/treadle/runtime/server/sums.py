"""CRC-32C as `crc.h` counts it: with the processor's instruction, and from tables."""

import ctypes
from collections.abc import Callable
from functools import cache
from importlib.resources import files

from treadle.runtime import wire
from treadle.runtime.native_build import compile_library

TEXT = """#include "crc.h"
extern "C" __attribute__((visibility("default"))) uint32_t sum(uint32_t before, const char *data, uint64_t bytes) {
    return treadle::crc32c(before, data, bytes);
}
"""


@cache
def compiled_sum(*options: str) -> Callable[[int, bytes, int], int]:
    texts = {"crc.h": (files(wire) / "crc.h").read_text(encoding="utf-8"), "sum.cpp": TEXT}
    function = ctypes.CDLL(str(compile_library(texts, "sum.cpp", "process", options))).sum
    function.restype, function.argtypes = ctypes.c_uint32, [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64]
    found: Callable[[int, bytes, int], int] = function
    return found


def crc(data: bytes) -> int:
    return compiled_sum()(0, data, len(data))
