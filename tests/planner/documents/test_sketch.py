"""A sketch is refused when it is loaded, for everything that can be seen wrong without the hardware."""

from __future__ import annotations

import json
from typing import Any

import pytest

from treadle.planner.documents import store
from treadle.planner.documents.sketch import Sketch
from treadle.planner.errors import InputError

DIRECT = {"kind": "sketch", "version": 1, "name": "mine", "intranode_sketch": {"strategy": "direct"}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"instances": 65}, r"\$\.instances: found 65, expected"),
        ({"instances": 10**9}, r"\$\.instances: found 1000000000, expected"),
        ({"hyperparameters": {"input_size": "0"}}, r"\$\.hyperparameters\.input_size: found '0', expected a size"),
        ({"hyperparameters": {"input_size": ["1M", "a lot"]}}, r"input_size: found 'a lot', expected a size"),
    ],
)
def test_what_no_machine_could_follow_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        store.loads(json.dumps(DIRECT | fields), "sketch.json", Sketch)


def test_as_many_instances_as_the_command_line_takes() -> None:
    assert store.loads(json.dumps(DIRECT | {"instances": 64}), "sketch.json", Sketch).instances == 64
