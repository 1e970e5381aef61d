"""The manifest of a folder of artefacts: what was generated, from which plan, and what a runtime needs to know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.scalars import Digest, Document, Name, Positive

VERSION = 1
FILE_NAME = "artefact.json"


class Artefact(Document, frozen=True, kw_only=True, tag_field="kind", tag="artefact"):
    """Stands as `artefact.json` in the folder. `files` maps each other file's relative path to its sha256 digest."""

    version: Positive
    target: Name
    """One of `treadle generate --target`."""
    plan: InputRef
    files: dict[str, Digest]
    entry: Name | None = None
    """MODULE:FUNCTION of the model, for artefacts that run one."""
    facts: dict[str, Any] = {}
    """What the runtime checks or compares with: predicted peak, collective, ranks, sizes."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for file names that leave the folder."""
        for name in self.files:
            if name.startswith("/") or ".." in name.split("/"):
                yield f"$.files[{name!r}]", "a path out of the folder", "a relative path inside it"
