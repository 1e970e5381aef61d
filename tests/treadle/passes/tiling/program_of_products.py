"""Programs of arrays that tests plan by the name of this file."""

from __future__ import annotations

from typing import Any

import treadle.array as ta


def program() -> Any:
    return (ta.ones((8, 4)) @ ta.ones((4, 2))).sum(axis=0)


def other() -> Any:
    return ta.ones((8, 4)).T
