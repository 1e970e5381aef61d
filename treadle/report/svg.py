"""Matplotlib figures as deterministic SVG text that a page can hold inline."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from treadle.planner.errors import MissingBackendError

# Okabe and Ito's palette: distinct with any colour vision.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")


def label_colour(colour: str) -> str:
    """White or nearly black: what is legible on a bar of `colour`, `#rrggbb`. It stays nearly black in dark mode, in
    which white becomes the paper's colour."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 128 else "#111111"


@contextmanager
def styled(**options: Any) -> Iterator[Any]:
    """Yield a figure that is drawn without a display, in the style of the report. Raises MissingBackendError without
    matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingBackendError("pictures need matplotlib; install it with: pip install 'treadle[report]'") from error
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "text.parse_math": False,  # a dollar sign in a name is a dollar sign
        "svg.hashsalt": "treadle",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
    }
    with mpl.rc_context(style):
        yield Figure(**options)


@contextmanager
def figure(width: float, height: float, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (figure, axes) of `width` x `height` inches. Raises MissingBackendError without matplotlib."""
    with styled(figsize=(width, height), layout="constrained") as drawn:
        yield drawn, drawn.subplots(**options)


def time_unit(end_us: float) -> tuple[float, str]:
    """Microseconds of the unit of an axis that ends at `end_us`, and its name."""
    return (1e6, "s") if end_us >= 10e6 else (1e3, "ms") if end_us >= 1e3 else (1.0, "us")


def bytes_unit(top: float) -> tuple[int, str]:
    """Bytes of the unit of an axis that reaches `top`, and its name."""
    units = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    return next(((size, name) for size, name in units if top >= 4 * size), (1, "bytes"))


class HoverArea(NamedTuple):
    """A rectangle in the data of its axes, and the names and values that a pointer shows there.

    Without `bottom` and `top` it reaches over the whole height. `margin`: points added on each side, for marks.
    """

    left: float
    right: float
    text: str
    bottom: float | None = None
    top: float | None = None
    margin: float = 0.0


def text_of(drawn: Any, areas: Iterable[tuple[Any, Sequence[HoverArea]]] = ()) -> str:
    """The `<svg>` element of a figure, the same bytes for the same figure. areas: (axes, areas on them)."""
    stream = io.StringIO()
    with warnings.catch_warnings():  # the text stays text, which needs no glyph
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        drawn.savefig(stream, format="svg", metadata=_NO_METADATA, transparent=True)
    overlay = "".join(_area(drawn, axes, area) for axes, found in areas for area in found)
    svg = _lean(stream.getvalue()).rstrip().removesuffix("</svg>")
    return f"{svg}{_OVERLAY}{overlay}</g>\n</svg>\n" if overlay else f"{svg}</svg>\n"


_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_OVERLAY = '<g fill="none" stroke="none" pointer-events="all">'
_DEFAULTS = 'font-family="sans-serif" stroke-linejoin="round" stroke-linecap="butt"'


def _lean(svg: str) -> str:
    """The element only: no names of fonts, no style sheet, which would hold for a whole page, no unused ids,
    coordinates to the hundredth of a point."""
    svg = re.sub(r"^.*?<svg", f"<svg {_DEFAULTS}", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"\s*<metadata>.*?</metadata>|\s*<style[^>]*>[^<]*</style>|\s*<!--.*?-->", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]*)', svg))

    def lean(tag: re.Match[str]) -> str:
        text = re.sub(r" font-family: [^;\"]*;", "", tag[0])
        text = re.sub(r"\s+", " ", re.sub(r"(\.\d\d)\d+", r"\1", text))
        return re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)

    return re.sub(r"<[a-z][^>]*>", lean, svg)


def _area(drawn: Any, axes: Any, area: HoverArea) -> str:
    """A rectangle over the picture whose title is the text of `area`; nothing outside the axes."""
    bottom, top = axes.get_ylim()
    (left, low), (right, high) = (axes.transData + drawn.transFigure.inverted()).transform(
        [
            (area.left, bottom if area.bottom is None else area.bottom),
            (area.right, top if area.top is None else area.top),
        ]
    )
    inside = axes.get_position()
    left, right = (min(max(x, inside.x0), inside.x1) * drawn.get_figwidth() * 72 for x in sorted((left, right)))
    low, high = (min(max(y, inside.y0), inside.y1) * drawn.get_figheight() * 72 for y in sorted((low, high)))
    if right - left + high - low + area.margin <= 0:
        return ""
    x, y = left - area.margin, drawn.get_figheight() * 72 - high - area.margin
    width, height = right - left + 2 * area.margin, high - low + 2 * area.margin
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{max(height, 0.5):.1f}"'
    return f"<rect {place}><title>{escape(area.text)}</title></rect>"
