"""Texts of documents are printable, on one line unless the field is prose or a program."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.planner.samples import HARDWARE, TRACE
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError

UNSEEN = ("\n", "\r", "\t", "\0", "\x1b[2J", "\x7f", "\x85", "\u2028", "\u202e", "\u2066")


def changed(document, *places_and_value):
    *places, last, value = places_and_value
    raw = json.loads(store.dumps(document))
    inner = raw
    for place in places:
        inner = inner[place]
    inner[last] = value
    return raw


@pytest.mark.parametrize("character", UNSEEN, ids=ascii)
def test_a_name_with_a_character_that_nobody_sees_is_refused(character: str):
    raw = changed(TRACE, "tensors", 1, "name", f"a{character}b")
    for text in (json.dumps(raw), json.dumps(raw, ensure_ascii=False), yaml.safe_dump(raw)):
        with pytest.raises(InputError) as error:
            store.loads(text, "t.json", Trace)
        assert str(error.value).startswith("t.json: $.tensors[1].name: found 'a")
        assert str(error.value).endswith("(text), expected printable text on one line")
        assert str(error.value).isprintable()


def test_keys_are_texts_too():
    raw = changed(HARDWARE, "sources", {"a\nb": "x"})
    with pytest.raises(InputError, match=r"\$\.sources: found 'a\\nb' \(text\), expected printable text on one line"):
        store.loads(json.dumps(raw), "h.json", Hardware)


def test_prose_and_arguments_may_have_lines_but_no_control_characters():
    raw = changed(HARDWARE, "sources", "devices", "a data sheet\n\tand a letter")
    assert store.loads(json.dumps(raw), "h.json", Hardware).sources["devices"].count("\n") == 1
    tensors = [{"tensor": "x"}, {"tensor": "w"}]
    raw = changed(TRACE, "ops", 0, "args", [*tensors, "a\nb", ["c\nd"]])
    store.loads(json.dumps(raw), "t.json", Trace)
    raw = changed(TRACE, "ops", 0, "args", [*tensors, ["c\x1b"]])
    with pytest.raises(InputError, match=r"^t\.json: \$\.ops\[0\]\.args\[2\]\[0\]: .*, expected printable text$"):
        store.loads(json.dumps(raw), "t.json", Trace)


@pytest.mark.parametrize("name", ["größe → 2×", 'a "b" \\ c', "模型", "a\u00a0b\u200db"])
def test_other_names_are_left_alone(name: str):
    raw = changed(TRACE, "name", name)
    for text in (json.dumps(raw), json.dumps(raw, ensure_ascii=False)):
        assert store.loads(text, "t.json", Trace).name == name
