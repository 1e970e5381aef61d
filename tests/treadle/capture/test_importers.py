"""Traces of other tools: real samples, traces recorded here, hand-written ones, and broken bytes."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.profiler import ExecutionTraceObserver, profile, record_function

from treadle.capture import chakra_pb2 as pb
from treadle.capture.formats import import_trace, profiled_steps
from treadle.capture.observed import tensors_of
from treadle.planner.documents import store as documents
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError


def loads(trace: Trace) -> None:
    """The document is sound and survives the round trip."""
    assert documents.loads(documents.dumps(trace), "here", Trace) == trace


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One training step of two layers with an allreduce, as PyTorch's two observers record it."""
    folder = tmp_path_factory.mktemp("recorded")
    store = dist.FileStore(str(folder / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer, batch = torch.optim.SGD(model.parameters(), 0.1), torch.randn(3, 4)
        observer = ExecutionTraceObserver().register_callback(str(folder / "et.json"))
        with (
            profile(execution_trace_observer=observer, record_shapes=True) as profiler,
            record_function("ProfilerStep#3"),
        ):
            model(batch).sum().backward()
            dist.all_reduce(model[0].weight.grad)
            optimizer.step()
        profiler.export_chrome_trace(str(folder / "kineto.json"))
    finally:
        dist.destroy_process_group()
    return folder


def test_execution_trace_recorded_here(recorded: Path) -> None:
    trace = import_trace(recorded / "et.json")
    loads(trace)
    assert (trace.source, trace.mode, trace.costs.model) == ("execution-trace", "train", "absent")
    forward = [op.target for op in trace.ops if op.phase == "forward"]
    assert forward[:4] == ["aten.linear.default", "aten.relu.default", "aten.linear.default", "aten.sum.default"]
    assert {op.phase for op in trace.ops} == {"forward", "backward", "optimizer"}
    assert all(op.time_ns is None and op.args is None for op in trace.ops)

    tensors = {tensor.id: tensor for tensor in trace.tensors}
    first = trace.ops[0]
    assert [tensors[key].shape for key in first.inputs] == [(3, 4), (8, 4), (8,)]
    assert (tensors[first.outputs[0]].bytes, tensors[first.outputs[0]].dtype) == (3 * 8 * 4, "float32")
    assert trace.ops[1].inputs == first.outputs
    assert [tensors[key].shape for key in trace.gradient_order] == [(2,), (2, 8), (8,), (8, 4)]

    (reduce,) = [op for op in trace.ops if op.comm]
    assert reduce.comm == {"collective": "allreduce", "bytes": 8 * 4 * 4}
    update = next(op for op in trace.ops if op.phase == "optimizer" and op.mutates)
    assert set(update.mutates) <= set(update.inputs)
    transposed = [op for op in trace.ops if op.target == "aten.t.default"]
    assert transposed
    assert all(tensors[key].alias_of is not None for op in transposed for key in op.outputs)


def test_kineto_recorded_here_without_an_accelerator(recorded: Path) -> None:
    trace = import_trace(recorded / "kineto.json")
    loads(trace)
    assert (trace.source, trace.mode, trace.costs.model) == ("kineto", "train", "recorded")
    assert trace.tensors == ()
    targets = [op.target for op in trace.ops]
    assert targets[:4] == ["aten::linear", "aten::relu", "aten::linear", "aten::sum"]
    assert all(op.time_ns is not None and op.start_ns is not None for op in trace.ops)
    sent = [(op.target, op.phase, op.comm) for op in trace.ops if op.comm]
    assert sent == [("gloo:all_reduce", "unknown", {"collective": "allreduce"})]
    assert import_trace(recorded / "kineto.json", step=3) == trace
    assert profiled_steps(recorded / "kineto.json") == (trace,)
    assert profiled_steps(recorded / "et.json") == ()
    with pytest.raises(InputError, match="found profiler steps 3, expected step 4"):
        import_trace(recorded / "kineto.json", step=4)


def test_real_kineto_of_two_gpus(data_dir: Path) -> None:
    path = data_dir / "traces" / "resnet-ddp2-rank0.kineto.json.gz"
    last, earlier = import_trace(path), import_trace(path, step=4)
    for trace in (last, earlier):
        loads(trace)
        assert {op.phase for op in trace.ops} == {"forward", "backward", "optimizer"}
        reduced = [op.comm for op in trace.ops if op.comm and op.comm["collective"] == "allreduce"]
        assert sum(comm["bytes"] for comm in reduced) == 4 * 25_557_032  # the gradients of ResNet-50
        assert {comm["group_size"] for comm in reduced} == {2}
        assert {op.stream for op in trace.ops} == {"device 0 stream 7", "device 0 stream 40"}
        ends: dict[str, int] = {}
        for op in trace.ops:  # a stream runs one thing at a time
            assert op.start_ns >= ends.get(op.stream, 0) - 1
            ends[op.stream] = op.start_ns + op.time_ns
    assert last != earlier


def test_real_chakra_from_pytorch(data_dir: Path) -> None:
    trace = import_trace(data_dir / "traces" / "pytorch-ddp.chakra-et.tar.gz")
    loads(trace)
    assert len(trace.ops) == 3643 + 21
    assert trace.costs.model == "recorded"
    collectives = [op for op in trace.ops if op.comm]
    assert len(collectives) == 21
    assert {op.comm["collective"] for op in collectives} == {"allreduce", "broadcast"}
    place = {op.id: index for index, op in enumerate(trace.ops)}
    assert all(place[other] < place[op.id] for op in trace.ops for other in op.after)
    gradients = [op for op in collectives if op.target == "c10d.allreduce_.default"]
    assert sum(op.comm["bytes"] for op in gradients) % (4 * 25_557_032) == 0


def test_real_chakra_of_a_collective(data_dir: Path) -> None:
    trace = import_trace(data_dir / "traces" / "ring-allreduce-8npus-1MB.rank0.chakra.et")
    loads(trace)
    kinds = [op.comm["collective"] for op in trace.ops if op.comm]
    assert (kinds.count("send"), kinds.count("recv"), len(trace.ops)) == (14, 14, 35)
    assert {op.comm["bytes"] for op in trace.ops if op.comm} == {131072}
    assert {op.comm["peer"] for op in trace.ops if op.comm} == {1, 7}
    assert not trace.tensors


def chakra(nodes: list[Any]) -> bytes:
    def framed(message: Any) -> bytes:
        data, head = message.SerializeToString(), b""
        length = len(data)
        while length > 127:
            head, length = head + bytes([length & 127 | 128]), length >> 7
        return head + bytes([length]) + data

    return b"".join(framed(message) for message in [pb.Metadata(version="0.0.4"), *nodes])


def attribute(name: str, value: Any) -> Any:
    field = {bool: "bool_value", int: "int64_value", str: "string_value"}[type(value)]
    return pb.Attribute(name=name, **{field: value})


def small_chakra() -> list[Any]:
    text = pb.Arguments(values="[[7, 8, 0, 6, 4, 'cpu'], 1]", shapes="[[2, 3], []]", types="['Tensor(float)', 'Int']")
    result = pb.Arguments(values="[[9, 8, 0, 6, 4, 'cpu']]", shapes="[[3, 2]]", types="['Tensor(float)']")
    view = [attribute("is_cpu_op", True), attribute("op_schema", "aten::t(Tensor(a) self) -> Tensor(a)")]
    reduce = [attribute("comm_type", 7), attribute("comm_size", 4096), attribute("pg_name", "dp")]
    return [
        pb.Node(id=3, name="late", kind=pb.COMPUTE, data_dependencies=[5], duration_us=2, start_us=9),
        pb.Node(id=5, name="aten::t", kind=pb.COMPUTE, inputs=text, outputs=result, attributes=view),
        pb.Node(id=6, name="reduce", kind=pb.COLLECTIVE, control_dependencies=[3], attributes=reduce),
    ]


def test_chakra_by_hand(tmp_path: Path) -> None:
    (tmp_path / "x.et").write_bytes(chakra(small_chakra()))
    trace = import_trace(tmp_path / "x.et")
    loads(trace)
    assert [op.id for op in trace.ops] == ["n5", "n3", "n6"]
    view, late, reduce = trace.ops
    assert (view.target, view.inputs, view.outputs) == ("aten.t.default", ("t7",), ("t9",))
    assert trace.tensors[1].alias_of == "t7"
    assert (late.time_ns, late.start_ns, late.after) == (2000, 9000, ("n5",))
    assert view.time_ns is None
    assert reduce.comm == {"collective": "reducescatter", "bytes": 4096, "group": "dp"}
    assert reduce.after == ("n3",)


def test_chakra_control_dependencies_that_close_a_cycle_are_callers(tmp_path: Path) -> None:
    nodes = small_chakra()
    nodes[1].control_dependencies.append(3)
    (tmp_path / "x.et").write_bytes(chakra(nodes))
    assert [op.after for op in import_trace(tmp_path / "x.et").ops] == [(), ("n5",), ()]
    nodes[1].data_dependencies.append(3)
    (tmp_path / "x.et").write_bytes(chakra(nodes))
    with pytest.raises(InputError, match="wait for each other"):
        import_trace(tmp_path / "x.et")


KINETO = {
    "traceEvents": [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "Optimizer.step#SGD.step",
            "pid": 1,
            "tid": 1,
            "ts": 90,
            "dur": 9,
        },
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 1,
            "tid": 1,
            "ts": 10,
            "dur": 5,
            "args": {"External id": 1},
        },
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::add_",
            "pid": 1,
            "tid": 1,
            "ts": 91,
            "dur": 2,
            "args": {"External id": 2},
        },
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "autograd::engine::evaluate_function: MmBackward0",
            "pid": 1,
            "tid": 2,
            "ts": 50,
            "dur": 9,
        },
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 1,
            "tid": 2,
            "ts": 51,
            "dur": 3,
            "args": {"External id": 3},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "ts": 12,
            "dur": 2.5,
            "args": {"External id": 1, "stream": 7, "device": 0},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "ts": 60,
            "dur": 2,
            "args": {"External id": 3, "stream": 7, "device": 0},
        },
        {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": "copy",
            "ts": 61,
            "dur": 1,
            "args": {"stream": 9, "device": 0, "bytes": 64},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "add",
            "ts": 95,
            "dur": 1,
            "args": {"External id": 2, "stream": 7, "device": 0},
        },
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 4, "ts": 95},
    ]
}


