"""JSON Schemas of every document kind, made from the document types: `python -m treadle.planner.documents.schemas
FOLDER`.

They describe types, ranges and required fields, for editors and for other programs. Cross references (an id that must
exist, an acyclic graph) are beyond a schema; `treadle.planner.documents.store.load` checks them too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from treadle.planner.documents.files import write_text
from treadle.planner.documents.store import FORMS, TYPES, VERSIONS


def schema(kind: str) -> dict[str, Any]:
    """The schema (draft 2020-12) of the newest version of `kind`."""
    document = TYPES[kind]
    body = msgspec.json.schema(FORMS.get(document, document))
    definitions: dict[str, Any] = body["$defs"]
    root = definitions.pop(body["$ref"].rpartition("/")[2])
    root["properties"]["version"]["maximum"] = VERSIONS[kind]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:treadle:{kind}:{VERSIONS[kind]}",
        "title": f"treadle {kind}",
        "description": _first_paragraph(sys.modules[document.__module__].__doc__ or ""),
        **{key: value for key, value in root.items() if key not in ("title", "description")},
        "$defs": definitions,
    }


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def schemas() -> dict[str, str]:
    """File name -> text of every schema."""
    return {f"{kind}.schema.json": json.dumps(schema(kind), indent=1, sort_keys=True) + "\n" for kind in sorted(TYPES)}


if __name__ == "__main__":
    for name, text in schemas().items():
        write_text(Path(sys.argv[1]) / name, text)
