"""Times read easily, and long values in messages are cut."""

from __future__ import annotations

import pytest

from treadle.planner.documents.scalars import format_time
from treadle.planner.errors import InputError, brief


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0 ns"), (29, "29 ns"), (1500, "1.5 us"), (2_345_678, "2.34568 ms"), (9_999_000_000, "9999 ms"),
     (12_345_678_900, "12.3457 s")],
)  # fmt: skip
def test_times_in_the_unit_that_reads_easily(nanoseconds: int, text: str) -> None:
    assert format_time(nanoseconds) == text


def test_long_values_lose_their_middle_and_long_prose_stays() -> None:
    prose = "the plan's words, which go on for rather long, stay as they are: " * 5 + "to the end of the plans' words"
    assert brief(prose) == prose
    assert (
        brief(f"found {'x' * 5000!r}, expected 'a' or 'b'") == f"found '{'x' * 59}...{'x' * 19}', expected 'a' or 'b'"
    )
    assert len(brief(f"{'/deep' * 1000}: cannot read: File name too long")) < 200
    assert str(InputError("found " + "y" * 900, where="f")) == f"f: found {'y' * 60}...{'y' * 20}"
