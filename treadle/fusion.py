"""The words of fusion programs: a program starts with `from treadle.fusion import *`."""

from treadle.planner.passes.fusion.language import *  # noqa: F403
