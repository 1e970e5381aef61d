"""Random jobs of 8 workers on native servers and clients in one process, under sanitizers.

`python -m benchmarks.server.load thread 600` runs them for 10 minutes under ThreadSanitizer; `address` is
AddressSanitizer with UndefinedBehaviorSanitizer, `none` neither. It ends with exit code 1 at the first wrong value, and
with 66 at the first finding of a sanitizer; the seed of the round is on stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import Table, machine, progress
from benchmarks.sanitized import ROOT, Load

SECONDS, WORKERS = 600, 8
RUNTIME = ROOT / "treadle" / "runtime"
SOURCES = (RUNTIME / "server" / "wire", RUNTIME / "wire", ROOT / "templates" / "server", Path(__file__).parent)
LOAD = Load(SOURCES, ("server", "client", "load"), (str(WORKERS),))


def tables() -> Iterator[Table]:
    """Ten minutes of random jobs under ThreadSanitizer, and under AddressSanitizer."""
    rows = []
    for sanitizer in ("thread", "address"):
        progress(f"{sanitizer} sanitizer, {SECONDS} s")
        rows.append({"sanitizer": sanitizer, "s": SECONDS, **LOAD.found(sanitizer, SECONDS)})
    yield Table(f"Random jobs of {WORKERS} workers: no finding, every value compared", rows, (machine(),))


if __name__ == "__main__":
    print(json.dumps(LOAD.found(sys.argv[1], float(sys.argv[2]), int((*sys.argv, "1")[3]))))
