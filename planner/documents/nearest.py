"""The closest of several names to what was found, in the words of every message about a closed set of names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

CLOSE = 0.65
"""Share of equal letters from which a name is close: difflib's 0.6 takes `--bogus` for `--verbose`."""
MOST = 24
"""Names that are listed."""


def nearest(found: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant: the only one that begins so, else a close one. Case does not count."""
    by_letters = {name.casefold(): name for name in names}
    begin = [letters for letters in by_letters if len(found) > 1 and letters.startswith(found.casefold())]
    near = begin if len(begin) == 1 else get_close_matches(found.casefold(), by_letters, n=1, cutoff=CLOSE)
    return by_letters[near[0]] if near else None


def meant(found: str, names: Iterable[str]) -> str:
    """`did you mean 'ndv2'?` where a name is close, else `expected one of dgx1, ndv2`."""
    known = list(names)
    near = nearest(found, known)
    if near is not None:
        return f"did you mean {near!r}?"
    listed = [*known[:MOST], *(["..."] if len(known) > MOST else [])]
    return f"expected one of {', '.join(listed)}" if listed else "expected none"


def unknown(found: str, names: Iterable[str]) -> str:
    """`found 'ndv3', did you mean 'ndv2'?`, with the rules of `meant`."""
    return f"found {found!r}, {meant(found, names)}"
