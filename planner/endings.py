"""How other processes ended, in words."""

from __future__ import annotations

import re
import signal
from contextlib import suppress


def ending(code: int) -> str:
    """From an exit code as `subprocess` gives it: `ended with exit code 3`, or by which signal it was killed."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = "out of memory?" if code == -signal.SIGKILL else ""
    with suppress(ValueError):
        name = ", ".join(filter(None, (signal.Signals(-code).name, name)))
    return f"was killed by signal {-code}" + (f" ({name})" if name else "")


def killed_compiler(code: int, words: str) -> str | None:
    """How a compiler was killed, or the program that it started, as it says in `words` (English); None when it was
    not."""
    if code < 0:
        return ending(code)
    if found := re.search(r"error: (.+) signal terminated program (\S+)", words):  # gcc
        numbers = [number for number in signal.valid_signals() if signal.strsignal(number) == found[1]]
        how = ending(-min(numbers)) if numbers else f"was killed by signal {found[1]!r}"
        return f"{how}; its program {found[2]}"
    if found := re.search(r"'(\S+)' died due to signal (\d+)", words):  # nvcc
        return f"{ending(-int(found[2]))}; its program {found[1]}"
    return None
