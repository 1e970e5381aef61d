"""Files of launchers: their texts, what shells and parsers of YAML make of them, and names that they refuse."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.conftest import Golden
from treadle.codegen.ranks.launchers import LAUNCHERS, files_of
from treadle.planner.errors import InputError
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.problem import RankedHost, RanksProblem

NAMES = ("alpha", "beta", "gamma.rack-2.example", "10.0.0.4")
ORDER, WORST = (2, 0, 3, 1), (1, 2, 3, 0)
FIRST, TENTH = "gamma.rack-2.example", "10.0.0.4"
HOSTILE = (
    *("a b", "a;reboot", "$(reboot)", "a'b", 'a"b', "a\nb", "a\n", "`reboot`", "-oProxyCommand=x", "a:4", "a slots=9"),
    *(
        "node[1-4]",
        "a,b",
        "# a",
        "a_b",
        "",
        ".",
        "a..b",
        "a-",
        "-a",
        "a" * 64,
        "a." * 130 + "a",
        "0",
        "1.2.3",
        "::1%eth0",
    ),
    *(
        "::1%$(reboot)",
        "fe80::1%eth0;reboot",
        "1.2.3.4.5",
        "[::1]",
        "é",
        "a\\",
        "*",
        "{{ 7 }}",
        "a/../b",
        "+all",
        "\x1b[31m",
    ),
)


def ranks_decisions(names: tuple[str, ...] = NAMES, slots: int = 2) -> RanksDecisions:
    count = len(names)
    latency = tuple(tuple(0 if a == b else 1 for b in range(count)) for a in range(count))
    hosts = tuple(RankedHost(name=name, slots=slots) for name in names)
    problem = RanksProblem(version=1, hosts=hosts, latency_ns=latency, algorithm="ring")
    costs = dict.fromkeys(("cost_ns", "tie_ns", "original_ns", "median_ns", "worst_ns", "time_ns"), 0)
    return RanksDecisions(problem=problem, order=ORDER, worst=WORST, **costs)


def ordered(order: tuple[int, ...]) -> list[str]:
    return [NAMES[place] for place in order]


@pytest.mark.golden
@pytest.mark.parametrize("target", LAUNCHERS)
def test_the_files_of_a_target(target: str, golden: Golden) -> None:
    files = files_of(ranks_decisions(), target, "plan.json")
    planned = [name for name in files if "/" not in name]
    assert sorted(files) == sorted(folder + name for name in planned for folder in ("", "original/", "worst/"))
    for name in planned:
        golden(f"ranks/{target}.{name}", files[name])


@pytest.mark.parametrize(("folder", "order"), [("", ORDER), ("original/", (0, 1, 2, 3)), ("worst/", WORST)])
def test_every_text_has_the_hosts_in_the_order_of_its_folder(folder: str, order: tuple[int, ...]) -> None:
    of = {target: files_of(ranks_decisions(), target, "plan.json") for target in LAUNCHERS}
    twice = [name for name in ordered(order) for _ in range(2)]
    assert [line.split(" slots=") for line in of["hostfile"][f"{folder}hostfile"].splitlines()] == [
        [name, "2"] for name in ordered(order)
    ]
    assert of["hostfile"][f"{folder}machinefile"].splitlines() == twice
    assert of["slurm"][f"{folder}hosts.txt"].splitlines() == twice
    assert re.findall(r"rank (\d+)=(\S+) slot=(\d)\n", of["openmpi-rankfile"][f"{folder}rankfile"]) == [
        (str(rank), name, str(rank % 2)) for rank, name in enumerate(twice)
    ]
    lines = yaml.safe_load(of["kubernetes"][f"{folder}ranks.yaml"])["data"]["index-map"].splitlines()
    assert lines == [f"{index} {ordered(order).index(name)} {name}" for index, name in enumerate(NAMES)]


def scripts(folder: Path) -> dict[str, Path]:
    """Every shell text of the targets as a file."""
    texts = {
        "launch.sh": files_of(ranks_decisions(), "torchrun", "p")["launch.sh"],
        "srun.sh": files_of(ranks_decisions(), "slurm", "p")["srun.sh"],
    }
    pods = files_of(ranks_decisions(), "kubernetes", "p")
    data = yaml.safe_load(pods["ranks.yaml"])["data"]
    (folder / "index-map").write_text(data["index-map"])
    texts["env.sh"] = data["env.sh"].replace("/etc/treadle-ranks", str(folder))
    made = {}
    for name, text in texts.items():
        made[name] = folder / name
        made[name].write_text(text)
    return made


def tools(folder: Path, host: str, addresses: str = "", names: str = "") -> dict[str, str]:
    """The environment of a host that is called so, whose torchrun and srun print what they get."""
    folder.mkdir()
    words = {
        "uname": f"echo {host}",
        "hostname": f'case $1 in -I) echo "{addresses}" ;; *) echo {host} ;; esac',
        "getent": f'case " {names} " in *" $2 "*) echo {addresses.split(" ")[0]} STREAM ;; *) exit 2 ;; esac',
        "torchrun": 'echo "$@"',
        "srun": 'echo "$SLURM_HOSTFILE $MASTER_ADDR $MASTER_PORT $WORLD_SIZE"; echo "$@"',
    }
    for name, text in words.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def run(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def test_shells_can_read_the_scripts(tmp_path: Path) -> None:
    files = scripts(tmp_path)
    checker = shutil.which("shellcheck")
    for name, file in files.items():
        subprocess.run(["sh", "-n", str(file)], check=True)
        if checker:
            shell = [] if name != "env.sh" else ["--shell=sh"]
            found = run([checker, *shell, str(file)], dict(os.environ))
            assert not found.stdout, found.stdout


@pytest.mark.parametrize(
    ("host", "addresses", "names", "rank"),
    [
        pytest.param("alpha", "", "", 1, id="by-name"),
        pytest.param("elsewhere", "192.168.0.1 10.0.0.4", "", 2, id="by-address"),
        pytest.param("gamma", "10.0.0.3", FIRST, 0, id="by-what-a-name-stands-for"),
    ],
)
def test_torchrun_gets_the_node_rank_of_its_host(
    host: str, addresses: str, names: str, rank: int, tmp_path: Path
) -> None:
    environment = tools(tmp_path / "bin", host, addresses, names)
    done = run(["sh", str(scripts(tmp_path)["launch.sh"]), "train.py", "two words"], environment)
    assert done.stdout == (
        f"--nnodes 4 --node-rank {rank} --nproc-per-node 2 --master-addr {FIRST} --master-port 29500 "
        "train.py two words\n"
    ), done.stderr


def test_a_host_that_the_plan_lacks_ends_with_one_line(tmp_path: Path) -> None:
    environment, files = tools(tmp_path / "bin", "delta", "10.0.0.40"), scripts(tmp_path)
    done = run(["sh", str(files["launch.sh"]), "train.py"], environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "launch.sh: delta is none of the 4 hosts of the plan\n"
    done = run(["sh", "-c", f". {files['env.sh']}; echo never"], environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "env.sh: delta is none of the 4 hosts of the plan\n"


def test_srun_starts_tasks_by_the_file_of_hosts(tmp_path: Path) -> None:
    done = run(["sh", str(scripts(tmp_path)["srun.sh"]), "train.py"], tools(tmp_path / "bin", "alpha"))
    told, words = done.stdout.splitlines()
    assert told == f"{tmp_path}/hosts.txt {FIRST} 29500 8"
    assert words.startswith("--distribution=arbitrary --nodes=4 --ntasks=8 sh -c ")
    assert words.endswith(" train.py")


@pytest.mark.parametrize(
    ("host", "variables", "rank"),
    [
        pytest.param("alpha", {}, 1, id="by-its-name"),
        pytest.param("pod", {"POD_IP": "10.0.0.4"}, 2, id="by-its-address"),
        pytest.param("pod", {"NODE_NAME": "beta"}, 3, id="by-its-node"),
    ],
)
def test_a_pod_finds_its_node_rank(host: str, variables: dict[str, str], rank: int, tmp_path: Path) -> None:
    environment = {**tools(tmp_path / "bin", host), "SUBDOMAIN": "train", **variables}
    shown = 'echo "$PET_NODE_RANK $PET_NNODES $PET_NPROC_PER_NODE $PET_MASTER_ADDR $PET_MASTER_PORT"'
    done = run(["sh", "-euc", f". {scripts(tmp_path)['env.sh']}; {shown}"], environment)
    assert done.stdout == f"{rank} 4 2 {FIRST}.train 29500\n", done.stderr


def test_the_job_of_kubernetes_has_a_pod_for_each_host() -> None:
    service, job = yaml.safe_load_all(files_of(ranks_decisions(), "kubernetes", "p")["job.yaml"])
    pod = job["spec"]["template"]["spec"]
    assert (job["spec"]["completionMode"], job["spec"]["completions"], job["spec"]["parallelism"]) == ("Indexed", 4, 4)
    assert service["metadata"]["name"] == pod["subdomain"] == pod["containers"][0]["env"][0]["value"]


@pytest.mark.parametrize("target", LAUNCHERS)
def test_names_that_no_host_has_are_refused_in_one_line(target: str) -> None:
    for name in HOSTILE:
        with pytest.raises(InputError) as caught:
            files_of(ranks_decisions(("alpha", name, "gamma", "delta")), target, "plan.json")
        assert str(caught.value).startswith("plan.json: $.decisions.problem.hosts[1].name: found "), name
        assert "\n" not in str(caught.value)
        assert "\x1b" not in str(caught.value)


def test_addresses_of_ipv6_are_refused_where_colons_mean_something_else() -> None:
    plan = ranks_decisions(("alpha", "fd00::2", "gamma", "delta"))
    for target, launcher in LAUNCHERS.items():
        if 6 in launcher.addresses:
            assert any("fd00::2" in text for text in files_of(plan, target, "plan.json").values())
        else:
            with pytest.raises(
                InputError, match=r"found 'fd00::2', expected the name of a host \(RFC 1123\) or an IPv4"
            ):
                files_of(plan, target, "plan.json")
