"""Pictures are well-formed, deterministic, and say what they should."""

from __future__ import annotations

import pytest
from lxml import etree

from treadle.passes.collective.sizes_figure import SizeRange, sizes_svg
from treadle.passes.memory.figure import memory_svg
from treadle.report.page import Card, Page, Picture, Section, Table, render
from treadle.report.svg import PALETTE, label_colour, time_unit
from treadle.report.timeline_figure import Bar, timeline_svg

MIB = 2**20


def memory_picture() -> str:
    return memory_svg(
        [(0, {"parameters": MIB, "activations": 0}), (10**6, {"parameters": MIB, "activations": 2 * MIB})],
        budget_bytes=4 * MIB,
        store_all_peak_bytes=6 * MIB,
        forward_ends_ns=500_000,
        measured={"measured peak": 3 * MIB},
    )


def words(svg: str) -> set[str]:
    return {text.strip() for text in etree.fromstring(svg.encode()).itertext() if text.strip()}


def test_memory_picture_names_every_line_and_category() -> None:
    expected = {
        "parameters",
        "activations, first run",
        "budget",
        "peak, everything kept",
        "measured peak",
        "backward starts",
    }
    assert expected <= words(memory_picture())


def test_any_number_of_categories_has_colours() -> None:
    """A problem by hand names its own; a step with dropout and a reserve has three beyond the usual ones."""
    level = {f"category {number}": MIB for number in range(9)}
    picture = memory_svg(
        [(0, level), (10**6, level)],
        budget_bytes=9 * MIB,
        store_all_peak_bytes=9 * MIB,
        forward_ends_ns=0,
        measured={},
    )
    assert {*level} <= words(picture)


def test_letters_that_no_font_has_warn_nobody(recwarn: pytest.WarningsRecorder) -> None:
    timeline_svg([Bar("op \x1b[31m", 0, 1000, "run", "\x1b")])
    assert not recwarn.list


def sizes_picture() -> str:
    return sizes_svg(
        [
            SizeRange("small, planned", (1024, 65535), (2.0, 6.0), (1.0, 3.0), (14.0, 20.0)),
            SizeRange("large, planned", (65536, 2**20), (6.0, 40.0), (3.0, 30.0), None),
        ]
    )


def test_times_over_size_name_algorithms_bound_and_sizes() -> None:
    expected = {"small, planned", "large, planned", "lower bound", "simulated, as a program", "1 KiB", "1 MiB"}
    assert expected <= words(sizes_picture())
    assert sizes_picture() == sizes_picture()
    assert words(sizes_svg([SizeRange("one, planned", (4096, 4096), (2.0, 2.0), (1.0, 1.0), None)]))


def test_pictures_are_the_same_every_time() -> None:
    assert memory_picture() == memory_picture()
    bars = [Bar("0 → 1", 0, 5, "reduce", "7"), Bar("1 → 0", 5, 5, "copy", "3")]
    assert timeline_svg(bars) == timeline_svg(bars)


def test_timeline_keeps_rows_in_order_and_labels_wide_bars_only() -> None:
    found = words(timeline_svg([Bar("slow", 0, 1000, "run", "wide"), Bar("quick", 0, 1, "run", "narrow")]))
    assert {"slow", "quick", "wide"} <= found
    assert "narrow" not in found


def test_a_legend_says_what_the_rows_do_not() -> None:
    rows = [Bar("forward", 0, 5, "forward"), Bar("backward", 5, 5, "backward")]
    links = [Bar("0 → 1", 0, 5, "reduce"), Bar("0 → 1", 5, 5, "copy")]
    written = [etree.HTML(timeline_svg(bars)).xpath("//text/text()") for bars in (rows, links)]
    assert written[0].count("forward") == written[0].count("backward") == 1
    assert {"reduce", "copy", "0 → 1"} <= set(written[1])


def luminance(colour: str) -> float:
    """WCAG 2.2's relative luminance."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colour", PALETTE)
def test_labels_are_legible_on_every_bar(colour: str) -> None:
    low, high = sorted((luminance(colour), luminance(label_colour(colour))))
    assert (high + 0.05) / (low + 0.05) > 3.3


@pytest.mark.parametrize(
    ("end_us", "unit"), [(5, (1, "us")), (999, (1, "us")), (1000, (1e3, "ms")), (2e6, (1e3, "ms")), (1e7, (1e6, "s"))]
)
def test_axes_of_one_step_have_one_unit_of_time(end_us: float, unit: tuple[float, str]) -> None:
    assert time_unit(end_us) == unit


def test_page_escapes_text_and_keeps_ids_apart() -> None:
    picture = Picture('<svg xmlns="http://www.w3.org/2000/svg"><g id="a"/><use href="#a"/></svg>', "one")
    other = Picture(picture.svg.replace("/></svg>", ' x="1"/></svg>'), "other")
    section = Section("s", "x < y & z", (Table(("h",), (("<cell>",),)),), (picture, picture, other))
    page = render(Page("<title>", "", (Card("v", "1", True, "<note>"),), (section,)))
    assert "&lt;note&gt;" in page
    assert page.count("<svg") == 2
    assert 'is the same as <a href="#picture-1-1">that of s</a>' in page
    assert 'href="#picture-1-3-a"' in page
    assert "&lt;title&gt;" in page
    assert "&lt;cell&gt;" in page
    assert "x &lt; y &amp; z" in page
    assert 'id="picture-1-1-a"' in page
    assert 'href="#picture-1-1-a"' in page
