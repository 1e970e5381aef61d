"""The process of a background search: `python -m treadle.fitting.background_child PARENT FOLDER SETTINGS`.

It takes the lock of the entry, so that of several processes that want one plan only the first one searches. A better
plan replaces the one that is there. An error is one line on stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from treadle.fitting.plan_entry import PLAN, TRACE, PlanEntry
from treadle.fitting.planning import searched, settled
from treadle.fitting.settings import FitSettings
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import TreadleError

LOWEST = 19


def main() -> None:
    """Search, and write the plan."""
    parent, folder, text = sys.argv[1:]
    os.nice(LOWEST)
    threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    settings = FitSettings(**json.loads(text))
    entry = PlanEntry(Path(folder))
    with entry.locked():
        before = store.load(Path(folder) / PLAN, Plan)
        if settled(before, settings):
            return
        plan = searched(store.load(Path(folder) / TRACE, Trace), settings, settings.time_limit_s)
        if plan.prediction.time_us <= before.prediction.time_us:
            entry.save_plan(plan)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    try:
        main()
    except (TreadleError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
