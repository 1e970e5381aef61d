"""Which text of treadle runs, so that what was measured with another text counts as something else."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import treadle


@cache
def source_digest(*patterns: str) -> str:
    """Digest of the files of this package that match; patterns are relative to it."""
    root = Path(treadle.__file__).parent
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
