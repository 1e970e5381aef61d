"""Random work on compiled code, as a program under sanitizers: it ends at the first wrong value, or at their first
finding."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SANITIZERS = {"none": "", "thread": "-fsanitize=thread", "address": "-fsanitize=address,undefined"}
FLAGS = ["-std=c++17", "-O1", "-g", "-march=native", "-ffp-contract=off", "-pthread", "-Wall", "-Wextra", "-Werror"]
FOUND = 66
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Load:
    """The C++ `programs` (names without .cpp) in the folders `sources`, one of which has main(seconds, seed,
    arguments...) and prints JSON when all was right."""

    sources: tuple[Path, ...]
    programs: tuple[str, ...]
    arguments: tuple[str, ...] = ()

    def found(self, sanitizer: str, seconds: float, seed: int = 1) -> dict[str, Any]:
        """What a clean load did. Raises SystemExit with what it says where it is not clean."""
        with TemporaryDirectory() as folder:
            program = self.build(sanitizer, Path(folder))
            limits = {"TSAN_OPTIONS": f"halt_on_error=1 exitcode={FOUND}", "ASAN_OPTIONS": f"exitcode={FOUND}"}
            limits["UBSAN_OPTIONS"] = f"halt_on_error=1 exitcode={FOUND} print_stacktrace=1"
            command = [str(program), str(seconds), str(seed), *self.arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **limits})
        if done.returncode:
            raise SystemExit(f"load under {sanitizer}: exit code {done.returncode}: {done.stderr.strip()[-12000:]}")
        values: dict[str, Any] = json.loads(done.stdout)
        return values

    def build(self, sanitizer: str, folder: Path) -> Path:
        """The load as a program in `folder`."""
        programs = [
            next(path for each in self.sources if (path := each / f"{name}.cpp").exists()) for name in self.programs
        ]
        paths = [f"-I{source}" for source in self.sources]
        flags = list(filter(None, [SANITIZERS[sanitizer]]))
        objects = [folder / f"{program.stem}.o" for program in programs]
        compilers = [
            subprocess.Popen(["g++", *FLAGS, *flags, *paths, "-c", str(program), "-o", str(made)])
            for program, made in zip(programs, objects, strict=True)
        ]
        ended = [compiler.wait() for compiler in compilers]
        if any(ended):
            raise SystemExit("the load does not compile")
        subprocess.run(["g++", *FLAGS, *flags, *map(str, objects), "-o", str(folder / "load")], check=True)
        return folder / "load"
