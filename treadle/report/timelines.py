"""The timelines of a report's plans as one file for ui.perfetto.dev, next to the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.codegen.targets import targets_of
from treadle.planner.documents.plan import Plan
from treadle.planner.timeline.chrome_trace import PID, chrome_trace

ENDING = ".perfetto.json"


def timelines_file(page: str | Path) -> Path:
    """Where the timelines of the page `page` are: `r.perfetto.json` for `r.html`."""
    return Path(page).with_suffix(ENDING)


def timelines(plans: Mapping[str, Plan]) -> str:
    """The text of the file: a process for each plan by its name, as `treadle simulate --perfetto` has it for one."""
    events: list[dict[str, Any]] = []
    for pid, (name, plan) in enumerate(plans.items(), PID):
        tasks, resources, schedule = targets_of(plan).timeline(plan)
        events += chrome_trace(tasks, resources, schedule, title=name, pid=pid)["traceEvents"]
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, sort_keys=True) + "\n"
