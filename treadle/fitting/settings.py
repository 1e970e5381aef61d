"""What a caller of `treadle.fit` asks for."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.planner.documents.quantities import Quantity, parse_bytes, parse_quantity
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.search.attempts import MemoryOptions

WHERE = "treadle.fit"


@dataclass(frozen=True)
class FitSettings:
    """`budget` and `reserve_bytes` are in bytes; a budget may also be a share of plain PyTorch's peak.

    hold_gradients: gradients of parameters are held from step to step. time_limit_s: seconds of a search for a plan.
    """

    budget: Quantity
    reserve_bytes: int = 0
    hold_gradients: bool = False
    time_limit_s: float = 60.0

    def options(self, seconds: float) -> MemoryOptions:
        """Options of a search that may take up to `seconds`."""
        return MemoryOptions(
            hold_gradients=self.hold_gradients,
            reserve_bytes=self.reserve_bytes,
            time_limit_s=min(seconds, self.time_limit_s),
        )


def settings_of(budget: str | int, reserve: str | int, hold_gradients: bool, time_limit: float) -> FitSettings:
    """The settings as a caller spells them. Raises InputError for a value of another kind."""
    if isinstance(budget, str):
        size = parse_quantity(budget, share_of="plain PyTorch's peak", where=f"{WHERE}: budget")
    else:
        size = _bytes(budget, "budget", 1, "a size such as '8GiB', a share such as '0.5x', or a number of bytes")
    if isinstance(time_limit, bool) or not isinstance(time_limit, int | float) or not 0 < time_limit < 1e6:
        raise InputError(f"found {time_limit!r}, expected seconds above 0", where=f"{WHERE}: time_limit")
    if not isinstance(hold_gradients, bool):
        raise InputError(f"found {hold_gradients!r}, expected True or False", where=f"{WHERE}: hold_gradients")
    if isinstance(reserve, str):
        reserve = parse_bytes(reserve, where=f"{WHERE}: reserve")
    least = _bytes(reserve, "reserve", 0, "a size such as '1GiB' or a number of bytes")
    return FitSettings(size, least, hold_gradients, float(time_limit))


def _bytes(value: object, name: str, least: int, expected: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**62:
        raise InputError(f"found {value!r}, expected {expected}", where=f"{WHERE}: {name}")
    return value
