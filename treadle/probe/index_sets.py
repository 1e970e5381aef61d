"""Recorded index sets as arrays, and their files: archives of NumPy, and documents that people write."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.planner.documents import store
from treadle.planner.documents.files import write_bytes
from treadle.planner.documents.index_sets import VERSION, IndexSets, TensorIndexSets
from treadle.planner.documents.parsing import parse
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.sparsity import Form, Unit
from treadle.planner.errors import InputError

MAX_UNPACKED = 2**32
"""Bytes of all arrays of an archive."""
HEADER = "document"
"""The array that has the document, without its sets, as JSON."""
_ZIP = b"PK\x03\x04"
_BROKEN = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    NotImplementedError,
    EOFError,
    RuntimeError,
)
"""What reading a damaged archive raises, beyond errors of files."""


@dataclass(frozen=True)
class RecordedTensor:
    """`sets[step][rank]` are units of one gradient, int32 [any number], from 0, in any order; those of a COO gradient
    repeat where its entries do. A unit has `width` elements."""

    name: str
    form: Form
    unit: Unit
    units: int
    width: int
    sets: tuple[tuple[NDArray[np.int32], ...], ...]


@dataclass(frozen=True)
class RecordedSets:
    """The index sets of one model, of as many steps and ranks for every tensor."""

    name: str
    tensors: tuple[RecordedTensor, ...]
    sources: dict[str, str]

    @property
    def steps(self) -> int:
        return len(self.tensors[0].sets)

    @property
    def ranks(self) -> int:
        return len(self.tensors[0].sets[0])


def is_archive(path: Path | str) -> bool:
    """Whether the file begins as an archive does. Raises InputError where it cannot be read."""
    if not os.path.isfile(path):
        return False  # the reader of documents says what is there
    try:
        with open(path, "rb") as file:
            return file.read(len(_ZIP)) == _ZIP
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", where=str(path)) from error


def recorded_in(document: IndexSets) -> RecordedSets:
    """The sets of a document as arrays."""
    return RecordedSets(
        document.name,
        tuple(
            RecordedTensor(
                *(tensor.name, tensor.form, tensor.unit, tensor.units, tensor.width),
                tuple(tuple(np.array(each, np.int32) for each in ranks) for ranks in tensor.sets),
            )
            for tensor in document.tensors
        ),
        document.sources,
    )


def document_of(recorded: RecordedSets, *, with_sets: bool = True) -> IndexSets:
    """The document of recorded sets; without the sets it has a single empty one in their place."""
    return IndexSets(
        version=VERSION,
        name=recorded.name,
        tensors=tuple(
            TensorIndexSets(
                name=tensor.name,
                form=tensor.form,
                unit=tensor.unit,
                units=tensor.units,
                width=tensor.width,
                sets=tuple(tuple(tuple(each.tolist()) for each in ranks) for ranks in tensor.sets)
                if with_sets
                else (((),),),
            )
            for tensor in recorded.tensors
        ),
        sources=recorded.sources,
    )


def save_sets(recorded: RecordedSets, path: Path | str) -> None:
    """Write recorded sets: an archive into `.npz`, else a document."""
    if Path(path).suffix != ".npz":
        store.save(document_of(recorded), path)
        return
    arrays: dict[str, NDArray[Any]] = {HEADER: np.array(store.dumps(document_of(recorded, with_sets=False)))}
    for place, tensor in enumerate(recorded.tensors):
        arrays[f"lengths_{place}"] = np.array([[len(each) for each in ranks] for ranks in tensor.sets], np.int64)
        arrays[f"indices_{place}"] = np.concatenate([each for ranks in tensor.sets for each in ranks], dtype=np.int32)
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    write_bytes(path, packed.getvalue())


def load_archive(path: Path | str) -> RecordedSets:
    """The sets of an archive that `save_sets` or `numpy.savez` wrote. Raises InputError for another one."""
    where = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = dict(_arrays(archive, where))
    except (*_BROKEN, OSError) as error:
        raise InputError(f"found a broken archive ({' '.join(str(error).split())})", where=where) from error
    except ValueError as error:
        raise InputError(f"found no array of NumPy ({' '.join(str(error).split())})", where=where) from error
    header = _header(arrays.pop(HEADER, None), where)
    tensors: list[RecordedTensor] = []
    for place, tensor in enumerate(header.tensors):
        sets = _sets(tensor, arrays.pop(f"lengths_{place}", None), arrays.pop(f"indices_{place}", None), place, where)
        if tensors and (len(sets), len(sets[0])) != (len(tensors[0].sets), len(tensors[0].sets[0])):
            found, first = f"{len(sets)} x {len(sets[0])}", f"{len(tensors[0].sets)} x {len(tensors[0].sets[0])}"
            raise InputError(f"found {found} steps and ranks, expected {first}", where=where, path=f"lengths_{place}")
        tensors.append(RecordedTensor(tensor.name, tensor.form, tensor.unit, tensor.units, tensor.width, sets))
    if arrays:
        expected = f"{HEADER}, and lengths and indices of {len(tensors)} tensors"
        raise InputError(f"found an array {min(arrays)!r}, expected {expected}", where=where)
    return RecordedSets(header.name, tuple(tensors), header.sources)


def _arrays(archive: zipfile.ZipFile, where: str) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of an archive, none of which is larger than the archive says. Raises InputError for objects."""
    members = archive.infolist()
    if (size := sum(member.file_size for member in members)) > MAX_UNPACKED:
        found, most = format_bytes(size), format_bytes(MAX_UNPACKED)
        raise InputError(f"found {found} of arrays, expected at most {most}; record fewer steps", where=where)
    for member in members:
        name = member.filename.removesuffix(".npy")
        with archive.open(member) as stream:
            version = np.lib.format.read_magic(stream)
            if version not in ((1, 0), (2, 0)):
                raise InputError("found a form of array that is not read here", where=where, path=name)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, by_column, dtype = read(stream)
            if dtype.hasobject:
                raise InputError("found an array of objects, expected whole numbers", where=where, path=name)
            data = stream.read()
        count = 1
        for length in shape:
            count *= length
        if count * dtype.itemsize != len(data):
            found = f"{len(data)} bytes for an array of {' x '.join(map(str, shape)) or 1} {dtype}"
            raise InputError(f"found {found}, expected {count * dtype.itemsize}", where=where, path=name)
        yield name, np.frombuffer(data, dtype).reshape(shape, order="F" if by_column else "C")


