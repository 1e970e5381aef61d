"""The templates of generated text."""

from __future__ import annotations

import json
from functools import cache

import jinja2

from planner import resources


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
    return environment.get_template(name)


def quote(text: str) -> str:
    """`text` as a literal that Python and C++ take."""
    return json.dumps(text, ensure_ascii=False)
