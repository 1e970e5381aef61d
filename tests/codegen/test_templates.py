"""How each language quotes text: the value comes back in Python, and no comment ends before its line."""

from __future__ import annotations

import ast
import re

from hypothesis import example, given
from hypothesis import strategies as st

from tests.codegen.hostile import HOSTILE
from treadle.codegen.templates import docstring, markdown, quote, remark

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text('"\\\n\r\t\u2028\u202e\0 #/*x', max_size=12)
HARMLESS = st.text(st.sampled_from("abz019 ._:-/+#=(),'é→"), max_size=20)


@given(TEXTS)
@example('"""')
@example('a"')
@example("\\")
def test_a_literal_and_a_docstring_have_the_value_of_the_text(text: str):
    assert ast.literal_eval(quote(text)) == text
    assert ast.literal_eval(f'"""a {docstring(text)} b"""') == f"a {text} b"
    assert ast.literal_eval(f'"""\\\n{docstring(text)}\n"""') == f"{text}\n"
    assert ast.literal_eval(f'"""{docstring("a" + text)}"""') == f"a{text}"


@given(TEXTS)
def test_a_comment_is_one_line_that_joins_no_other(text: str):
    line = remark(text)
    assert line.splitlines() in ([], [line])
    assert not line.rstrip().endswith("\\")
    assert re.search("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", line + markdown(text)) is None


def test_markdown_has_no_tags_links_or_code():
    for text in HOSTILE:
        assert re.search(r"(?<!\\)[`*<>\[\]&|#]", re.sub(r"\\\\", "", markdown(text))) is None


@given(HARMLESS)
def test_harmless_texts_stay_as_they_are(text: str):
    assert quote(text) == f'"{text}"'
    assert docstring(text) == remark(text) == text
    assert markdown(text) == text.replace("#", "\\#")
