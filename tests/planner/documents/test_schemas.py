"""The committed JSON Schemas are current, valid, and agree with what the loader accepts and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tests.planner.samples import DOCUMENTS
from treadle.planner import resources
from treadle.planner.documents.schemas import schema, schemas
from treadle.planner.documents.store import TYPES, dumps, kind_of, parse, read_text

FOLDER = Path(__file__).parents[3] / "docs" / "schemas"
FOLDERS = ("profiles", "profiles/compression", "profiles/prices", "profiles/server", "sketches")
SHIPPED = [path for kind in FOLDERS for path in sorted(resources.folder(kind).glob("*.yaml"))]


def validator(kind: str) -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema(kind))
    return jsonschema.Draft202012Validator(schema(kind))


def test_the_committed_schemas_are_what_the_types_say() -> None:
    committed = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert committed == schemas(), "run `make schemas`"


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_sound_documents_fit_their_schema(name: str) -> None:
    raw = json.loads(dumps(DOCUMENTS[name]))
    validator(raw["kind"]).validate(raw)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_shipped_files_fit_their_schema(path: Path) -> None:
    raw = parse(read_text(path), path.name)
    validator(kind_of(raw, path.name)).validate(raw)


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_schemas_refuse_unknown_fields_newer_versions_and_other_kinds(kind: str) -> None:
    raw = next(json.loads(dumps(document)) for document in DOCUMENTS.values() if f'"kind": "{kind}"' in dumps(document))
    raw = raw if raw["kind"] == kind else raw["decisions"]["problem"]
    check = validator(kind)
    assert check.is_valid(raw)
    assert not check.is_valid({**raw, "surplus": 1})
    assert not check.is_valid({**raw, "version": 2})
    assert not check.is_valid({**raw, "kind": "other"})
    assert not check.is_valid({key: value for key, value in raw.items() if key != "kind"})
