"""Plan a training or inference step ahead of time, then make the plan run.

`treadle.fit(model, batch, budget="8GiB")`, `treadle.apply(model, plan)`, `treadle.swapped(model, plan)`,
`treadle.shard(model, plan)`, `treadle.comm`, `treadle.compress` and `treadle.sparse` are what a training script
imports; `treadle.load(path)` reads a plan or a trace, which a notebook draws; everything else is the command line.
"""

from __future__ import annotations

from importlib import import_module

from treadle.planner.documents.drawing import draw_documents_with

TYPE_CHECKING = False  # the name says it to type checkers, and the module of that name takes long to import
if TYPE_CHECKING:
    from typing import Any

    from treadle import comm as comm
    from treadle import compress as compress
    from treadle import sparse as sparse
    from treadle.fitting.fit import fit as fit
    from treadle.loading import load as load
    from treadle.planner.version import __version__ as __version__
    from treadle.runtime.memory.apply import apply as apply
    from treadle.runtime.swap.swapped import swapped as swapped
    from treadle.runtime.tiling.shard import shard as shard


_MODULES = {
    "__version__": "treadle.planner.version",
    "load": "treadle.loading",
    "apply": "treadle.runtime.memory.apply",
    "fit": "treadle.fitting.fit",
    "swapped": "treadle.runtime.swap.swapped",
    "shard": "treadle.runtime.tiling.shard",
    "comm": "treadle.comm",
    "compress": "treadle.compress",
    "sparse": "treadle.sparse",
}
"""Where each name is, imported when it is used."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'treadle' has no attribute {name!r}")
    module = import_module(_MODULES[name])
    return module if _MODULES[name] == f"treadle.{name}" else getattr(module, name)


def _drawn(document: Any) -> str | None:
    drawn: str | None = import_module("treadle.report.notebook").drawn(document)
    return drawn


draw_documents_with(_drawn)