@pytest.mark.parametrize("packing", ["plain", "gzip", "array", "tar"])
def test_kineto_by_hand(tmp_path: Path, packing: str) -> None:
    data = json.dumps(KINETO["traceEvents"] if packing == "array" else KINETO).encode()
    if packing == "gzip":
        data = gzip.compress(data)
    elif packing == "tar":
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            info = tarfile.TarInfo("rank0.json")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        data = buffer.getvalue()
    (tmp_path / "k").write_bytes(data)
    trace = import_trace(tmp_path / "k")
    loads(trace)
    assert [(op.target, op.phase, op.start_ns, op.time_ns, op.after) for op in trace.ops] == [
        ("gemm", "forward", 0, 2500, ()),
        ("gemm", "backward", 48000, 2000, ("e0",)),
        ("copy", "unknown", 49000, 1000, ()),
        ("add", "optimizer", 83000, 1000, ("e1",)),
    ]
    assert trace.ops[2].bytes_moved == 64


def test_kernels_of_nccl_are_messages_by_their_names(tmp_path: Path) -> None:
    names = [
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgs)",
        "ncclKernel_AllGather_RING_LL(Comm*)",
        "gemm",
    ]
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": 0,
            "tid": 7,
            "ts": 10.0 * place,
            "dur": 5.0,
            "args": {"stream": 7},
        }
        for place, name in enumerate(names)
    ]
    (tmp_path / "k.json").write_text(json.dumps(events), encoding="utf-8")
    (step,) = profiled_steps(tmp_path / "k.json")
    assert [op.comm for op in step.ops] == [{"collective": "reducescatter"}, {"collective": "allgather"}, None]


