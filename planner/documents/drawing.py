"""How documents draw themselves in notebooks: the layer that has pictures names the function that does it."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` takes long to import, and `import treadle` imports this module
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_functions: list[Callable[[Any], str | None]] = []


def draw_documents_with(function: Callable[[Any], str | None]) -> None:
    """Let `function` draw documents from now on: HTML, or None for a kind that it has no drawing of."""
    _functions[:] = [function]


def drawing_of(document: Any) -> str | None:
    """HTML of `document`; None where nothing draws it."""
    return _functions[0](document) if _functions else None
