"""Square roots as PyTorch takes them on processors, so that Adam on a server equals Adam on a worker bit by bit.

PyTorch calls MKL where it is built with it. MKL rounds some to a neighbour of the nearest number, others on processors
of another maker. So the kernels call the same function.
"""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any


def follow_pytorch(library: ctypes.CDLL) -> None:
    """Let a library with the text of treadle_server_kernels.h take square roots as the installed PyTorch does; exact
    ones where there is no PyTorch, or one without MKL, whose own are exact."""
    library.treadle_follow_roots(pytorch_roots())


@cache
def pytorch_roots() -> Any:
    """MKL's function in PyTorch's library, which stays loaded; None without it."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "lib" / "libtorch_cpu.so"
    return getattr(ctypes.CDLL(str(path)), "vmsSqrt", None) if path.is_file() else None
