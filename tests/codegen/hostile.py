"""Hostile texts in every text of a document, and the shape that a generated text has apart from its data."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

import yaml
from lxml import etree

CALL = "__import__('os').system('touch PWNED')"
LINES = f'x"""\n{CALL}\n"""\n#include <x>\n*/ {CALL} /*\n- x: !!python/object'
ONE_LINE = (
    f'x"""; {CALL}; """ */ #define x // ]]> --> </script><script>x()</script> $(x) {{{{x}}}} %s $x^$ [x](y) \' " \\'
)
CODE = f"{CALL}, aten.mm.default"
HOSTILE = (LINES, ONE_LINE, CODE)
_WORDS = frozenset(re.findall(r"\w\w+", " ".join(HOSTILE)))

Place = tuple[str | int, ...]


def places(raw: Any) -> Iterator[tuple[Place, str]]:
    """Every text in plain values, one of each field: where it is, and the text. A key is at (..., its name, KEY)."""
    seen = set()
    for place, text in _all(raw, ()):
        field = tuple("[]" if isinstance(step, int) else step for step in place)
        if field not in seen:
            seen.add(field)
            yield place, text


KEY = "\0key"


def _all(raw: Any, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(raw, str):
        yield place, raw
    elif isinstance(raw, dict):
        for key, value in raw.items():
            yield (*place, key, KEY), key
            yield from _all(value, (*place, key))
    elif isinstance(raw, list):
        for index, value in enumerate(raw):
            yield from _all(value, (*place, index))


def replaced(raw: Any, place: Place, text: str) -> Any:
    """A copy of `raw` with another text at `place`."""
    raw = json.loads(json.dumps(raw))
    inner, last = raw, place[-1]
    for step in place[: -2 if last == KEY else -1]:
        inner = inner[step]
    if last == KEY:
        inner[text] = inner.pop(place[-2])
    else:
        inner[last] = text
    return raw


def renamed(raw: Any, old: str, new: str) -> Any:
    """A copy of `raw` in which each text and key that is `old` is `new`."""
    if isinstance(raw, str):
        return new if raw == old else raw
    if isinstance(raw, dict):
        return {new if key == old else key: renamed(value, old, new) for key, value in raw.items()}
    return [renamed(value, old, new) for value in raw] if isinstance(raw, list) else raw


def everywhere(
    raws: Mapping[str, Any], hostile: str, taken: Callable[[dict[str, Any]], bool], texts: Iterable[str] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """The documents with `hostile` in every text of every element at once, but for those that have to stay so that
    the documents are `taken`; and the texts that it replaces, all or of `texts`. Those that differed still do, and a
    name is the same wherever it stands. Texts that have to stay are found by halves."""
    texts = sorted({text for raw in raws.values() for _, text in _all(raw, ())}) if texts is None else list(texts)
    names = {text: f"{hostile} {number}" for number, text in enumerate(texts)}

    def grown(chosen: frozenset[str], more: list[str]) -> frozenset[str]:
        if not more:
            return chosen
        trial = chosen.union(more)
        if taken({role: _rewritten(raw, {text: names[text] for text in trial}) for role, raw in raws.items()}):
            return trial
        half = len(more) // 2
        return grown(grown(chosen, more[:half]), more[half:]) if half else chosen

    chosen = grown(frozenset(), texts)
    return {role: _rewritten(raw, {text: names[text] for text in chosen}) for role, raw in raws.items()}, sorted(chosen)


def _rewritten(raw: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(raw, str):
        return texts.get(raw, raw)
    if isinstance(raw, dict):
        return {texts.get(key, key): _rewritten(value, texts) for key, value in raw.items()}
    return [_rewritten(value, texts) for value in raw] if isinstance(raw, list) else raw


def alike(found: Any, wanted: Any) -> bool:
    """Whether a text of shape `found` has no more in it than one of shape `wanted`."""
    return found <= wanted if isinstance(wanted, frozenset) else bool(found == wanted)


def shape(name: str, text: str) -> Any:
    """What a text is apart from its data: another one means that data became code."""
    ending = name.rpartition(".")[2]
    if ending == "py":
        return _python(text)
    if ending in ("cpp", "cu", "h", "hpp"):
        return _cpp(text)
    if ending == "xml":
        return [(node.tag, sorted(node.attrib)) for node in etree.fromstring(text.encode()).iter()]
    if ending in ("json", "yaml"):
        return _values(json.loads(text) if ending == "json" else yaml.safe_load(text))
    if ending == "md":
        return [re.findall(r"[`*<>\[\]&|#]", re.sub(r"\\[!-/:-@\[-`{-~]", "", line)) for line in text.splitlines()]
    if ending == "html":
        return _html(text)
    return frozenset(line for line in text.split("\n") if not line.startswith("#"))  # tuner, Makefile


def _python(text: str) -> frozenset[str]:
    """Kinds of nodes, attributes, and names that nothing assigns. How many calls there are follows from the data."""
    nodes = list(ast.walk(ast.parse(text)))
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)} - assigned
    attributes = {f".{node.attr}" for node in nodes if isinstance(node, ast.Attribute)}
    return frozenset({type(node).__name__ for node in nodes} | attributes | names)


_TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\w+|\S""", re.DOTALL)


def _cpp(text: str) -> frozenset[str]:
    """Words of the hostile texts outside comments and quotes, as a compiler that joins lines first sees them. Other
    words follow from what is chosen by name."""
    tokens = _TOKEN.findall(re.sub(r"\\[ \t]*\n", "", text))
    return frozenset(token for token in tokens if token in _WORDS)


def _values(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted(json.dumps(_values(item)) for item in value.values())
    return [_values(item) for item in value] if isinstance(value, list) else type(value).__name__


def _html(text: str) -> frozenset[tuple[str, tuple[str, ...]]]:
    """Elements with the names of their attributes; how many there are in a picture follows from its labels."""
    found: set[tuple[str, tuple[str, ...]]] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.add((tag, tuple(sorted(name for name, _ in attrs))))

    Reader().feed(text)
    return frozenset(found)


def attacks(raws: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Documents by role, those that differ from `raws`, with one text changed: in one place, or, where it can
    be a name, wherever it stands."""
    counts = Counter(text for raw in raws.values() for _, text in _all(raw, ()))
    for role, raw in raws.items():
        for place, text in places(raw):
            for hostile in HOSTILE:
                if hostile is CODE and role != "trace":
                    continue  # only calls are spelled without quotation marks
                where = f"{role} {place} {hostile[:8]!r}"
                if hostile is ONE_LINE and counts[text] > 1:
                    everywhere = {name: renamed(each, text, hostile) for name, each in raws.items()}
                    yield f"{where} everywhere", {name: each for name, each in everywhere.items() if each != raws[name]}
                else:
                    yield f"{where} once", {role: replaced(raw, place, hostile)}
