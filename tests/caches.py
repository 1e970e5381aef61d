"""Caches of tests that start without any."""

from __future__ import annotations

from pathlib import Path

from treadle.host.cache_folder import cache_folder, make_private


def cache_with_kernels(home: Path) -> Path:
    """`home`, a folder for XDG_CACHE_HOME that holds nothing but this user's compiled kernels: they are named by their
    text, and compiling them takes longer than most of what runs them."""
    kernels = cache_folder("native")
    make_private(kernels)
    make_private(home / "treadle")
    (home / "treadle" / "native").symlink_to(kernels)
    return home
