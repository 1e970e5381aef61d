"""What the card and its software are, in words, asked in a process of its own: a broken driver may end it."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping

ASKING = """
import json, torch
found = torch.cuda.is_available()
print(json.dumps({
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "card": torch.cuda.get_device_name(0) if found else None,
    "cards": torch.cuda.device_count() if found else 0,
    "architecture": "sm_%d%d" % torch.cuda.get_device_capability(0) if found else None,
}))
"""


def facts(env: Mapping[str, str]) -> dict[str, str | int | None]:
    """`card` (None without one), `cards`, `architecture`, and the versions of `torch` (None where it cannot be
    imported), its `cuda`, `nvcc`, `driver` and `python`; `why` says what PyTorch said where it cannot be imported."""
    asked = subprocess.run([sys.executable, "-c", ASKING], env=dict(env), capture_output=True, text=True, check=False)
    if asked.returncode == 0:
        found = json.loads(asked.stdout.splitlines()[-1])
    else:
        why = asked.stderr.strip().splitlines()[-1:] or [f"it ended with {asked.returncode}"]
        found = {"torch": None, "card": None, "why": why[0]}
    return {
        **found,
        "nvcc": _first(["nvcc", "--version"], r"release ([\d.]+)"),
        "driver": _first(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], r"([\d.]+)"),
        "python": platform.python_version(),
    }


def _first(command: list[str], pattern: str) -> str | None:
    """What `pattern` finds in the output of a command, None where the command is not there."""
    if shutil.which(command[0]) is None:
        return None
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(pattern, said)
    return found[1] if found else None
