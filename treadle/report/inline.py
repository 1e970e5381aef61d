"""Pictures inside a page: ids that no other picture has, and colours that follow the page's light or dark style."""

from __future__ import annotations

import re

from treadle.report.svg import PALETTE

SCALE = 1.5
"""Pixels of a point where there is space."""
_ROLES = {
    "ink": ("#000000", "#1b1f24", "#1c2733"),
    "soft": ("#57606a", "#666666", "#8a8f98"),
    "line": ("#d8dee4", "#eef1f4"),
    "tint": ("#f5f7f9",),
    "paper": ("#ffffff",),
    "alarm": ("#b00020",),
}
VARIABLES = {colour: f"--{role}" for role, colours in _ROLES.items() for colour in colours} | {
    colour.lower(): f"--chart-{place}" for place, colour in enumerate(PALETTE, 1)
}
"""The variable of the style sheet for each colour of a picture; colours without one stay as they are."""


def inlined(svg: str, prefix: str) -> str:
    """`svg` with ids that begin with `prefix`, and colours as variables of the page."""

    def changed(tag: re.Match[str]) -> str:
        text = re.sub(r' id="', f' id="{prefix}', tag[0]).replace("url(#", f"url(#{prefix}")
        text = text.replace('href="#', f'href="#{prefix}')
        return re.sub(r"(?<=: )#[0-9a-f]{6}(?=[;\"])", _variable, text)

    width = re.search(r'width="([\d.]+)pt"', svg)
    scaled = svg.replace("<svg ", f'<svg style="--natural: {float(width[1]) * SCALE:.0f}px" ', 1) if width else svg
    return re.sub(r"<[a-zA-Z][^>]*>", changed, scaled)


def _variable(colour: re.Match[str]) -> str:
    name = VARIABLES.get(colour[0])
    return f"var({name})" if name else colour[0]
