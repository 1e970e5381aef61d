"""How two documents of one kind differ, in words: lists by the names of their members, numbers with units.

A pass has its own words for its decisions (`Pass.differences`); this walk over plain values serves everything else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from treadle.planner.documents.explain import child, short
from treadle.planner.documents.scalars import format_bytes, format_time

NAMES = ("id", "name", "op", "tensor")
"""Fields by which members of a list are recognised in another list, the first that names each once."""
FEW = 3
"""Members that are compared field by field; of more only the fields' names and the members are given."""
MOST_TEXT = 200
"""Characters of a text that are shown."""
UNIT = re.compile(r"_(bytes|ns|us|ms|s)$")
TIMES_NS = {"_ns": 1.0, "_us": 1e3, "_ms": 1e6, "_s": 1e9}


@dataclass(frozen=True)
class Change:
    """`what` differs, and how in words; the values, where they are a number, a word or null."""

    what: str
    how: str
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        name = UNIT.sub("", self.what)
        return f"{name.replace('_', ' ') if name.isidentifier() else name}: {self.how}"


def differences(before: Any, after: Any, path: str = "$") -> list[Change]:
    """Every place where two values differ, as documents or parts of them; none where they are equal."""
    return list(_walk(msgspec.to_builtins(before), msgspec.to_builtins(after), path))


def changed(what: str, before: Any, after: Any) -> list[Change]:
    """The change of one value, whose unit follows from the end of `what`; none where it stayed the same."""
    if before == after:
        return []
    how = f"{_valued(what, before)} -> {_valued(what, after)}"
    if _is_number(before) and _is_number(after) and before:
        how += f" ({after / before - 1:+.2%})" if abs(after) < 10 * abs(before) else f" ({after / before:.4g}x)"
    return [Change(_noun(what), how, _plain(before), _plain(after))]


def fields_changed(before: Any, after: Any, names: Iterable[str]) -> list[Change]:
    """The changes of some fields of two records, under the names of the fields."""
    return [each for name in names for each in changed(name, getattr(before, name), getattr(after, name))]


def more_and_less(what: str, before: Iterable[str], after: Iterable[str], noun: str) -> list[Change]:
    """`recomputed: 12 ops more (aten.gelu x 8, ...), 1 op less (aten.add)` of two collections of names, none where they
    have the same members as often."""
    old, new = Counter(iter(before)), Counter(iter(after))
    words = []
    for members, word in ((new - old, "more"), (old - new, "less")):
        if total := members.total():
            words.append(f"{total} {noun}{'s' * (total > 1)} {word} ({counted(members)})")
    return [Change(what, ", ".join(words), old.total(), new.total())] if words else []


def counted(members: Mapping[str, int]) -> str:
    """`aten.gelu x 8, aten.add and 3 more`: those with the largest counts first."""
    ranked = sorted(members.items(), key=lambda item: (-item[1], item[0]))
    return abridged([name if count == 1 else f"{name} x {count}" for name, count in ranked])


def abridged(words: Sequence[str], most: int = 4) -> str:
    """Up to `most` words, and how many more there are."""
    rest = len(words) - most
    return ", ".join(words[:most]) + (f" and {rest} more" if rest > 0 else "")


def _walk(before: Any, after: Any, path: str) -> Iterator[Change]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}, key=str):
            where = child(path, key)
            if key not in before:
                yield Change(_noun(where), f"nothing -> {_valued(where, after[key])}", None, _plain(after[key]))
            elif key not in after:
                yield Change(_noun(where), f"{_valued(where, before[key])} -> nothing", _plain(before[key]), None)
            else:
                yield from _walk(before[key], after[key], where)
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        yield from _lists(before, after, path)
    else:
        yield from changed(path, before, after)


def _lists(before: Sequence[Any], after: Sequence[Any], path: str) -> Iterator[Change]:
    field = next((name for name in NAMES if _names(before, name) and _names(after, name)), None)
    if field is not None:
        yield from _members({row[field]: row for row in before}, {row[field]: row for row in after}, path)
    elif len(before) != len(after):
        yield Change(_noun(path), f"{len(before)} entries -> {len(after)}", len(before), len(after))
    else:
        places = [place for place, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
        if len(places) <= FEW:
            for place in places:
                yield from _walk(before[place], after[place], child(path, place))
            return
        first = places[0]
        how = f"{len(places)} of {len(before)} entries differ, first [{first}]: "
        yield Change(_noun(path), how + f"{short(before[first])} -> {short(after[first])}")


def _members(before: Mapping[Any, Any], after: Mapping[Any, Any], path: str) -> Iterator[Change]:
    """Lists whose members have names: those added, those removed, and what changed of the others."""
    for members, other, word in ((after, before, "more"), (before, after, "less")):
        if only := [str(name) for name in members if name not in other]:
            how = f"{len(only)} {word} ({abridged(only)})"
            yield Change(_noun(path), how, len(before), len(after))
    both = [name for name in before if name in after]
    differ = [name for name in both if before[name] != after[name]]
    if len(differ) <= FEW:
        for name in differ:
            yield from _walk(before[name], after[name], f"{path}[{name}]")
    else:
        pairs = [(before[name], after[name]) for name in differ]
        fields = Counter(key for one, other in pairs for key in {*one, *other} if one.get(key) != other.get(key))
        names = abridged(list(map(str, differ)))
        yield Change(_noun(path), f"{len(differ)} of {len(both)} differ ({names}), in {counted(fields)}")
    order = [name for name in after if name in before]
    if order != both:
        yield Change(_noun(path), "in another order")


def _names(rows: Sequence[Any], field: str) -> bool:
    names = [row.get(field) for row in rows if isinstance(row, dict)]
    return len(names) == len(rows) == len(set(map(str, names))) and all(isinstance(each, str | int) for each in names)


def _noun(path: str) -> str:
    """A path of a document without its root: `network.beta_us_per_mb`."""
    return path.removeprefix("$").removeprefix(".") or "all"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _valued(path: str, value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and path.endswith(("bytes", "memory")):
        return format_bytes(value)
    scale = next((scale for end, scale in TIMES_NS.items() if path.endswith(end)), None)
    if _is_number(value) and scale is not None:
        return format_time(value * scale)
    if _is_number(value):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    if isinstance(value, dict):
        return "{" + abridged([f"{key} {_valued(str(key), each)}" for key, each in sorted(value.items())]) + "}"
    if isinstance(value, list | tuple):
        if all(isinstance(each, str | int | float) for each in value):
            return f"({abridged(list(map(str, value)))})"
        return f"{len(value)} entries"
    return str(value) if len(str(value)) <= MOST_TEXT else f"{str(value)[:MOST_TEXT]}..."


def _plain(value: Any) -> Any:
    """The value, where it is one that JSON shows in a word."""
    return value if value is None or isinstance(value, str | int | float | bool) else None
