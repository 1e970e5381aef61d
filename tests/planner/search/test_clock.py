"""One clock for all work of a command: a limit from the start of the process on, and Ctrl-C."""

from __future__ import annotations

import math
import os
import signal

from treadle.planner.search.clock import Clock


def test_a_clock_is_over_at_its_limit_and_its_parts_before():
    now = [3.0]
    clock = Clock(10.0, 0.0, lambda: now[0])
    assert (clock.whole_s, clock.elapsed_s, clock.left_s, clock.over()) == (10.0, 3.0, 7.0, False)
    half = clock.share(2)
    assert half.ends == 6.5
    assert clock.until(20.0).ends == 10.0
    paused = clock.paused(2.0)
    assert (paused.whole_s, paused.elapsed_s, paused.left_s) == (10.0, 1.0, 9.0)
    now[0] = 8.0
    assert (half.over(), clock.over()) == (True, False)
    assert clock.share(1).ends == 10.0
    now[0] = 12.0
    assert clock.late()
    assert clock.share(2).ends == 10.0


def test_a_clock_without_a_limit_ends_with_ctrl_c_alone():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    clock = Clock.of(None, began=0.0)
    try:
        with clock.listening(), clock.share(2).listening() as part:
            assert (clock.limit_s, clock.ends, clock.over()) == (None, math.inf, False)
            os.kill(os.getpid(), signal.SIGINT)
            assert part.over()
        assert (clock.over(), clock.late()) == (True, False)
    finally:
        signal.signal(signal.SIGINT, before)
