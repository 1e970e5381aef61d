"""Matplotlib figures as deterministic SVG text that a page can hold inline."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from treadle.planner.errors import MissingBackendError

# Okabe and Ito's palette: distinct with any colour vision.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")


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


def bytes_unit(top: float) -> tuple[int, str]:
    """Bytes of the unit of an axis that reaches `top`, and its name."""
    return (2**30, "GiB") if top >= 4 * 2**30 else (2**20, "MiB")


def text_of(drawn: Any) -> str:
    """The `<svg>` element of a figure, the same bytes for the same figure."""
    stream = io.StringIO()
    with warnings.catch_warnings():  # the text stays text, which needs no glyph
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        drawn.savefig(stream, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = stream.getvalue()
    return re.sub(r"^.*?(?=<svg)", "", svg, count=1, flags=re.DOTALL)
