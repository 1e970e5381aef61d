"""Gathers the wheels that the checks import, for a machine with PyTorch and without a network: build/gpu/wheels.

Versions and hashes are those of constraints.txt. PyTorch's own dependencies (jinja2, networkx and so on) are there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.launch import FOLDER, ROOT

NAMES = ("annotated-doc", "lxml", "msgspec", "numpy", "psutil", "pyyaml", "scipy", "shellingham", "typer")
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
MOST_BYTES = 60_000_000


def requirements(constraints: str) -> str:
    """The lines of constraints.txt for NAMES, with their hashes. Raises KeyError for one that it lacks."""
    found = {block.partition("==")[0]: block for block in re.split(r"\n(?=\S)", constraints)}
    return "\n".join(found[name] for name in NAMES) + "\n"


def gather(folder: Path) -> int:
    """Fill `folder` and return the bytes in it. Raises CalledProcessError where pip finds a file or a hash not."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    listed = folder / "requirements.txt"
    listed.write_text(requirements((ROOT / "constraints.txt").read_text(encoding="utf-8")), encoding="utf-8")
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", f"--python-version={PYTHON}", *platforms, "--require-hashes"]
    subprocess.run([*command, f"--dest={folder}", f"--requirement={listed}"], check=True)
    return sum(file.stat().st_size for file in folder.glob("*.whl"))


def main() -> int:
    folder = FOLDER / "wheels"
    try:
        size = gather(folder)
    except subprocess.CalledProcessError as error:
        print(f"error: pip ended with {error.returncode}", file=sys.stderr)
        return 1
    count = len(list(folder.glob("*.whl")))
    print(f"{count} wheels for CPython {PYTHON}, {size / 1e6:.1f} MB, in {folder.relative_to(ROOT)}")
    if size > MOST_BYTES:
        print(f"error: found {size:,} bytes, expected at most {MOST_BYTES:,}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
