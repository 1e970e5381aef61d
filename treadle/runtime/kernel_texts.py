"""The texts that libraries of kernels are compiled from."""

from __future__ import annotations

from treadle.codegen.collective.cuda.kernels import headers
from treadle.planner import resources


def texts(folder: str) -> dict[str, str]:
    """Those of `templates/FOLDER`, what kernels of gradients share, and the headers of devices, by file name."""
    templates = resources.folder("templates")
    found = {name: text for name, text in headers().items() if name.endswith(".h")}
    for each in ("kernels", folder):
        found |= {path.name: path.read_text(encoding="utf-8") for path in sorted((templates / each).iterdir())}
    return found
