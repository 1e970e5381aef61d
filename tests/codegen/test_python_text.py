"""Names of generated Python: one each, none of which means something else."""

from __future__ import annotations

import builtins
import keyword

from treadle.codegen.python_text import python_names

ODD = ("x_second", "x", "a b", "a-b", "class", "1", "\u00e9", "_", "sum", "mesh")


def test_names_are_distinct_with_their_endings_and_mean_nothing_else() -> None:
    found = python_names(ODD, {"mesh"}, ("", "_second"))
    names = [f"{name}{ending}" for name in found.values() for ending in ("", "_second")]
    assert tuple(found) == ODD
    assert len({*names}) == len(names)
    assert all(name.isidentifier() and name.isascii() and not keyword.iskeyword(name) for name in names)
    assert not {*names} & {*dir(builtins), "mesh"}
    assert found["x_second"] == "x_second"
