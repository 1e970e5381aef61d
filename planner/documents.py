"""Every file format in one place: load, validate, digest and save.

A document is a msgspec struct with `kind` and `version`. People write YAML or JSON (`//` comment lines allowed), the
tool writes canonical JSON. A malformed file raises InputError with one line:
`FILE: $.path: found X, expected Y`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from planner import artefact, hardware, job, plan, sketch, trace
from planner.errors import InputError, TreadleError
from planner.memory import problem as memory_problem

Document = (
    trace.Trace
    | hardware.Hardware
    | sketch.Sketch
    | plan.Plan
    | job.Job
    | artefact.Artefact
    | memory_problem.MemoryProblem
)
D = TypeVar("D", bound=Document)

VERSIONS = {
    "trace": trace.VERSION,
    "hardware": hardware.VERSION,
    "sketch": sketch.VERSION,
    "plan": plan.VERSION,
    "job": job.VERSION,
    "artefact": artefact.VERSION,
    "memory-problem": memory_problem.VERSION,
}
TYPES: dict[str, type[Document]] = {
    "trace": trace.Trace,
    "hardware": hardware.Hardware,
    "sketch": sketch.Sketch,
    "plan": plan.Plan,
    "job": job.Job,
    "artefact": artefact.Artefact,
    "memory-problem": memory_problem.MemoryProblem,
}

MAX_BYTES = 2**30


def load(path: Path | str, expect: type[D]) -> D:
    """Read the document at `path`, which must be of type `expect`.

    Raises InputError naming the file and the place for anything else.
    """
    return loads(read_text(path), str(path), expect)


def read_text(path: Path | str) -> str:
    """The UTF-8 text of a file. Raises InputError when it cannot be read."""
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise InputError("found a file over 1 GiB, expected a document", where=str(path))
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", where=str(path)) from error
    except (UnicodeDecodeError, ValueError) as error:
        raise InputError(
            f"found bytes that are not UTF-8 text ({error}), expected YAML or JSON", where=str(path)
        ) from error


def loads(text: str, where: str, expect: type[D]) -> D:
    """Parse and validate `text`; `where` is how errors call it."""
    raw = parse(text, where)
    wanted = expect.__struct_config__.tag
    kind = kind_of(raw, where)
    if kind != wanted:
        raise InputError(f"found {kind!r}, expected {wanted!r}", where=where, path="$.kind")
    return _convert(raw, where, expect)


def load_any(path: Path | str) -> Document:
    """Read a document of whatever kind it says it is."""
    where = str(path)
    raw = parse(read_text(path), where)
    kind = kind_of(raw, where)
    if kind not in TYPES:
        raise InputError(f"found {kind!r}, expected one of {', '.join(sorted(TYPES))}", where=where, path="$.kind")
    return _convert(raw, where, TYPES[kind])


def parse(text: str, where: str) -> Any:
    """Builtin values of a YAML or JSON text. Raises InputError naming line and column."""
    stripped = text.lstrip("\ufeff \t\r\n")
    try:
        if stripped[:1] in ("{", "["):
            return json.loads(_without_comments(stripped), parse_constant=_no_constant)
        return yaml.load(text, Loader=_Loader)
    except json.JSONDecodeError as error:
        raise InputError(f"found broken JSON ({error}), expected a whole document", where=where) from error
    except yaml.YAMLError as error:
        raise InputError(f"found broken YAML ({_one_line(error)}), expected a whole document", where=where) from error
    except RecursionError as error:
        raise InputError("found nesting too deep to read, expected a document", where=where) from error
    except ValueError as error:
        raise InputError(f"found {_one_line(error)}, expected a document", where=where) from error


def kind_of(raw: Any, where: str) -> str:
    """The `kind` of a parsed document, after its version was found readable."""
    if not isinstance(raw, dict):
        raise InputError(
            f"found {_type_name(raw)}, expected an object with `kind` and `version`", where=where, path="$"
        )
    kind = raw.get("kind")
    if not isinstance(kind, str):
        found = "nothing" if kind is None else _type_name(kind)
        raise InputError(f"found {found}, expected one of {', '.join(sorted(TYPES))}", where=where, path="$.kind")
    version = raw.get("version")
    newest = VERSIONS.get(kind)
    if newest is not None and isinstance(version, int) and not isinstance(version, bool) and version > newest:
        raise InputError(
            f"found {kind} version {version}, expected at most {newest}; a newer treadle wrote it, upgrade to read it",
            where=where,
            path="$.version",
        )
    return kind


def dumps(document: Document) -> str:
    """Canonical JSON: sorted keys, nested containers one per line, innermost ones on one line, final newline."""
    return _layout(msgspec.to_builtins(document, order="sorted"), "") + "\n"


def digest(document: Document) -> str:
    """`sha256:` digest of the canonical form."""
    return "sha256:" + hashlib.sha256(dumps(document).encode()).hexdigest()


def save(document: Document, path: Path | str) -> None:
    """Validate and write the canonical form of `document`, whole or not at all."""
    _require_sound(document, str(path))
    write_text(path, dumps(document))


def write_text(path: Path | str, text: str) -> None:
    """Write `text` through a temporary file and a rename. Raises InputError when the place cannot be written."""
    target = Path(path)
    handle = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise InputError("found a folder, expected a file to write", where=str(path))
        descriptor, handle = tempfile.mkstemp(prefix=f".{target.name[:64]}.", dir=target.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        os.chmod(handle, mode)
        os.replace(handle, target)
        handle = ""
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", where=str(path)) from error
    finally:
        if handle:
            Path(handle).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _convert(raw: Any, where: str, expect: type[D]) -> D:
    try:
        document = msgspec.convert(raw, expect, strict=True)
    except msgspec.ValidationError as error:
        path, message = _explain(str(error))
        raise InputError(message, where=where, path=path) from error
    except (RecursionError, OverflowError, TypeError, ValueError) as error:
        raise InputError(f"found {_one_line(error)}, expected a {expect.__struct_config__.tag}", where=where) from error
    _require_sound(document, where)
    return document


def _require_sound(document: Document, where: str) -> None:
    for path, found, expected in document.problems():
        raise InputError(f"found {found}, expected {expected}", where=where, path=path)


_AT = re.compile(r"(?s)(.*) - at `(.*)`")
_EXPECTED_GOT = re.compile(r"(?s)Expected (.*?), got (.*)")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_INVALID = re.compile(r"Invalid (?:enum )?value (.*)")


def _explain(message: str) -> tuple[str, str]:
    """Turn a msgspec message into (path, "found X, expected Y")."""
    path = "$"
    if located := _AT.fullmatch(message):
        message, path = located[1], located[2]
    if match := _EXPECTED_GOT.fullmatch(message):
        return path, f"found {match[2].strip('`')}, expected {match[1].replace('`', '')}"
    if match := _UNKNOWN.fullmatch(message):
        return f"{path}.{match[1]}", "found an unknown field, expected only documented ones"
    if match := _MISSING.fullmatch(message):
        return f"{path}.{match[1]}", "found nothing, expected this required field"
    if match := _INVALID.fullmatch(message):
        return path, f"found {match[1].strip('`')}, expected one of the documented values"
    if message.startswith("Expected "):
        return path, f"found something else, expected {message.removeprefix('Expected ').replace('`', '')}"
    return path, f"found a value out of place ({message}), expected a valid one"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML whose mappings refuse duplicate keys and whose aliases cannot multiply a small file."""


