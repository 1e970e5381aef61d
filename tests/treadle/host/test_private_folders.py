"""What treadle keeps is only this user's, what is written is whole, and killed processes leave nothing for long."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from treadle.host.cache_folder import cache_folder, make_private, require_private
from treadle.host.scratch import PREFIX, scratch
from treadle.planner.documents import files
from treadle.planner.errors import CheckFailed, InputError, LimitError
from treadle.runtime import native_build
from treadle.runtime.native_build import compile_library

TEXT = {"a.cu": 'extern "C" int answer() { return 42; }'}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    return cache_folder("native")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_cache_and_what_is_in_it_belong_to_one_user(cache: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        library = compile_library(TEXT, "a.cu", "fibers")
    finally:
        os.umask(before)
    folders = [cache, *cache.parents[:3]]
    assert folders[-1] == tmp_path / "home"
    assert [mode(each) for each in (library, *folders)] == [0o700] * 5
    assert sorted(cache.iterdir()) == [library]


def test_what_other_users_can_write_is_refused_in_one_line(cache: Path) -> None:
    library = compile_library(TEXT, "a.cu", "fibers")
    for place, loose in ((library, 0o722), (cache, 0o770), (cache.parent, 0o707), (cache.parents[2], 0o777)):
        usual = mode(place)
        place.chmod(loose)
        with pytest.raises(InputError) as caught:
            compile_library(TEXT, "a.cu", "fibers")
        line = f"{place}: other users can write to it (mode {loose:04o}); chmod go-w it"
        assert str(caught.value).startswith(line)
        assert str(caught.value).endswith("or set XDG_CACHE_HOME to a folder of your own")
        place.chmod(usual)
    cache.parents[2].chmod(0o1777)  # as /tmp: no user can replace the files of another
    assert compile_library(TEXT, "a.cu", "fibers") == library
    cache.chmod(0o1777)
    with pytest.raises(InputError, match="other users can write to it"):
        compile_library(TEXT, "a.cu", "fibers")


def test_what_another_user_owns_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_private(cache)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    owner = cache.stat().st_uid
    if owner == 0:
        require_private(cache)  # root may change everything anyway
        os.chown(cache.parent, 77, -1)
        owner = 77
    with pytest.raises(InputError, match=f"user {owner} owns it"):
        make_private(cache)


def test_a_link_into_a_folder_of_others_is_refused(cache: Path, tmp_path: Path) -> None:
    make_private(cache.parent)
    shared = tmp_path / "shared"
    (shared / "native").mkdir(parents=True)
    shared.chmod(0o777)
    cache.symlink_to(shared / "native")
    with pytest.raises(InputError, match=f"{shared}: other users can write to it"):
        compile_library(TEXT, "a.cu", "fibers")


def compiler_that(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "bin").mkdir()
    program = folder / "bin" / "g++"
    program.write_text(f'#!/bin/sh\ncase "$*" in *--version*) exit 0;; esac\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        (
            "kill -9 $$",
            LimitError,
            r"g\+\+ was killed by signal 9 \(SIGKILL, out of memory\?\), while it compiled a.cu",
        ),
        ("kill -TERM $$", LimitError, r"g\+\+ was killed by signal 15 \(SIGTERM\), while"),
        (
            "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1",
            LimitError,
            r"g\+\+ was killed by signal 9 \(SIGKILL, out of memory\?\); its program cc1plus, while",
        ),
        (
            "echo 'x.s: fatal error: cannot write: No space left on device' >&2; exit 1",
            InputError,
            "/native: cannot write: No space left on device",
        ),
        ("echo no; exit 1", CheckFailed, r"g\+\+ refused a.cu"),
    ],
)
def test_a_compiler_that_ends_early(
    script: str, kind: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    compiler_that(script, tmp_path, monkeypatch)
    with pytest.raises(kind, match=words):
        compile_library(TEXT, "a.cu", "fibers", ["-DENDS"])
    assert not list(cache.iterdir())


def test_a_full_disk_names_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fresh: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(native_build, "replace_file", full)
    with pytest.raises(InputError, match=f"{cache}: cannot write: No space left on device"):
        compile_library(TEXT, "a.cu", "fibers")
    assert not list(cache.iterdir())


def test_a_file_reaches_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda number: (events.append("fsync"), fsync(number)))
    monkeypatch.setattr(os, "replace", lambda *paths: (events.append("replace"), replace(*paths)))
    files.write_text(tmp_path / "a.json", "{}")
    assert events == ["fsync", "replace", "fsync"]  # the file, then the folder that names it
    compile_library(TEXT, "a.cu", "fibers")
    assert events[3:] == ["fsync", "replace", "fsync"]


def test_scratch_of_killed_processes_is_swept(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from treadle.host.scratch import scratch\n"
        "with scratch(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'file').touch(); print(folder, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        assert mode(left) == 0o700
        os.utime(left, (0, 0))
        with scratch(tmp_path):
            assert left.is_dir()  # its maker lives
        process.send_signal(signal.SIGKILL)
    os.utime(left, (time.time(), time.time()))
    with scratch(tmp_path):
        assert left.is_dir()  # young
    os.utime(left, (0, 0))
    with scratch(tmp_path) as own:
        assert list(tmp_path.glob(f"{PREFIX}*")) == [own]
    assert not list(tmp_path.iterdir())