def _header(array: NDArray[Any] | None, where: str) -> IndexSets:
    if array is None or array.dtype.kind != "U" or array.shape != ():
        found = "nothing" if array is None else _described(array)
        raise InputError(f"found {found}, expected a JSON text", where=where, path=HEADER)
    raw = parse(str(array), f"{where}: {HEADER}")
    tensors = raw.get("tensors") if isinstance(raw, dict) else None
    for tensor in tensors if isinstance(tensors, list) else ():
        if isinstance(tensor, dict):
            tensor["sets"] = [[[]]]
    return store.loads(json.dumps(raw), f"{where}: {HEADER}", IndexSets)


def _sets(
    tensor: TensorIndexSets, lengths: NDArray[Any] | None, indices: NDArray[Any] | None, place: int, where: str
) -> tuple[tuple[NDArray[np.int32], ...], ...]:
    """The sets of one tensor from those of all steps and ranks, one after the other."""

    def refuse(name: str, found: str, expected: str) -> InputError:
        return InputError(f"found {found}, expected {expected}", where=where, path=f"{name}_{place}")

    if lengths is None or lengths.ndim != 2 or lengths.dtype.kind not in "iu" or not lengths.size:
        found = "nothing" if lengths is None else _described(lengths)
        raise refuse("lengths", found, "whole numbers, a row for each step and a column for each rank")
    if indices is None or indices.ndim != 1 or indices.dtype.kind not in "iu":
        found = "nothing" if indices is None else _described(indices)
        raise refuse("indices", found, "a list of whole numbers")
    if lengths.min() < 0 or sum(map(int, lengths.ravel())) != len(indices):
        found = "a negative length" if lengths.min() < 0 else f"lengths of {sum(map(int, lengths.ravel()))} in all"
        raise refuse("lengths", found, f"those of {len(indices)} indices")
    if indices.size and (indices.min() < 0 or indices.max() >= tensor.units):
        wrong = indices.min() if indices.min() < 0 else indices.max()
        raise refuse("indices", str(wrong), f"units from 0 to {tensor.units - 1}")
    cut = np.split(indices.astype(np.int32), np.cumsum(lengths.ravel())[:-1].astype(np.int64))
    if tensor.form == "dense" and any(len(np.unique(each)) < len(each) for each in cut):
        raise refuse("indices", "a unit twice in one set", "units of a dense gradient once each")
    ranks = lengths.shape[1]
    return tuple(tuple(cut[step * ranks : (step + 1) * ranks]) for step in range(lengths.shape[0]))


def _described(array: NDArray[Any]) -> str:
    return f"an array of {' x '.join(map(str, array.shape)) or 'one'} {array.dtype}"
