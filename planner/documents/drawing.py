"""How documents draw themselves in notebooks: the layer that has pictures names the function that does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Draw = Callable[[Any], str | None]

_functions: list[Draw] = []


def draw_documents_with(function: Draw) -> None:
    """Let `function` draw documents from now on: HTML, or None for a kind that it has no drawing of."""
    _functions[:] = [function]


def drawing_of(document: Any) -> str | None:
    """HTML of `document`; None where nothing draws it."""
    return _functions[0](document) if _functions else None
