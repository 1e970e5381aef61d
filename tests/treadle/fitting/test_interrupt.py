"""Ctrl-C while `treadle.fit` works: it is a KeyboardInterrupt that leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan

SCRIPT = """
import logging, sys, threading, time
import psutil, torch, treadle
from tests.treadle.fitting.models import Deep, batch_of, loss_of

logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
model = Deep()
before = {name: value.clone() for name, value in model.state_dict().items()}
try:
    treadle.fit(model, batch_of(), budget="0.6x", loss=loss_of)
    print("was not interrupted")
except KeyboardInterrupt:
    time.sleep(0.5)
    running = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    state = model.state_dict()
    same = all(torch.equal(state[name], before[name]) for name in before)
    grads = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    print("left", running, psutil.Process().children(recursive=True), grads, same, model.training)
    print("again", treadle.fit(model, batch_of(), budget="0.6x", loss=loss_of).summary)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["measuring the calls of a step", "method full begins", "memory.plan.json"])
def test_ctrl_c_leaves_no_process_thread_or_half_a_file(cache: Path, moment: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", SCRIPT], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    lines = []
    with child:
        for line in child.stdout or ():
            lines.append(line)
            if moment in line:
                os.killpg(child.pid, signal.SIGINT)  # as from a terminal, to all of them
                break
        assert len(lines) < 1000
        lines += list(child.stdout or ())
    text = "".join(lines)
    assert "left [] [] [] True True" in text
    assert child.returncode == 0
    assert "\nagain peak " in text
    files = [*cache.parent.rglob("*"), *(cache.parent / "costs").iterdir()]
    assert not [file for file in files if file.name.startswith(".") or file.suffix == ".tmp"]
    (entry,) = cache.iterdir()
    assert sorted(file.name for file in entry.iterdir()) == ["memory.plan.json", "step.trace.json", "verified.txt"]
    store.load(entry / "memory.plan.json", Plan)