def _unique_mapping(loader: Any, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=deep)
        if not isinstance(key, str | int | float | bool | None):
            raise yaml.constructor.ConstructorError(
                None, None, "found a key that is no plain word", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"found key {key!r} twice", key_node.start_mark)
        seen.add(key)
    mapping: dict[Any, Any] = loader.construct_mapping(node, deep=True)
    return mapping


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name}, which is not a number a document may hold")


_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*')


def _without_comments(text: str) -> str:
    return _COMMENT.sub(lambda match: match[0] if match[0].startswith('"') else "", text) if "//" in text else text


def _layout(value: Any, indent: str) -> str:
    inner = indent + " "
    if isinstance(value, dict) and any(isinstance(item, dict | list | tuple) and item for item in value.values()):
        rows = [f"{inner}{json.dumps(str(key))}: {_layout(item, inner)}" for key, item in sorted(value.items())]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and any(isinstance(item, dict | list | tuple) and item for item in value):
        return "[\n" + ",\n".join(inner + _layout(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _type_name(value: Any) -> str:
    names = {
        type(None): "nothing",
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
    }
    return names.get(type(value), type(value).__name__)


__all__ = [
    "Document",
    "TreadleError",
    "digest",
    "dumps",
    "kind_of",
    "load",
    "load_any",
    "loads",
    "parse",
    "read_text",
    "save",
    "write_text",
]
