"""One rank in a lab: runs plans and MSCCL XML files of a folder as grouped messages of gloo, and prints how far each is
off PyTorch's own collectives."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.msccl import xml
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.runtime.collective.compare import _Jobs, _worker
from treadle.runtime.joined import run_joined

SIZES = (1, 1003)


def compared(rank: int, world: int, folder: str) -> list[Any]:
    rows = []
    for file in sorted(Path(folder).iterdir()):
        if file.suffix == ".xml":
            decisions, texts = None, {file.name: file.read_text()}
        else:
            decisions = store.load(file, Plan).decisions
            texts = {file.name: xml.emit(lower(decisions))}
        for row in _worker(rank, world, _Jobs(texts, decisions, SIZES, ("int32",), ("sum", "max"), 1, "gloo")):
            rows.append([row.program, row.op, row.elements, row.max_error])
    return rows


if __name__ == "__main__":
    for number, found in enumerate(run_joined(compared, (sys.argv[1],))):
        if os.environ["RANK"] == "0":
            print(json.dumps([number, found]), flush=True)
