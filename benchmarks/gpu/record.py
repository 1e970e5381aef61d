"""docs/gpu.json, what the checks found on each card, and docs/gpu.md, the page written from it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.launch import ROOT, Record

DATA = ROOT / "docs" / "gpu.json"
PAGE = ROOT / "docs" / "gpu.md"
INTRODUCTION = Path(__file__).with_name("page.txt")


def saved(facts: Mapping[str, Any], date: str, records: Sequence[Record], data: Path = DATA, page: Path = PAGE) -> None:
    """Put the records of one card into the data file, in place of older ones of this card, and write the page."""
    entry = {**facts, "date": date, "records": [asdict(record) for record in records]}
    cards = [card for card in read(data) if card["card"] != facts["card"]]
    cards = sorted([*cards, entry], key=lambda card: str(card["card"]))
    _replace(data, json.dumps({"cards": cards}, indent=1, default=str) + "\n")
    _replace(page, text_of(cards))


def read(data: Path = DATA) -> list[dict[str, Any]]:
    """The cards of the data file, none where it is missing."""
    if not data.is_file():
        return []
    cards: list[dict[str, Any]] = json.loads(data.read_text(encoding="utf-8"))["cards"]
    return cards


def text_of(cards: Sequence[Mapping[str, Any]]) -> str:
    """The page."""
    parts = [INTRODUCTION.read_text(encoding="utf-8")]
    if not cards:
        parts.append("## Results\n\nNo card has run the checks yet. Their dry run passes on a CPU.\n")
    parts += ["\n".join(_section(card)) + "\n" for card in cards]
    return "\n".join(parts)


def _section(card: Mapping[str, Any]) -> Iterator[str]:
    software = [f"{name} {card[name]}" for name in ("driver", "nvcc", "torch", "python") if card.get(name)]
    many = f"{card['cards']} x " if card.get("cards", 1) > 1 else ""
    yield from (f"## {many}{card['card']}", "", f"{card['date']}: {card['architecture']}, {', '.join(software)}.", "")
    yield from ("| check | result | figure | s |", "|---|---|---|---:|")
    for record in card["records"]:
        cells = (f"`{record['item']}`", record["result"], record["figure"], f"{record['seconds']:.0f}")
        yield "| " + " | ".join(_cell(cell) for cell in cells) + " |"
    for record in card["records"]:
        for table in record["tables"]:
            yield from _table(table)


def _table(table: Mapping[str, Any]) -> Iterator[str]:
    columns = list(dict.fromkeys(column for row in table["rows"] for column in row))
    if not columns:
        return
    yield from ("", f"**{_cell(table['title'])}**", "", "| " + " | ".join(map(_cell, columns)) + " |")
    yield "|" + "---|" * len(columns)
    for row in table["rows"]:
        yield "| " + " | ".join(_cell(row.get(column)) for column in columns) + " |"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}"
    return " ".join(str(value).split()).replace("|", "\\|")


def _replace(path: Path, text: str) -> None:
    """Readers see the old text or the new one."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)
