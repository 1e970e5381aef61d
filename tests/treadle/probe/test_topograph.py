"""topograph YAML: three forms of models and Slurm's, all of one small cluster; refusals name their place."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.cli.main import run
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.parsing import parse
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.sketching import propose
from treadle.planner.passes.collective.topology import build_topology
from treadle.probe.importer import import_profile
from treadle.probe.topograph import import_topograph

NODE = store.load(resources.locate("profiles", "ndv4"), Hardware)

MODELS = {
    "lists": """
switches:
- name: spine
  metadata: {region: here}
  switches: [leaf1, leaf2]
- name: leaf1
  capacity_blocks: [cb1]
- name: leaf2
  capacity_blocks: [cb2]
capacity_blocks:
- {name: cb1, type: H100, nvlink: nvl1, nodes: [n1, n2]}
- {name: cb2, type: H100, nvlink: nvl2, nodes: ["n[3-5]"]}
""",
    "maps": """
switches:
  spine:
    switches: [leaf1, leaf2]
  leaf1:
    metadata: {group: a}
    nodes: ["n[1-2]"]
  leaf2:
    nodes: [n3, "n[4-5]"]
nodes:
  n1: {capacity_block: cb1, type: H100, attributes: {nvlink: nvl1}}
  n2: {capacity_block: cb1, attributes: {nvlink: nvl1}}
  n3:
  n4: {}
  n5: {}
capacity_blocks:
  cb1: {}
  cb2:
    nodes: ["n[3-5]"]
    attributes: {nvlink: nvl2}
""",
    "blocks": """
# a comment first
switches:
  spine:
    labels: {topology.kubernetes.io/zone: z}
    switches:
    - leaf1
    - leaf2
blocks:
- switch: leaf1
  nodes: ["n[1-2]"]
  labels: {network.topology.nvidia.com/accelerator: nvl1, rack: a}
- switch: leaf2
  nodes: ["n[3-5]"]
  annotations: {accelerator.topology.test/domain: nvl2, accelerator.topology.test/sub-domain: x}
""",
    "slurm": """
- topology: tree
  cluster_default: true
  tree:
    switches:
    - {switch: spine, children: "leaf[1-2]"}
    - {switch: leaf1, nodes: "n1,n2"}
    - {switch: leaf2, nodes: "n[3,4-5]"}
- topology: blocks
  block:
    block_sizes: [2]
    blocks:
    - {block: nvl1, nodes: "n[1-2]"}
    - {block: nvl2, nodes: "n[3-5]"}
""",
}


def read(text: str) -> Hardware:
    return import_topograph(parse(text, "t.yaml"), "t.yaml", "cluster", NODE)


@pytest.mark.parametrize("form", MODELS)
def test_all_forms_say_the_same(form, tmp_path):
    (tmp_path / "cluster.yaml").write_text(MODELS[form])
    hardware = import_profile(tmp_path / "cluster.yaml", node=NODE)
    assert (hardware.name, hardware.nodes, hardware.ranks) == ("cluster", 5, 40)
    assert [(group.name, group.nodes) for group in hardware.network.groups] == [
        ("nvlink nvl1", (0, 1)),
        ("nvlink nvl2", (2, 3, 4)),
        ("leaf1", (0, 1)),
        ("leaf2", (2, 3, 4)),
    ]
    assert (hardware.devices, hardware.nics, hardware.transport) == (NODE.devices, NODE.nics, NODE.transport)
    store.save(hardware, tmp_path / "hw.yaml")
    assert store.load(tmp_path / "hw.yaml", Hardware) == hardware
    assert build_topology(hardware, propose(hardware), 1024).per_node == 8


def test_a_switch_above_one_other_is_no_group_of_its_own():
    hardware = read(
        "switches:\n  top: {switches: [a, b]}\n  a: {switches: [leaf]}\n  leaf: {nodes: [x, y]}\n  b: {nodes: [z]}"
    )
    assert [(group.name, group.nodes) for group in hardware.network.groups] == [("leaf", (0, 1))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("switches: {a: {nodes: 3}}", r"t.yaml: \$.switches.a.nodes: found 3, expected an array or text"),
        (
            "switches: {a: {nodes: ['n[1-']}}",
            r"\$.switches.a.nodes: found 'n\[1-' \(text\), expected a name, or several",
        ),
        ("switches: {a: {nodes: ['n[9-1]']}}", r"expected a name, or several as in"),
        ("switches: {a: {nodes: [x]}, b: {nodes: [x]}}", r"\$.switches.b.nodes: found node 'x' under switch 'b'"),
        (
            "switches: {a: {switches: [c]}, b: {switches: [c]}}\nnodes: {x: {}}",
            r"\$.switches.b.switches: found switch 'c'",
        ),
        ("switches: {a: {switches: [b]}, b: {switches: [a]}}\nnodes: {x: {}}", r"found switch 'a' under itself"),
        (
            "nodes: {x: {}}\nswitches: {a: {nodes: [y]}}",
            r"\$.switches.a.nodes: found unknown node 'y', expected one that",
        ),
        ("switches: [{name: a, capacity_blocks: [b]}]", r"\$.switches\[0\].capacity_blocks: found unknown 'b'"),
        ("blocks: [{switch: [1], nodes: [x]}]", r"\$.blocks\[0\].switch: found an array of 1 value, expected text"),
        ("capacity_blocks: [{nodes: [x]}]", r"\$.capacity_blocks\[0\].name: found nothing, expected a text"),
        ("switches: {}", "found no node, expected some"),
        ("- topology: t\n  tree: {switches: [{children: x}]}", r"\$\[0\].tree.switches\[0\].switch: found nothing"),
    ],
)
def test_refusals_name_file_place_and_what_is_expected(text, message):
    with pytest.raises(InputError, match=message):
        read(text)


def test_the_command_takes_the_node_from_a_profile(tmp_path, capsys):
    source, out = tmp_path / "cluster.yaml", tmp_path / "hw.yaml"
    source.write_text(MODELS["blocks"])
    assert run(["profile", "import", str(source), "-o", str(out)]) == 2
    assert "--costs-from: found 5 nodes and not what one has" in capsys.readouterr().err
    assert run(["profile", "import", str(source), "-o", str(out), "--costs-from", "ring4"]) == 2
    assert "found no network in profile 'ring4'" in capsys.readouterr().err
    assert run(["profile", "import", str(source), "-o", str(out), "--costs-from", "ndv4"]) == 0
    assert "5 nodes of 8 x" in capsys.readouterr().err
    assert run(["profile", "show", str(out)]) == 0
    assert "nvlink nvl2" in capsys.readouterr().out


def test_other_yaml_and_json_are_refused_by_what_they_hold(tmp_path):
    file = tmp_path / "x"
    for text, message in {
        "hello: 1": "found no header with GPU0, .* topograph YAML",
        '{"hello": 1}': r"x: \$: found keys hello, expected a TACCL topology",
    }.items():
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            import_profile(Path(file), node=NODE)


@given(st.data())
def test_mutated_models_raise_nothing_but_our_error(data):
    text = MODELS[data.draw(st.sampled_from(sorted(MODELS)))]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 30)))
        text = text[:start] + data.draw(st.text(alphabet="[]{}:-, \nn1299ab", max_size=6)) + text[end:]
    with suppress(InputError):
        assert read(text).nodes > 0
