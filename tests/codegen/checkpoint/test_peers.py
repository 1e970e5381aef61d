"""Plans as configuration of NVRx and LM-Resiliency: what their groups and pairs carry, and what is refused."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.codegen.checkpoint.held import PAIR_AND_RING, PAIRS, RING, decided, plan_of
from tests.conftest import Golden
from treadle.codegen.checkpoint.lm_resiliency import lm_resiliency
from treadle.codegen.checkpoint.nvrx import nvrx
from treadle.codegen.checkpoint.peers import Holders, cliques_of, jump_of
from treadle.codegen.checkpoint.torchft import torchft
from treadle.codegen.python_form import require_form
from treadle.planner.errors import InputError

NVRX_WORKER = Path(__file__).with_name("nvrx_worker.py")
HOSTILE = 'x""" \n' + "import os\nos.system('x')\n"


def text_of_nvrx(holders: Holders, **changes: Any) -> str:
    return nvrx(plan_of(decided(holders, **changes)), "plan.json").files["replication.py"]


def text_of_pairs(holders: Holders = PAIRS, **changes: Any) -> str:
    return lm_resiliency(plan_of(decided(holders, **changes)), "plan.json").files["checkpointing.py"]


def text_of_torchft(holders: Holders = PAIRS, **changes: Any) -> str:
    return torchft(plan_of(decided(holders, **changes))).files["transport.py"]


def constants(text: str) -> dict[str, Any]:
    assigned = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    return {ast.unparse(node.targets[0]): ast.literal_eval(node.value) for node in assigned}


def kept(holders: Holders, lost: tuple[int, ...]) -> bool:
    return all(set(held) - set(lost) for held in holders)


def test_groups_stay_and_a_ring_becomes_one_group() -> None:
    assert cliques_of(PAIRS) == (((0, 1), (2, 3)), ())
    assert cliques_of(((0, 2), (1, 3), (2, 0), (3, 1))).groups == ((0, 2), (1, 3))
    assert cliques_of(PAIR_AND_RING) == (((0, 1), (2, 3, 4)), ((2, 3, 4),))
    assert cliques_of(((0,), (1,))).groups == ((0,), (1,))


@pytest.mark.parametrize("holders", [PAIRS, PAIR_AND_RING], ids=["groups", "ring"])
def test_groups_keep_whatever_the_plan_keeps(holders: Holders) -> None:
    groups = {machine: group for group in cliques_of(holders).groups for machine in group}
    for count in range(len(holders) + 1):
        for lost in combinations(range(len(holders)), count):
            assert kept([groups[machine] for machine in range(len(holders))], lost) >= kept(holders, lost)


@pytest.mark.golden
def test_modules_for_other_libraries(golden: Golden) -> None:
    golden("checkpoint/replication.py", text_of_nvrx(PAIR_AND_RING))
    golden("checkpoint/checkpointing.py", text_of_pairs())
    golden("checkpoint/transport.py", text_of_torchft())


def test_each_device_has_a_group_with_those_of_its_number() -> None:
    assert constants(text_of_nvrx(PAIR_AND_RING)) == {
        "RANKS": 10,
        "CLIQUES": [[0, 2], [1, 3], [4, 6, 8], [5, 7, 9]],
    }


def test_a_ring_of_many_machines_is_no_group() -> None:
    with pytest.raises(InputError, match="joins 5 machines, expected groups of at most 3 for nvrx"):
        text_of_nvrx(RING)


def test_the_memory_of_a_widened_group_is_asked_for() -> None:
    assert "12000" not in text_of_nvrx(PAIR_AND_RING, host_bytes=12_000)
    with pytest.raises(InputError, match="found 11999 bytes of host memory, expected 12000 for nvrx"):
        text_of_nvrx(PAIR_AND_RING, host_bytes=11_999)


@pytest.mark.parametrize(
    ("holders", "jump"),
    [
        (PAIRS, 1),
        (((0, 2), (1, 3), (2, 0), (3, 1)), 2),
        (((0, 1), (1, 0), (2, 4), (3, 5), (4, 2), (5, 3)), None),
        (PAIR_AND_RING, None),
        (RING, None),
        (((0,), (1,)), None),
        (((0, 1, 2), (1, 2, 0), (2, 0, 1)), None),
    ],
    ids=["neighbours", "racks", "mixed distances", "groups and ring", "ring", "one copy", "three copies"],
)
def test_pairs_have_one_distance(holders: Holders, jump: int | None) -> None:
    assert jump_of(holders) == jump


def test_pairs_count_ranks_and_storage_counts_iterations() -> None:
    values = constants(text_of_pairs(devices=8))["VALUES"]
    assert values["replication_jump"] == 8
    assert values["replication_chunk_size"] == 256
    assert values["disk_flush_interval"] == 10_000
    assert values["pin_memory"]
    plain = constants(text_of_pairs(persistent=None, copy_rate=None))["VALUES"]
    assert (plain["disk_flush_interval"], plain["pin_memory"]) == (0, False)


def test_what_is_not_in_pairs_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^plan\.json: found 2 holders .* on 5 machines.*pairs of machines at one dist"
    ):
        text_of_pairs(PAIR_AND_RING)


@pytest.mark.parametrize(
    ("target", "make"),
    [("nvrx", text_of_nvrx), ("lm-resiliency", text_of_pairs), ("torchft", text_of_torchft)],
    ids=["nvrx", "lm-resiliency", "torchft"],
)
def test_a_hostile_name_stays_a_text(target: str, make: Any) -> None:
    text = make(PAIRS, name=HOSTILE)
    assert HOSTILE.splitlines()[1] in (ast.get_docstring(ast.parse(text)) or "")
    require_form(target, text, "made.py")
    with pytest.raises(InputError, match="found `import os`"):
        require_form(target, f"{text}\nimport os\n", "made.py")


@pytest.mark.slow
def test_nvrx_replicates_in_the_groups_of_a_plan(tmp_path: Path) -> None:
    """Real ranks over gloo; 5 of them in pairs are what NVRx's own factors refuse."""
    holders = PAIR_AND_RING
    pytest.importorskip("nvidia_resiliency_ext", reason="nvidia-resiliency-ext is not installed")
    (tmp_path / "replication.py").write_text(text_of_nvrx(holders, devices=1))
    done = subprocess.run(
        [sys.executable, NVRX_WORKER, tmp_path, str(len(holders))],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for group in cliques_of(holders).groups:
        assert all(f"{rank} holds {list(group)} whole\n" in done.stdout for rank in group)
        assert f"{group[0]} comes from one of {list(group[1:])}\n" in done.stdout


@pytest.mark.slow
def test_lm_resiliency_takes_the_values_and_pairs_as_the_plan_does() -> None:
    pytest.importorskip("lm_resiliency", reason="lm-resiliency is not installed")
    from lm_resiliency.checkpointing.replication import GlooBackend

    holders = ((0, 2), (1, 3), (2, 0), (3, 1))
    made: dict[str, Any] = {}
    exec(text_of_pairs(holders), made)
    config = made["config"](run_id="here")
    assert (config.interval, config.replication_chunk_size, config.run_id) == (1, 256, "here")
    for rank in range(8):
        backend = object.__new__(GlooBackend)
        backend._rank, backend._jump = rank, config.replication_jump
        machine, device = divmod(rank, 2)
        assert backend._compute_peer_rank() == holders[machine][1] * 2 + device