def test_nested_tensor_arguments_keep_their_types() -> None:
    values = [[[1, 2, 0, 6, 4, "cpu"], [3, 4, 0, 2, 8, "cpu"]], "<None>", [1, 1]]
    types = ["GenericList[Tensor(float),Tensor(c10::complex<float>)]", "None", "GenericList[Int,Int]"]
    first, second = tensors_of(values, [[[2, 3], [2]], [], [[], []]], types)
    assert (first.number, first.bytes, first.shape, first.dtype) == (1, 24, (2, 3), "float32")
    assert (second.number, second.bytes, second.dtype) == (3, 16, "complex64")


def test_a_number_met_again_is_a_new_tensor(tmp_path: Path) -> None:
    """The observer numbers addresses, and a freed address is used again."""

    def node(number: int, source: int, target: int) -> dict[str, Any]:
        def side(tensor: int) -> dict[str, Any]:
            values = [[tensor, tensor + 100, 0, 4, 4, "cpu"]]
            return {"values": values, "shapes": [[4]], "types": ["Tensor(float)"], "strides": [[1]]}

        schema = {"name": "op_schema", "type": "string", "value": "aten::relu(Tensor self) -> Tensor"}
        return {
            "id": number,
            "name": "aten::relu",
            "ctrl_deps": 1,
            "inputs": side(source),
            "outputs": side(target),
            "attrs": [schema],
        }

    nodes = [node(2, 10, 11), node(3, 11, 12), node(4, 12, 11), node(5, 11, 13)]
    (tmp_path / "et.json").write_text(json.dumps({"schema": "1.1.1", "nodes": nodes}))
    trace = import_trace(tmp_path / "et.json")
    loads(trace)
    assert [(op.inputs, op.outputs) for op in trace.ops] == [
        (("t10",), ("t11",)),
        (("t11",), ("t12",)),
        (("t12",), ("t11.2",)),
        (("t11.2",), ("t13",)),
    ]


