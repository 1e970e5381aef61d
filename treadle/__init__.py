"""Plan a training or inference step ahead of time, then make the plan run.

`treadle.apply(model, plan)`, `treadle.swapped(model, plan)` and `treadle.comm` are what a training script imports;
everything else is the command line.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the name says it to type checkers, and the module of that name takes long to import
if TYPE_CHECKING:
    from typing import Any

    from treadle.planner.version import __version__ as __version__
    from treadle.runtime.memory.apply import apply as apply
    from treadle.runtime.swap.swapped import swapped as swapped


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from treadle.planner.version import __version__

        return __version__
    if name == "apply":
        from treadle.runtime.memory.apply import apply

        return apply
    if name == "swapped":
        from treadle.runtime.swap.swapped import swapped

        return swapped
    if name == "comm":
        import importlib

        return importlib.import_module("treadle.comm")
    raise AttributeError(f"module 'treadle' has no attribute {name!r}")
