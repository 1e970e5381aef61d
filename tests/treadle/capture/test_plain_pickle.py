"""A pickle is read only if it builds plain data: nothing in it is ever executed."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.capture.plain_pickle import unpickle
from treadle.planner.errors import InputError

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(plain, st.sampled_from([2, 3, 4, 5]))
def test_plain_data_comes_back(value, protocol):
    assert unpickle(pickle.dumps(value, protocol), "here") == value


class Touches:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_calls_something_is_refused_and_calls_nothing(protocol, tmp_path):
    data = pickle.dumps({"segments": [], "hidden": [Touches(tmp_path / "made")]}, protocol)
    with pytest.raises(InputError, match=r"here: found a pickle with the operation .* which can execute code"):
        unpickle(data, "here")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("value", [OrderedDict(a=1), {1, 2}, b"bytes", complex(1, 2), Path, int, bytearray(2)])
def test_other_values_than_plain_ones_are_refused(value):
    with pytest.raises(InputError, match="expected plain data"):
        unpickle(pickle.dumps(value, 4), "here")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x80\x02]r\xff\xff\xff\x7f.", "found a place 2147483647 in the memo"),
        (b"\x80\x04", "broken pickle"),
        (b"\x80\x04h\x05.", "broken pickle"),
        (b"\x80\x04e.", "broken pickle"),
        (b"\x80\x04}]]s.", "broken pickle"),
        (b"nonsense.", "broken pickle"),
    ],
)
def test_broken_pickles_end_in_one_line(data, text):
    with pytest.raises(InputError, match=text):
        unpickle(data, "here")


@given(st.binary(max_size=40))
def test_any_bytes_give_a_value_or_one_line(data):
    with suppress(InputError):
        unpickle(b"\x80\x04" + data + b".", "here")
