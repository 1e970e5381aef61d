"""The report page: sections of tables and pictures, rendered into one HTML file that needs nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.planner.resources import folder


@dataclass(frozen=True)
class Table:
    """A head and rows of printed cells; the first column is left-aligned text, with `words` all are.

    A long one is folded away below its caption.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    words: bool = False

    @property
    def long(self) -> bool:
        return len(self.rows) > 60 and bool(self.caption)


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
    """`verdicts` are the headline facts: (label, value, whether it is good news; None for neutral)."""

    title: str
    subtitle: str
    verdicts: tuple[tuple[str, str, bool | None], ...] = ()
    sections: tuple[Section, ...] = ()


def render(page: Page) -> str:
    """HTML of `page`: no script, no request to anywhere."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folder("templates") / "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["scoped"] = _scoped
    return environment.get_template("page.html.j2").render(page=page)


def _scoped(svg: str, prefix: str) -> str:
    """`svg` with its ids made unique on the page."""
    svg = svg.replace('id="', f'id="{prefix}').replace("url(#", f"url(#{prefix}")
    return svg.replace('href="#', f'href="#{prefix}')
