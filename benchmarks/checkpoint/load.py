"""Random checkpoints between native holders and senders in one process, under sanitizers.

`python -m benchmarks.checkpoint.load thread 600` runs them for 10 minutes under ThreadSanitizer; `address` is
AddressSanitizer with UndefinedBehaviorSanitizer, `none` neither. It ends with exit code 1 at the first version that is
not what its owner had, and with 66 at the first finding of a sanitizer; the seed of the round is on stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import Table, machine, progress
from benchmarks.sanitized import ROOT, Load

SECONDS = 600
RUNTIME = ROOT / "treadle" / "runtime"
SOURCES = (RUNTIME / "checkpoint" / "wire", RUNTIME / "wire", Path(__file__).parent)
LOAD = Load(SOURCES, ("holder", "sender", "load"))


def tables() -> Iterator[Table]:
    """Ten minutes of random checkpoints under ThreadSanitizer, and under AddressSanitizer."""
    rows = []
    for sanitizer in ("thread", "address"):
        progress(f"{sanitizer} sanitizer, {SECONDS} s")
        rows.append({"sanitizer": sanitizer, "s": SECONDS, **LOAD.found(sanitizer, SECONDS)})
    yield Table("Random checkpoints: no finding, every version compared", rows, (machine(),))


if __name__ == "__main__":
    print(json.dumps(LOAD.found(sys.argv[1], float(sys.argv[2]), int((*sys.argv, "1")[3]))))
