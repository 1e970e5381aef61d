"""Compiles generated kernels into shared libraries: g++ for host fibers and processes, nvcc for CUDA; each text only
once."""

from __future__ import annotations

import atexit
import errno
import hashlib
import logging
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Literal

from treadle.codegen.collective.cuda.kernels import CUDA_FLAGS, HOST_FLAGS
from treadle.host.cache_folder import cache_folder, make_private, require_private
from treadle.host.scratch import scratch
from treadle.planner.documents.files import replace_file
from treadle.planner.endings import killed_compiler
from treadle.planner.errors import CheckFailed, InputError, LimitError, MissingBackendError

Target = Literal["fibers", "process", "cuda"]

COMPILERS: dict[Target, str] = {"fibers": "g++", "process": "g++", "cuda": "nvcc"}
HINTS: dict[Target, str] = {
    "fibers": "install it, for example with `apt-get install g++`",
    "process": "install it, for example with `apt-get install g++`",
    "cuda": "install the CUDA toolkit 12 or newer and put its bin folder on PATH",
}
PROCESS_FLAGS = ("-DTREADLE_PROCESS", "-O3", "-march=native", "-ffp-contract=off", "-pthread")
"""As fast as this machine allows, with the results of any other."""
MAX_LINES = 20
SEAL = hashlib.sha256().digest_size

log = logging.getLogger("treadle.native")


def compile_library(
    texts: Mapping[str, str], main: str, target: Target, definitions: Sequence[str] = (), arch: str | None = None
) -> Path:
    """The shared library of the file `main` among `texts`, compiled now or found in the cache.

    `arch` is nvcc's -arch, by default that of the available GPUs. The cache lies in `treadle/native` below
    XDG_CACHE_HOME (~/.cache), or in a temporary folder where that cannot be written; a library is named by the digest
    of compiler, options and texts, and built again when its file is damaged. Raises MissingBackendError without the
    compiler, CheckFailed with its output when it refuses the text, LimitError when it was killed, InputError
    when other users can write to the cache or its disk is full.
    """
    command = [compiler(target), "-std=c++17", *_options(target, arch), *definitions]
    digest = hashlib.sha256()
    for part in (
        _version(command[0], target),
        *command[1:],
        main,
        *(f"{name}\0{texts[name]}" for name in sorted(texts)),
    ):
        digest.update(part.encode() + b"\0")
    name = f"{digest.hexdigest()[:32]}.so"
    library = cache_folder("native") / name
    try:
        make_private(library.parent)
        if not os.access(library.parent, os.W_OK) and not _whole(library):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        library = _temporary(f"{library.parent}: {error.strerror}") / name
    if _whole(library):
        log.info("%s is compiled already: %s", main, library)
    else:
        log.info("compile %s", main)
        try:
            with scratch(library.parent) as folder:
                _compile(command, texts, main, folder, library)
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror or error}", where=str(library.parent)) from error
    return library


def _whole(library: Path) -> bool:
    """Whether a library is there as it was built: the digest of the rest stands at its end, where loaders do not
    look. Raises InputError for one that another user can change."""
    try:
        data = library.read_bytes()
        require_private(library)
    except OSError:
        return False
    return len(data) > SEAL and hashlib.sha256(data[:-SEAL]).digest() == data[-SEAL:]


@cache
def _temporary(reason: str) -> Path:
    """A folder that ends with this process; says once that there is no cache."""
    log.warning("compiled kernels are kept for this run only: %s; set XDG_CACHE_HOME to a folder to write to", reason)
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(scratch())


def compiler(target: Target) -> str:
    """The path of the compiler of a target. Raises MissingBackendError when it is not there."""
    found = shutil.which(COMPILERS[target])
    if found is None:
        raise MissingBackendError(f"found no {COMPILERS[target]} for backend {target}; {HINTS[target]}")
    return found


def _options(target: Target, arch: str | None) -> list[str]:
    if target == "fibers":
        return ["-O1", *HOST_FLAGS, "-x", "c++"]
    if target == "process":
        return [*PROCESS_FLAGS, *HOST_FLAGS, "-x", "c++"]
    return ["-O3", f"-arch={arch or 'native'}", *CUDA_FLAGS]


@cache
def _version(path: str, target: Target) -> str:
    """What the compiler says of itself, and of the processor where it compiles for this one only."""
    asked = [["--version"], *([["-march=native", "-Q", "--help=target"]] if target == "process" else [])]
    return "".join(subprocess.run([path, *each], capture_output=True, text=True, check=False).stdout for each in asked)


def _compile(command: Sequence[str], texts: Mapping[str, str], main: str, folder: Path, library: Path) -> None:
    """In a folder of its own, then moved: another process that builds the same sees all of it or nothing. Raises
    OSError where that folder is full."""
    for file, text in texts.items():
        if file.endswith((".h", ".hpp", ".cu", ".cpp")):
            (folder / file).write_text(text, encoding="utf-8")
    run_compiler([*command, main, "-o", "out.so"], main, folder)
    built = folder / "out.so"
    data = built.read_bytes()
    built.write_bytes(data + hashlib.sha256(data).digest())
    os.chmod(built, 0o700)
    replace_file(built, library)


def run_compiler(command: Sequence[str], what: str, folder: Path) -> str:
    """What a compiler says on stderr while it compiles `what` in `folder`, where its own temporary files go too.

    Raises LimitError when it was killed, OSError when the disk is full, CheckFailed with its words when it refuses the
    text.
    """
    environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        name = Path(command[0]).name
        if how := killed_compiler(done.returncode, done.stderr):
            raise LimitError(f"{name} {how}, while it compiled {what}")
        for number in (errno.ENOSPC, errno.EDQUOT):
            if os.strerror(number) in done.stderr:
                raise OSError(number, os.strerror(number))
        raise CheckFailed(f"{name} refused {what}", tuple(done.stderr.strip().splitlines()[:MAX_LINES]))
    return done.stderr
