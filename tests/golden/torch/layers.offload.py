"""Activations of layers that `torch.compile` moves to the host and back, from a swap plan for 96.5 KiB.

`compile(model)` is `torch.compile` with the plan's copies in its two graphs; `partition` is the function that inserts
them, for other compilers built on AOT autograd. It needs nothing but PyTorch 2.13. Train inside `with pinned():`, which
keeps the pinned buffers from step to step; without it every copy pins its memory anew.

Carried over from the plan: 2 activations (64 KiB out, and in again), each copied out after the operator
of the plan and brought back after the one of the plan. Not carried over: the rest of its 26 copies
(412.7 KiB in all), which are of parameters, states, inputs or of activations within one pass; the plan's
order, and the places of tensors in memory. So its memory is not promised. After the first step `carried` says how many
activations each compiled graph moves. The backward pass of a step can run once.
"""

import difflib
import operator

import torch
from torch._functorch._activation_offloading.offload_ops import pinned_memory_pool as pinned
from torch._functorch.partitioners import default_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn, get_hash_for_files

# The operator calls of the plan's trace, in order.
FORWARD = ["t", "addmm", "tanh", "t", "addmm", "tanh", "t", "addmm", "tanh", "pow", "mean"]
BACKWARD = [
    "expand",
    "div",
    "pow",
    "mul",
    "mul",
    "tanh_backward",
    "t",
    "mm",
    "t",
    "mm",
    "t",
    "sum",
    "view",
    "t",
    "tanh_backward",
    "t",
    "mm",
    "t",
    "mm",
    "t",
    "sum",
    "view",
    "t",
    "tanh_backward",
    "t",
    "mm",
    "t",
    "sum",
    "view",
    "t",
]

# What moves: the call that makes it, its dtype, shape and place among the results like it; the forward call after which
# it is copied out, the one that may have its memory, and the backward call after which it is brought back.
MOVES = [(2, "float32", [256, 32], 0, 4, 5, 16), (5, "float32", [256, 32], 0, 7, 8, 7)]

# One name for operators that stand for each other on different devices.
SAME_OPERATOR = {
    "_batch_norm_with_update": "batch_norm",
    "_batch_norm_with_update_functional": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "_native_batch_norm_legit_functional": "batch_norm",
    "_scaled_dot_product_cudnn_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "_scaled_dot_product_fused_attention_overrideable": "scaled_dot_product_attention",
    "cudnn_batch_norm": "batch_norm",
    "max_pool2d": "max_pool2d_with_indices",
    "miopen_batch_norm": "batch_norm",
    "native_batch_norm": "batch_norm",
}

# Activations that a pair of compiled graphs moves, and bytes in one direction, of those above; a pair for each graph.
carried = []


def compile(model, **arguments):
    """`torch.compile(model, **arguments)` with the plan's copies, for Inductor."""

    def backend(module, inputs):
        from torch._inductor.compile_fx import compile_fx

        with torch._inductor.config.patch(custom_partitioner_fn=Partition()):
            return compile_fx(module, inputs)

    return torch.compile(model, backend=backend, **arguments)


def partition(joint, joint_inputs, *, num_fwd_outputs, compiler=None, **arguments):
    """Split a joint graph into forward and backward, saving all that the backward pass reads, and insert the copies."""
    fw, bw = default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **arguments)
    forward, backward = _calls(fw.graph, FORWARD), _calls(bw.graph, BACKWARD)
    families = {}
    for node in fw.graph.nodes:
        families.setdefault(_base(node), []).append(node)
    saved = set(fw.graph.find_nodes(op="output")[0].args[0][num_fwd_outputs:])
    count = size = 0
    for call, dtype, shape, like, offload, free, reload in MOVES:
        results = [node for node in forward.get(call, ()) if _is(node, dtype, shape)]
        # an operator in pieces may save another of them
        chosen = [*results[like : like + 1], *results]
        node = next((node for node in chosen if not saved.isdisjoint(families.get(node, ()))), None)
        if node is not None and _move(
            fw.graph,
            bw.graph,
            node,
            families[node],
            num_fwd_outputs,
            forward[max((at for at in forward if at <= offload), default=call)],
            forward.get(min((at for at in forward if free is not None and at >= free), default=None), ()),
            backward.get(max((at for at in backward if reload is not None and at <= reload), default=None), ()),
        ):
            count += 1
            size += node.meta["val"].nbytes
            saved.difference_update(families[node])
    for graph in (fw, bw):
        graph.graph.lint()
        graph.recompile()
    carried.append({"moves": count, "of": len(MOVES), "bytes": size})
    return fw, bw


class Partition(CustomPartitionerFn):
    """`partition` as Inductor takes it."""

    def __call__(self, joint, joint_inputs, **arguments):
        return partition(joint, joint_inputs, **arguments)

    def uuid(self):
        return get_hash_for_files((__file__,))


