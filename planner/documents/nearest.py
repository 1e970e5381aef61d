"""The closest of several names to what was found, in the words of every message about a closed set of names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

CLOSE = 0.7
"""Share of equal letters from which a name is close: with less, gpu is close to cpu."""
MOST, MOST_NEAR = 24, 3
"""Names that are listed, and equally close names that are offered."""


def nearest(found: str, names: Iterable[str]) -> list[str]:
    """The names that were probably meant: the only one that begins so, else the closest. Case does not count."""
    given, by_letters = found.casefold(), {name.casefold(): name for name in names}
    begin = [letters for letters in by_letters if len(given) > 1 and letters.startswith(given)]
    if len(begin) == 1:
        return [by_letters[begin[0]]]
    close = get_close_matches(given, by_letters, n=MOST_NEAR, cutoff=CLOSE)
    shares = {letters: SequenceMatcher(None, letters, given).ratio() for letters in close}
    return sorted(by_letters[letters] for letters in close if shares[letters] == max(shares.values()))


def question(found: str, names: Iterable[str]) -> str:
    """`did you mean 'ndv2'?`, or nothing where no name is close."""
    near = [repr(name) for name in nearest(found, names)]
    if not near:
        return ""
    return f"did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?"


def meant(found: str, names: Iterable[str]) -> str:
    """`did you mean 'ndv2'?` where a name is close, else `expected one of dgx1, ndv2`."""
    known = list(names)
    if asked := question(found, known):
        return asked
    listed = [*known[:MOST], *(["..."] if len(known) > MOST else [])]
    return f"expected one of {', '.join(listed)}" if listed else "expected none"


def unknown(found: str, names: Iterable[str]) -> str:
    """`found 'ndv3', did you mean 'ndv2'?`, with the rules of `meant`."""
    return f"found {found!r}, {meant(found, names)}"


def with_article(name: str) -> str:
    """`a memory plan`, `an aggregation plan`."""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
