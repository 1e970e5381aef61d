"""The report page: cards, sections of tables and pictures, rendered into one HTML file that needs nothing else."""

from __future__ import annotations

import hashlib
import os
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from treadle.planner.errors import spelled
from treadle.planner.resources import folder
from treadle.report.inline import inlined

if TYPE_CHECKING:
    from jinja2 import Template

FOLDED_ROWS = 10
"""A table with more rows is folded."""


class Card(NamedTuple):
    """A headline fact: a label, its value, whether that is good news (None for neutral), and how it is known."""

    label: str
    value: str
    good: bool | None = None
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A head and rows of printed cells; the first column is left-aligned text, with `words` all are.

    A long one is folded below its caption.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    words: bool = False

    @property
    def long(self) -> bool:
        return len(self.rows) > FOLDED_ROWS

    @property
    def name(self) -> str:
        """What the table is called where it is folded."""
        return self.caption.removesuffix(".") or self.head[0].capitalize()


@dataclass(frozen=True)
class Picture:
    """An inline SVG and the sentence that says what to see in it."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Section:
    title: str
    text: str
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class Page:
    """`lead` is the first line, if any, and `cards` come next. `timeline` is the file next to the page that has the
    timelines of its plans, if any."""

    title: str
    subtitle: str
    cards: tuple[Card, ...] = ()
    sections: tuple[Section, ...] = ()
    timeline: str | None = None
    lead: str = ""

    @property
    def timeline_url(self) -> str:
        """The link to `timeline`, for names that are not UTF-8 too."""
        return quote(os.fsencode(self.timeline or ""))


class _Shown(NamedTuple):
    """A picture as the page shows it: its place, or the place of an equal one above and its section."""

    id: str
    picture: Picture
    svg: str
    same_as: str
    section: str


def titled(kind: str, name: str) -> str:
    """The title of a section on the plan `name`: `Kind: 0.8x`; only `Kind` where the name is empty or says no more."""
    return kind if name.lower() in ("", kind.lower()) else f"{kind}: {name}"


def render(page: Page) -> str:
    """HTML of `page`: its only script stands inside, and it requests nothing from anywhere."""
    script = (folder("templates") / "report" / "page.js").read_text(encoding="utf-8")
    allowed = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return template("page.html.j2").render(page=page, pictures=_pictures(page.sections), script=script, allowed=allowed)


def template(name: str) -> Template:
    """A template of the report by its file name; what it prints is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folder("templates") / "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["spelled"] = spelled
    return environment.get_template(name)


def _pictures(sections: Sequence[Section]) -> list[list[_Shown]]:
    """The pictures of each section. One that stands further up is not drawn again."""
    first: dict[str, tuple[str, str]] = {}
    shown = []
    for place, section in enumerate(sections, 1):
        own = []
        for number, picture in enumerate(section.pictures, 1):
            name = f"picture-{place}-{number}"
            same, title = first.setdefault(picture.svg, (name, section.title))
            again = same != name
            own.append(
                _Shown(name, picture, "" if again else inlined(picture.svg, f"{name}-"), same if again else "", title)
            )
        shown.append(own)
    return shown