def _move(fw, bw, node, family, results, offload, free, reload):
    """Copy `node` out in the forward graph and in again in the backward graph; False where it has to stay.

    `family` are the node and its views, `results` how many outputs of the forward graph are the caller's. `offload`, `free` and `reload` are the nodes of a call. The copy out waits for the last forward use and the copy in
    comes before the first backward use, whatever the plan says. Views of `node` that are saved are taken again from it.
    """
    (output,) = fw.find_nodes(op="output")
    values = list(output.args[0])
    saved = [other for other in dict.fromkeys(values[results:]) if other in family]
    inputs = {other.name: other for other in bw.find_nodes(op="placeholder")}
    chains = [_chain(other, node) for other in saved]
    val = node.meta["val"]
    if (
        not saved
        or any(other in family for other in values[:results])
        or any(chain is None for chain in chains)
        or any(other.name not in inputs or not inputs[other.name].users for other in saved)
        or not torch._prims_common.is_non_overlapping_and_dense_or_false(val)
    ):
        return False
    ao, place = torch.ops.ao, {other: at for at, other in enumerate(fw.nodes)}
    # forward: the copy is issued after the last use, and waited for where the memory is wanted
    used = {user for other in family for user in other.users if user is not output}
    last = max([node, *family, *used, *offload], key=place.__getitem__)
    with fw.inserting_after(_past_results(last)):
        copy = fw.call_function(ao.offload.default, (node,), name=f"offload_{node.name}")
    with val.fake_mode:
        copy.meta["val"] = torch.empty(val.shape, dtype=val.dtype, device="cpu")
    wanted = min(free, key=place.__getitem__, default=output)
    if wanted is not output and place[wanted] <= place[last]:
        wanted = output
    with fw.inserting_before(wanted):
        host = fw.call_function(ao.wait_tensor.default, (copy, None, node), name=f"host_{node.name}")
    host.meta["val"] = copy.meta["val"]
    first, gone = saved[0], set(saved[1:])
    output.args = (tuple(host if value is first else value for value in values if value not in gone),)
    if "desc" in output.meta:
        kept = zip(values, output.meta["desc"], strict=True)
        output.meta["desc"] = [what for value, what in kept if value not in gone]
    # backward: the copy is issued where the plan says, and waited for before the first use
    place = {other: at for at, other in enumerate(bw.nodes)}
    users = [user for other in saved for user in inputs[other.name].users]
    needed = min(users, key=place.__getitem__)
    begin = max(bw.find_nodes(op="placeholder"), key=place.__getitem__)
    after = _past_results(max([begin, *reload], key=place.__getitem__))
    with bw.inserting_before(inputs[first.name]):
        there = bw.placeholder(host.name)
    there.meta.update(inputs[first.name].meta, val=host.meta["val"])
    there.meta.pop("tensor_meta", None)
    issue = bw.inserting_before(needed) if place[after] >= place[needed] else bw.inserting_after(after)
    with issue:
        arguments = (there, val.device, list(val.shape), list(val.stride()))
        copy = bw.call_function(ao.reload.default, arguments, name=f"reload_{node.name}")
    copy.meta["val"] = val
    with bw.inserting_before(needed):
        here = bw.call_function(ao.wait_tensor.default, (copy, there), name=f"device_{node.name}")
        here.meta["val"] = val
        for other, chain in zip(saved, chains):
            value, known = here, {node: here}
            for view in chain:
                value = known[view] = bw.node_copy(view, known.__getitem__)
            inputs[other.name].replace_all_uses_with(value)
            bw.erase_node(inputs[other.name])
    return True


def _calls(graph, planned):
    """The nodes of each planned call that the graph has, by its number: operators in order, grouped by call."""
    calls, keys = [], []
    for node in graph.nodes:
        if node.op == "call_function":
            key = (_name(node), node.meta.get("seq_nr"))
            if not keys or key != keys[-1]:
                calls.append([])
                keys.append(key)
            calls[-1].append(node)
    names = [name for name, _ in keys]
    found = {}
    for block in difflib.SequenceMatcher(None, planned, names, autojunk=False).get_matching_blocks():
        found.update((block.a + at, calls[block.b + at]) for at in range(block.size))
    return found


def _is(node, dtype, shape):
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in value.shape):
        return False
    return str(value.dtype) == f"torch.{dtype}" and list(value.shape) == shape


def _base(node):
    """The node whose memory `node` lives in."""
    while (above := _above(node)) is not None:
        node = above
    return node


def _chain(node, base):
    """The views that lead from `base` to `node`; None where they read something else as well."""
    chain = []
    while node is not base:
        above = _above(node)
        if node.all_input_nodes != [above]:
            return None
        chain.append(node)
        node = above
    return chain[::-1]


def _above(node):
    """The node of which `node` is a view, if it is one."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return None
    if node.target is operator.getitem:
        return node.args[0] if _above(node.args[0]) is not None else None
    schema = getattr(node.target, "_schema", None)
    shares = schema is not None and any(value.alias_info is not None for value in schema.returns)
    return node.args[0] if shares or "_unsafe_view" in str(node.target) else None


def _past_results(node):
    """The last node of a call's results: they are taken out right behind it."""
    while node.next.op == "call_function" and node.next.target is operator.getitem:
        node = node.next
    while node.next.op == "placeholder":
        node = node.next
    return node


def _name(node):
    """The operator that `node` computes, or is a part of after decomposition."""
    call = node.meta.get("original_aten") or node.target
    name = getattr(call, "__name__", str(call)).split(".")[0].rstrip("_")
    return SAME_OPERATOR.get(name, name)
