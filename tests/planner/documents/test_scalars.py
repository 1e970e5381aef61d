"""One rule for units: powers of 1024 with an i or a bare letter, powers of 1000 with a B; times read easily."""

from __future__ import annotations

import pytest

from treadle.planner.documents.scalars import format_bytes, format_time, parse_bytes
from treadle.planner.errors import InputError, brief


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("7B", 7), ("64K", 65536), ("64kib", 65536), ("64KB", 64_000), ("75MB", 75_000_000),
     ("1.5GiB", 3 * 2**29), ("2 TB", 2 * 10**12), ("0.5P", 2**49)],
)  # fmt: skip
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "1.5", "0.5B", "-1K", "1e3", "1iB KB", "1 M B x"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="expected"):
        parse_bytes(text)


@pytest.mark.parametrize("size", [0, 1, 1000, 1024, 1536, 2**20, 2**50])
def test_a_printed_size_reads_as_itself(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


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
