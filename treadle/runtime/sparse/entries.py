"""Units of a gradient with their values: what participants hold of a part, and what messages carry."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Entries(NamedTuple):
    """Values [N, width] of the units `indices` [N]; of all units of a part, in their order, where that is None."""

    indices: Tensor | None
    values: Tensor
    bitmap: Tensor | None = None
    """A bit for each unit of the part, where they come from a sum or such a message."""
    ascending: bool = True

    @property
    def units(self) -> Tensor:
        """The indices of entries that are not dense."""
        assert self.indices is not None
        return self.indices
