"""The functions that write generated files and read them again: a folder with a manifest of digests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from treadle.codegen.python_form import require_form
from treadle.codegen.targets import Artefacts, target_names
from treadle.planner.documents import store
from treadle.planner.documents.artefact import FILE_NAME, VERSION, Artefact
from treadle.planner.documents.explain import short
from treadle.planner.documents.files import read_text, write_text
from treadle.planner.documents.overwrite import require_replaceable
from treadle.planner.errors import InputError


def write(artefacts: Artefacts, directory: Path | str) -> Artefact:
    """Write all texts and then `artefact.json` into `directory`; each file is whole or absent.

    Older artefacts in it are replaced; files that only their manifest lists are deleted, and others stay. Raises
    InputError where one of those others would be replaced, and for Python that treadle does not write.
    """
    for name, text in artefacts.files.items():
        if name.endswith(".py"):
            require_form(artefacts.target, text, name)
    folder = Path(directory)
    older = _older(folder, artefacts.files)
    manifest = manifest_of(artefacts)
    for name, text in sorted(artefacts.files.items()):
        write_text(folder / name, text)
    store.save(manifest, folder / FILE_NAME)
    for name in sorted(set(older.files) - set(artefacts.files) if older else ()):
        with suppress(OSError):
            (folder / name).unlink()
    return manifest


def read(directory: Path | str) -> tuple[Artefact, dict[str, str]]:
    """The manifest in `directory` and the texts that it lists, by relative path. Raises InputError when they are not
    there or not as they were written."""
    folder = Path(directory)
    manifest = manifest_in(folder)
    texts = {name: read_text(folder / name) for name in sorted(manifest.files)}
    for name, text in texts.items():
        if text_digest(text) != manifest.files[name]:
            message = "found a text other than the one that was generated; generate again"
            raise InputError(message, where=str(folder / name))
    return manifest, texts


def manifest_in(folder: Path) -> Artefact:
    """The manifest in `folder`. Raises InputError when there is none."""
    if not (folder / FILE_NAME).is_file():
        raise InputError(f"found no {FILE_NAME}, expected a folder that `treadle generate` wrote", where=str(folder))
    manifest = store.load(folder / FILE_NAME, Artefact)
    if manifest.target not in (known := target_names()):
        expected = f"one of {', '.join(known)}"
        message = f"found {short(manifest.target)} (text), expected {expected}"
        raise InputError(message, where=str(folder / FILE_NAME), path="$.target")
    return manifest


def manifest_of(artefacts: Artefacts) -> Artefact:
    """What `artefact.json` says about these texts."""
    return Artefact(
        version=VERSION,
        target=artefacts.target,
        plan=artefacts.plan,
        files={name: text_digest(text) for name, text in sorted(artefacts.files.items())},
        entry=artefacts.entry,
        facts=artefacts.facts,
    )


def text_digest(text: str) -> str:
    """`sha256:` digest of a text file."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _older(folder: Path, texts: Mapping[str, str]) -> Artefact | None:
    """The manifest of artefacts that are there already. Raises InputError for a file that it does not list and that
    reads otherwise than what is to be written."""
    if folder.exists() and not folder.is_dir():
        raise InputError("found a file, expected a folder to write into", where=str(folder))
    require_replaceable(folder / FILE_NAME, "artefact")
    older = store.load(folder / FILE_NAME, Artefact) if (folder / FILE_NAME).is_file() else None
    for name in sorted(set(texts) - set(older.files if older else ())):
        if (folder / name).is_file() and read_text(folder / name) != texts[name]:
            raise InputError(
                "found a file that treadle did not generate and that would be replaced; choose another folder, or "
                "remove it",
                where=str(folder / name),
            )
    return older
