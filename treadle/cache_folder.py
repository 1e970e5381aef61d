"""Where treadle keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """`treadle/NAME` below XDG_CACHE_HOME (~/.cache). It may be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "treadle" / name