def test_execution_trace_of_the_first_schemas(tmp_path: Path) -> None:
    """Before 1.0.3 callers were called `parent` and arguments were flat lists."""
    caller = {"id": 2, "name": "autograd::engine::evaluate_function: MmBackward0", "parent": 1, "rf_id": 4}
    product = {
        "id": 3,
        "name": "aten::mm",
        "parent": 2,
        "rf_id": 5,
        "op_schema": "aten::mm(Tensor self, Tensor mat2) -> Tensor",
        "inputs": [[5, 6, 0, 6, 4, "cuda:0"], [7, 8, 0, 6, 4, "cuda:0"]],
        "input_shapes": [[2, 3], [3, 2]],
        "input_types": ["Tensor(float)", "Tensor(float)"],
        "outputs": [[9, 10, 0, 4, 4, "cuda:0"]],
        "output_shapes": [[2, 2]],
        "output_types": ["Tensor(float)"],
    }
    (tmp_path / "et.json").write_text(json.dumps({"schema": "1.0.2", "nodes": [product, caller]}))
    trace = import_trace(tmp_path / "et.json")
    loads(trace)
    (op,) = trace.ops
    assert (op.target, op.phase, op.inputs, op.outputs) == ("aten.mm.default", "backward", ("t5", "t7"), ("t9",))
    assert [(t.shape, t.bytes, t.role) for t in trace.tensors][-1] == ((2, 2), 16, "gradient")


BAD = {
    "nothing": (b"", "empty file"),
    "text": (b"hello", "Chakra"),
    "json": (b'{"a": 1}', "found JSON with a, expected an ExecutionTrace"),
    "document": (b'{"kind": "trace", "version": 1}', "found a treadle document"),
    "cut json": (b'{"traceEvents": [', "broken JSON"),
    "no events": (b'{"traceEvents": []}', "no operator or kernel"),
    "wrong type": (b'{"traceEvents": [{"ph": 3}]}', r"\$\.traceEvents\[0\]\.ph: found int, expected str"),
    "cut gzip": (gzip.compress(b'{"traceEvents": []}' * 99)[:30], "broken archive"),
    "cut chakra": (chakra(small_chakra())[:-3], "expected a Chakra message of"),
    "twice": (chakra([pb.Node(id=1, kind=pb.COMPUTE), pb.Node(id=1, kind=pb.COMPUTE)]), "two nodes of one id"),
    "self call": (
        b'{"schema": "1", "nodes": [{"id": 1, "name": "a", "ctrl_deps": 2}, {"id": 2, "name": "b", "ctrl_deps": 1}]}',
        "calls itself",
    ),
    "negative time": (
        b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": -1}]}',
        "expected finite times",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_broken_files_are_refused_by_place(tmp_path: Path, name: str) -> None:
    data, message = BAD[name]
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        import_trace(tmp_path / "bad")
    assert str(caught.value).startswith(str(tmp_path / "bad"))
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_archive_of_several(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found no file"):
        import_trace(tmp_path / "absent")
    with tarfile.open(tmp_path / "two.tar", "w") as archive:
        for name in ("a", "b"):
            (tmp_path / name).write_bytes(b"x")
            archive.add(tmp_path / name, name)
    with pytest.raises(InputError, match=r"found 2 files in the archive \(a, b\)"):
        import_trace(tmp_path / "two.tar")


def import_or_refuse(path: Path) -> None:
    """A sound trace or one line that says why not; anything else that is raised fails the test."""
    refusal = None
    try:
        loads(import_trace(path))
    except InputError as error:
        refusal = str(error)
    assert refusal is None or "\n" not in refusal


SEEDS = [json.dumps(KINETO).encode(), chakra(small_chakra())]


@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=4), st.integers(0, 6)), max_size=6),
)
def test_mutated_bytes_give_a_trace_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, seed: bytes, edits: Any
) -> None:
    data = bytearray(seed)
    for place, new, gone in edits:
        place %= len(data) + 1
        data[place : place + gone] = new
    path = tmp_path_factory.getbasetemp() / "mutated"
    path.write_bytes(bytes(data))
    import_or_refuse(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "name", "values", "ts"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.sampled_from(["traceEvents", "nodes"]), st.data())
def test_odd_values_give_a_trace_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, key: str, data: st.DataObject
) -> None:
    if key == "traceEvents":
        fields = ["ph", "cat", "name", "ts", "dur", "pid", "tid", "args"]
    else:
        fields = ["id", "name", "ctrl_deps", "inputs", "outputs", "attrs", "op_schema", "rf_id"]
    base = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::a",
        "ts": 1.0,
        "id": 1,
        "op_schema": "aten::a(Tensor(a!) x) -> Tensor",
    }
    entry = base | data.draw(st.dictionaries(st.sampled_from(fields), JSON, max_size=4))
    path = tmp_path_factory.getbasetemp() / "odd"
    path.write_text(json.dumps({"schema": "1", key: [entry]}))
    import_or_refuse(path)
