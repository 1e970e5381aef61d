"""A folder with a generated step trains beside plain PyTorch; a folder that was changed is refused."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest

from codegen.emit import text_digest, write
from codegen.targets import generate
from planner import documents
from planner.artefact import FILE_NAME, Artefact
from planner.errors import InputError, MissingBackendError
from planner.memory.planning import MemoryOptions, plan_memory
from tests.treadle.runtime.models import trace_of
from treadle.runtime.training import run_folder

ENTRY = "tests.treadle.runtime.models:convnet"


@pytest.fixture
def folder(tmp_path):
    trace = msgspec.structs.replace(trace_of("convnet"), entry=ENTRY)
    plan = plan_memory(trace, budget=Fraction(7, 10), options=MemoryOptions(gap=0.1))
    write(generate(plan, "plan.json", trace), tmp_path / "out")
    return tmp_path / "out"


def rewrite_manifest(folder, **changes):
    manifest = documents.load(folder / FILE_NAME, Artefact)
    documents.save(msgspec.structs.replace(manifest, **changes), folder / FILE_NAME)


def test_trains_beside_plain_pytorch(folder):
    result = run_folder(folder, steps=2, learning_rate=0.1)
    assert result["findings"] == []
    assert result["bit_equal"] is True
    assert result["max_gradient_difference"] == 0.0 < result["gradient_scale"]
    assert result["losses"]["eager"] == result["losses"]["planned"]
    assert len(set(result["losses"]["eager"])) == 2
    peaks = result["peak_bytes"]
    assert peaks["planned"] <= peaks["predicted"] <= peaks["budget"] < peaks["eager"]
    assert min(result["step_seconds"].values()) > 0


def test_a_broken_promise_is_a_finding(folder):
    facts = documents.load(folder / FILE_NAME, Artefact).facts
    rewrite_manifest(folder, facts={**facts, "budget_bytes": 1000})
    (finding,) = run_folder(folder, steps=1)["findings"]
    assert "over the budget of 1000 bytes" in finding


def test_wrong_gradients_are_a_finding(folder):
    text = (folder / "step.py").read_text()
    changed = text.replace("aten.threshold_backward.default(", "2 * aten.threshold_backward.default(", 1)
    assert changed != text
    (folder / "step.py").write_text(changed)
    with pytest.raises(InputError, match=r"step\.py: found a text other than the one that was generated"):
        run_folder(folder)
    manifest = documents.load(folder / FILE_NAME, Artefact)
    rewrite_manifest(folder, files={**manifest.files, "step.py": text_digest(changed)})
    (finding,) = run_folder(folder, steps=1)["findings"]
    assert "gradients differ from plain PyTorch" in finding


def test_folders_and_backends_that_cannot_run(folder):
    import torch

    with pytest.raises(InputError, match="expected cpu or cuda"):
        run_folder(folder, backend="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(MissingBackendError, match="no CUDA device"):
            run_folder(folder, backend="cuda")
    rewrite_manifest(folder, entry=None)
    with pytest.raises(InputError, match=r"\$\.entry: found no entry"):
        run_folder(folder)
    rewrite_manifest(folder, target="msccl-xml")
    with pytest.raises(InputError, match="expected torch"):
        run_folder(folder)
