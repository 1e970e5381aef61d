"""The program of a memory plan: a list of small instructions (MONeT, section 4.1).

They are written as short arrays, for example `["forward", 3, 0]`. The runtime executes them one by one; the checker and
the byte-accurate simulator are loops over them.
"""

from __future__ import annotations

from msgspec import Struct

from treadle.planner.documents.scalars import Count


class EnterStage(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="stage"):
    """Stage K+1 is the forward pass; stage k ends with backward node k (list index K - k)."""

    k: Count


class RunForward(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="forward"):
    """Run forward node `node` with implementation `impl`; `inplace` overwrites its `inplace_of`."""

    node: Count
    impl: Count = 0
    inplace: bool = False


class Drop(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="drop"):
    """Free the output of forward node `node`."""

    node: Count


class RunBackward(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="backward"):
    """Run backward node `node` (list index) with implementation `impl`."""

    node: Count
    impl: Count = 0


Instruction = EnterStage | RunForward | Drop | RunBackward
