"""How other processes ended, in words."""

from __future__ import annotations

from treadle.planner.endings import ending, killed_compiler


def test_nvcc_names_its_killed_program() -> None:
    said = "nvcc error   : 'cudafe++' died due to signal 11 (Invalid memory reference)"
    assert killed_compiler(255, said) == "was killed by signal 11 (SIGSEGV); its program cudafe++"
    assert killed_compiler(1, "error: expected ;") is None
    assert ending(3) == "ended with exit code 3"
    assert ending(-200) == "was killed by signal 200"
