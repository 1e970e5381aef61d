"""The `treadle` command, which `python -m treadle` is too. Ctrl-C ends it in one line from its first moment on.

What is imported before that moment is little: until then Python answers Ctrl-C with a traceback.
"""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

BEGAN = time.monotonic()
"""When the process did: time limits count from here."""
INTERRUPTED = 130
IMPORTING = "<frozen importlib._bootstrap>"


def main() -> None:
    """Entry point. Ctrl-C is a KeyboardInterrupt while a command works, so that a search can keep its best plan."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else the caller ignores it, as nohup does
    if ours:
        signal.signal(signal.SIGINT, _quit)
    try:
        from treadle.cli.main import main as command

        if ours:
            signal.signal(signal.SIGINT, _interrupt)
        command(BEGAN)
    except KeyboardInterrupt:
        _quit()
    finally:
        if ours:  # the result stands; what is left of the process takes up to a second
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End at once inside an import, where Python prints or swallows a KeyboardInterrupt; elsewhere raise one."""
    inner = frame
    while inner is not None:
        if inner.f_code.co_filename == IMPORTING:
            _quit()
        inner = inner.f_back
    signal.default_int_handler(number, frame)


def _quit(number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
