"""The templates of generated text, and the quoting of names for each language.

Names come from foreign documents. A template writes them only through one of these functions, which are filters there
too: harmless text is unchanged, and any other becomes plain data.
"""

from __future__ import annotations

import json
import re
from functools import cache

import jinja2

from treadle.planner import resources


@cache
def template(name: str) -> jinja2.Template:
    """The template at `name` below `templates/`; a value that it misses is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.folder("templates")),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    environment.filters.update(docstring=docstring, remark=remark, markdown=markdown)
    return environment.get_template(name)


def quote(text: str) -> str:
    """`text` as a literal that Python and C++ take."""
    return json.dumps(text, ensure_ascii=False)


def docstring(text: str) -> str:
    """`text` inside a Python string between triple quotes, which has this value."""
    escaped = re.sub(r'"(?=""|\Z)', '\\"', text.replace("\\", "\\\\"))
    return _UNSEEN.sub(_escaped, escaped)


def remark(text: str) -> str:
    """`text` in a comment that ends with its line, of Python, C++, Make, YAML and NCCL's tuner."""
    line = _UNSEEN.sub(_escaped, text.replace("\n", "\\n"))
    # a backslash at the end, blanks behind it or not, continues a comment of C++ and Make
    return f"{line}." if line.rstrip().endswith("\\") else line


def markdown(text: str) -> str:
    """`text` in one line of Markdown, as plain words."""
    return re.sub(r"([\\`*<>\[\]&|#])", r"\\\1", remark(text))


_UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
