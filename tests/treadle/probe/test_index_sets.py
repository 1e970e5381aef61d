"""Files of index sets: what is written is read, and anything else ends in one line."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.planner.samples import INDEX_SETS
from treadle.planner.documents import store
from treadle.planner.documents.index_sets import IndexSets
from treadle.planner.errors import InputError
from treadle.probe.index_sets import document_of, is_archive, load_archive, recorded_in, save_sets

HEADER = json.dumps(
    {
        "kind": "index-sets",
        "version": 1,
        "name": "x",
        "tensors": [{"name": "t", "form": "dense", "unit": "row", "units": 16, "width": 4}],
    }
)
GOOD: dict[str, Any] = {"document": HEADER, "lengths_0": [[2], [1]], "indices_0": np.array([3, 15, 0], np.int32)}


def test_archive_and_document_hold_the_same_sets(tmp_path: Path) -> None:
    save_sets(recorded_in(INDEX_SETS), tmp_path / "sets.npz")
    save_sets(recorded_in(INDEX_SETS), tmp_path / "sets.yaml")
    assert (is_archive(tmp_path / "sets.npz"), is_archive(tmp_path / "sets.yaml")) == (True, False)
    assert document_of(load_archive(tmp_path / "sets.npz")) == INDEX_SETS
    assert store.load(tmp_path / "sets.yaml", IndexSets) == INDEX_SETS


def test_an_archive_may_be_made_by_hand(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "sets.npz", **GOOD)
    (tensor,) = load_archive(tmp_path / "sets.npz").tensors
    assert [[each.tolist() for each in ranks] for ranks in tensor.sets] == [[[3, 15]], [[0]]]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no document": ({"document": None}, "document: found nothing"),
    "document of numbers": ({"document": [1]}, "document: found an array of 1 int64"),
    "another kind": ({"document": '{"kind": "trace", "version": 1}'}, "expected 'index-sets'"),
    "no object": ({"document": "[1]"}, "expected an object"),
    "element of a width": ({"document": HEADER.replace('"row"', '"element"')}, "the width of an element"),
    "too many units": ({"document": HEADER.replace("16", str(2**31))}, "at most 2147483647"),
    "no indices": ({"indices_0": None}, "indices_0: found nothing"),
    "floats": ({"indices_0": [0.5, 1, 2]}, "indices_0: found an array of 3 float64"),
    "a table": ({"indices_0": [[1, 2, 3]]}, "indices_0: found an array of 1 x 3 int64"),
    "out of range": ({"indices_0": [3, 16, 0]}, "indices_0: found 16, expected units from 0 to 15"),
    "far out of range": ({"indices_0": np.array([3, 2**32 + 1, 0])}, "indices_0: found 4294967297"),
    "negative": ({"indices_0": [3, -1, 0]}, "indices_0: found -1"),
    "twice": ({"indices_0": [3, 3, 0]}, "a unit twice in one set"),
    "lengths of others": ({"lengths_0": [[2], [2]]}, "lengths_0: found lengths of 4 in all, expected those of 3"),
    "negative length": ({"lengths_0": [[4], [-1]]}, "lengths_0: found a negative length"),
    "no sets": ({"lengths_0": np.zeros((0, 1), int), "indices_0": []}, "lengths_0: found an array of 0 x 1"),
    "lengths in a row": ({"lengths_0": [2, 1]}, "a row for each step"),
    "one array more": ({"indices_1": [1]}, "found an array 'indices_1'"),
    "booleans": ({"indices_0": [True, False, True]}, "found an array of 3 bool"),
}


@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_archive_is_refused_in_one_line(change: str, tmp_path: Path) -> None:
    changed, message = WRONG[change]
    arrays = {name: value for name, value in (GOOD | changed).items() if value is not None}
    np.savez(tmp_path / "sets.npz", **arrays)
    with pytest.raises(InputError) as caught:
        load_archive(tmp_path / "sets.npz")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def packed(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return stream.getvalue()


def array_of(shape: str, data: bytes, kind: str = "<i4") -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def objects() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([{}], object), allow_pickle=True)
    return packed(document=stream.getvalue())


def sparse_zip() -> bytes:
    """An archive that says one of its arrays has 8 GiB."""
    data = bytearray(packed(document=b"0" * 100))
    place = data.index(b"PK\x01\x02") + 24
    data[place : place + 4] = (2**32 - 2).to_bytes(4, "little")
    return bytes(data) if len(data) else b""


def damaged_packing() -> bytes:
    """An archive whose compressed data is no such data."""
    packing = io.BytesIO()
    with zipfile.ZipFile(packing, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("document.npy", array_of("(4,)", bytes(16)))
    data = bytearray(packing.getvalue())
    place = data.index(b"document.npy") + len(b"document.npy")
    data[place : place + 2] = b"\xff\xff"
    return bytes(data)


BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "objects": (objects, "an array of objects"),
    "cut short": (lambda: packed(document=array_of("(4,)", b"0" * 16))[:-30], "a broken archive"),
    "damaged packing": (damaged_packing, "a broken archive"),
    "no arrays": (lambda: packed(document=b"hello"), "no array of NumPy"),
    "a shape too large": (lambda: packed(document=array_of("(1000000000000,)", b"0" * 16)), "found 16 bytes"),
    "a negative shape": (lambda: packed(document=array_of("(-1,)", b"0" * 16)), "found"),
    "code for a shape": (lambda: packed(document=array_of("exit()", b"")), "no array of NumPy"),
    "a size that is not there": (sparse_zip, "found"),
    "changed on its path": (lambda: packed(document=array_of("(4,)", bytes(16))).replace(b"NUMPY", b"NUMPX"), "found"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_archive_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    make, message = BROKEN[case]
    (tmp_path / "sets.npz").write_bytes(make())
    with pytest.raises(InputError) as caught:
        load_archive(tmp_path / "sets.npz")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[[0, 3, 3], []]", "[[0, 3, 16], []]", "$.tensors[0].sets[0][0][2]: found 16, expected a unit below 16"),
        ("[[0, 3, 3], []]", "[[0, -3], []]", "sets[0][0][1]"),
        ("[[0, 3, 3], []]", "[[0, 3]]", "$.tensors[0].sets[1]: found 2 sets, expected 1"),
        ("[[0, 3, 3], []]", "[[0.5], []]", "sets[0][0][0]"),
        ('"coo"', '"dense"', "$.tensors[0].sets[0][0]: found a unit twice"),
        ('"width": 8', '"width": 0', "$.tensors[0].width"),
        ('"row"', '"column"', "$.tensors[0].unit"),
    ],
    ids=["out of range", "negative", "ranks missing", "a fraction", "twice", "no width", "no unit"],
)
def test_a_wrong_document_is_refused_in_one_line(old: str, new: str, message: str) -> None:
    text = json.dumps(json.loads(store.dumps(INDEX_SETS)))
    assert old in text
    with pytest.raises(InputError) as caught:
        store.loads(text.replace(old, new), "sets.json", IndexSets)
    assert message in str(caught.value)
