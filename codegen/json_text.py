"""Texts of configuration as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def json_text(config: Mapping[str, Any]) -> str:
    """JSON with a line for each entry of a list of records, so that a change of a plan is a change of few lines."""
    lines = []
    for name, value in config.items():
        if isinstance(value, list) and value and isinstance(value[0], dict | list):
            rows = ",\n".join(f"  {json.dumps(row)}" for row in value)
            lines.append(f" {json.dumps(name)}: [\n{rows}\n ]")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
