"""Where treadle keeps what it can compute again, for this user only: kernels from here are executed."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from treadle.planner.errors import InputError


def cache_folder(name: str) -> Path:
    """`treadle/NAME` below XDG_CACHE_HOME (~/.cache), for a user without a home among the temporary files. It may be
    deleted at any time."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path("~/.cache").expanduser() if _has_home() else Path(tempfile.gettempdir(), f"cache-{os.geteuid()}")
    return base / "treadle" / name


def _has_home() -> bool:
    return os.path.isabs(os.path.expanduser("~"))


def make_private(folder: Path) -> None:
    """Make `folder` and its missing parents, of mode 0700.

    Raises OSError where that fails, InputError for a folder that is not private.
    """
    for each in [*reversed(folder.parents), folder]:
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)
    require_private(folder)


def require_private(path: Path) -> None:
    """Raises InputError when a user other than this one or root could change the file or folder `path`, which exists,
    or put another in its place: they own it or a parent, or may write there (the sticky bit of a parent is enough)."""
    places = [path, *path.parents, *path.resolve().parents]
    for place in dict.fromkeys(places):
        status = place.stat()
        mode = status.st_mode
        reason = ""
        if status.st_uid not in (0, os.geteuid()):
            reason = f"user {status.st_uid} owns it"
        elif mode & (stat.S_IWGRP | stat.S_IWOTH) and (place == path or not mode & stat.S_ISVTX):
            reason = f"other users can write to it (mode {stat.S_IMODE(mode):04o}); chmod go-w it"
        if reason:
            what = "" if place == path else f", which holds {path}"
            raise InputError(f"{reason}{what}, or set XDG_CACHE_HOME to a folder of your own", where=str(place))
