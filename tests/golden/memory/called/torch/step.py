"""One training step of examples.models.masked_lm:tiny under a memory budget of 61.91 KiB. Made by treadle; do not edit.

Peak of live tensor bytes: 60.79 KiB counted value by value over the calls below, 60.79 KiB in the plan.
24 forward calls, 26 backward calls in 20 stages, 2 calls recomputed.
"""

import torch

from treadle.runtime import objects

aten = torch.ops.aten

# What the step expects: [dtype, shape] of parameters and buffers, [dtype, shape, stride] of inputs. TANGENTS lists the
# outputs that take a gradient, GRADIENTS the names that `backward` yields, in its order, FROZEN what must require none,
# EVALUATING the modules in evaluation mode.
# CALLED is what the step is called with: trees of values, with the numbers of INPUTS.
# HANDED are the gradients with which those before them, back to the one named before, are handed over.
# UNTRAINED are outputs next to the loss that have a gradient in the model and none here.
PARAMETERS = {
    "embedding.weight": ["float32", [32, 16]],
    "layers.0.0.weight": ["float32", [16, 16]],
    "layers.0.0.bias": ["float32", [16]],
    "layers.0.1.weight": ["float32", [16]],
    "layers.0.1.bias": ["float32", [16]],
    "layers.1.0.weight": ["float32", [16, 16]],
    "layers.1.0.bias": ["float32", [16]],
    "layers.1.1.weight": ["float32", [16]],
    "layers.1.1.bias": ["float32", [16]],
    "head.weight": ["float32", [32, 16]],
    "head.bias": ["float32", [32]],
}
BUFFERS = {}
CALLED = {
    "args": [],
    "kwargs": {"labels": {"tensor": 2}, "tokens": {"dict": [["ids", {"tensor": 0}], ["mask", {"tensor": 1}]]}},
    "parameters": ["tokens", "labels"],
}
INPUTS = [["int64", [4, 16], [16, 1]], ["float32", [4, 16], [16, 1]], ["int64", [4, 16], [16, 1]]]
TANGENTS = [0]
GRADIENTS = [
    "head.weight",
    "head.bias",
    "layers.1.1.weight",
    "layers.1.1.bias",
    "layers.1.0.weight",
    "layers.1.0.bias",
    "layers.0.1.weight",
    "layers.0.1.bias",
    "layers.0.0.weight",
    "layers.0.0.bias",
    "embedding.weight",
]
HANDED = [
    "head.weight",
    "head.bias",
    "layers.1.1.bias",
    "layers.1.0.weight",
    "layers.1.0.bias",
    "layers.0.1.bias",
    "layers.0.0.weight",
    "layers.0.0.bias",
    "embedding.weight",
]
FROZEN = ["input 0", "input 1", "input 2"]
EVALUATING = []
UNTRAINED = [1]


def returned(outputs):
    """The outputs as the step returns them."""
    return objects.made("examples.models.masked_lm:MaskedLMOutput", {"loss": outputs[0], "logits": outputs[1]})


# FORWARD
def forward(parameters, buffers, inputs):
    """Outputs of the step, and what the backward pass needs of it."""
    # stage 21: 24 calls; at most 44.79 KiB live
    saved = {}
    embedding = aten.embedding.default(parameters["embedding.weight"], inputs[0])
    mul = aten.mul.Tensor(embedding, aten.unsqueeze.default(inputs[1], -1))
    sum_1 = aten.sum.dim_IntList(mul, [1], True)
    del mul
    sum_2 = aten.sum.dim_IntList(aten.unsqueeze.default(inputs[1], -1), [1], True)
    div = aten.div.Tensor(sum_1, sum_2)
    del sum_1
    add = aten.add.Tensor(embedding, div)
    del div
    addmm = aten.addmm.default(
        parameters["layers.0.0.bias"],
        aten.reshape.default(add, [64, 16]),
        aten.t.default(parameters["layers.0.0.weight"]),
    )
    native_layer_norm_out0, native_layer_norm_out1, native_layer_norm_out2 = aten.native_layer_norm.default(
        aten.reshape.default(addmm, [4, 16, 16]),
        [16],
        parameters["layers.0.1.weight"],
        parameters["layers.0.1.bias"],
        1e-05,
    )
    del addmm
    tanh = aten.tanh_.default(native_layer_norm_out0)
    del native_layer_norm_out0
    clone = aten.clone.default(tanh)
    add_1 = aten.add_.Tensor(embedding, clone)
    del clone, embedding
    mul_1 = aten.mul.Tensor(add_1, aten.unsqueeze.default(inputs[1], -1))
    sum_3 = aten.sum.dim_IntList(mul_1, [1], True)
    del mul_1
    sum_4 = aten.sum.dim_IntList(aten.unsqueeze.default(inputs[1], -1), [1], True)
    div_1 = aten.div.Tensor(sum_3, sum_4)
    del sum_3
    add_2 = aten.add.Tensor(add_1, div_1)
    del div_1
    addmm_1 = aten.addmm.default(
        parameters["layers.1.0.bias"],
        aten.reshape.default(add_2, [64, 16]),
        aten.t.default(parameters["layers.1.0.weight"]),
    )
    native_layer_norm_1_out0, native_layer_norm_1_out1, native_layer_norm_1_out2 = aten.native_layer_norm.default(
        aten.reshape.default(addmm_1, [4, 16, 16]),
        [16],
        parameters["layers.1.1.weight"],
        parameters["layers.1.1.bias"],
        1e-05,
    )
    del addmm_1
    tanh_1 = aten.tanh_.default(native_layer_norm_1_out0)
    del native_layer_norm_1_out0
    clone_1 = aten.clone.default(tanh_1)
    add_3 = aten.add_.Tensor(add_1, clone_1)
    del add_1, clone_1
    addmm_2 = aten.addmm.default(
        parameters["head.bias"],
        aten.reshape.default(add_3, [64, 16]),
        aten.t.default(parameters["head.weight"]),
    )
    log_softmax = aten._log_softmax.default(aten.reshape.default(addmm_2, [64, 32]), 1, False)
    nll_loss_forward_out0, nll_loss_forward_out1 = aten.nll_loss_forward.default(
        log_softmax,
        aten.reshape.default(inputs[2], [64]),
        None,
        1,
        -100,
    )
    saved["log_softmax"] = log_softmax
    saved["add"] = add
    saved["add_2"] = add_2
    saved["add_3"] = add_3
    saved["native_layer_norm_1_out1"] = native_layer_norm_1_out1
    saved["native_layer_norm_1_out2"] = native_layer_norm_1_out2
    saved["native_layer_norm_out1"] = native_layer_norm_out1
    saved["native_layer_norm_out2"] = native_layer_norm_out2
    saved["nll_loss_forward_out1"] = nll_loss_forward_out1
    saved["sum_2"] = sum_2
    saved["sum_4"] = sum_4
    saved["tanh"] = tanh
    saved["tanh_1"] = tanh_1
    return [nll_loss_forward_out0, aten.reshape.default(addmm_2, [4, 16, 32])], saved


# BACKWARD
def backward(saved, parameters, buffers, inputs, tangents, gradients):
    """Empty `saved` and `tangents`; put each gradient into `gradients` and yield its name as soon as it is ready."""
    tangent_0 = tangents.pop(0)
    log_softmax = saved.pop("log_softmax")
    add = saved.pop("add")
    add_2 = saved.pop("add_2")
    add_3 = saved.pop("add_3")
    native_layer_norm_1_out1 = saved.pop("native_layer_norm_1_out1")
    native_layer_norm_1_out2 = saved.pop("native_layer_norm_1_out2")
    native_layer_norm_out1 = saved.pop("native_layer_norm_out1")
    native_layer_norm_out2 = saved.pop("native_layer_norm_out2")
    nll_loss_forward_out1 = saved.pop("nll_loss_forward_out1")
    sum_2 = saved.pop("sum_2")
    sum_4 = saved.pop("sum_4")
    tanh = saved.pop("tanh")
    tanh_1 = saved.pop("tanh_1")

    # stage 20: 1 call; at most 52.79 KiB live
    nll_loss_backward = aten.nll_loss_backward.default(
        tangent_0,
        log_softmax,
        aten.reshape.default(inputs[2], [64]),
        None,
        1,
        -100,
        nll_loss_forward_out1,
    )
    del nll_loss_forward_out1, tangent_0

    # stage 19: 1 call; at most 60.79 KiB live
    log_softmax_backward_data = aten._log_softmax_backward_data.default(
        nll_loss_backward,
        log_softmax,
        1,
        torch.float32,
    )
    del log_softmax, nll_loss_backward

    # stage 18: 1 call; at most 46.79 KiB live
    mm_1 = aten.mm.default(
        aten.t.default(aten.reshape.default(log_softmax_backward_data, [64, 32])),
        aten.reshape.default(add_3, [64, 16]),
    )
    del add_3

    # stage 17: 2 calls; at most 46.91 KiB live
    mm = aten.mm.default(aten.reshape.default(log_softmax_backward_data, [64, 32]), parameters["head.weight"])
    gradients["head.weight"] = mm_1
    del mm_1
    yield "head.weight"
    sum_5 = aten.sum.dim_IntList(aten.reshape.default(log_softmax_backward_data, [64, 32]), [0], True)
    gradients["head.bias"] = aten.reshape.default(sum_5, [32])
    del log_softmax_backward_data, sum_5
    yield "head.bias"

    # stage 16: 1 call; at most 42.91 KiB live
    tanh_backward = aten.tanh_backward.default(aten.reshape.default(mm, [4, 16, 16]), tanh_1)
    del tanh_1

    # stage 15: 2 calls, 1 recomputed; at most 47.04 KiB live
    addmm_1 = aten.addmm.default(
        parameters["layers.1.0.bias"],
        aten.reshape.default(add_2, [64, 16]),
        aten.t.default(parameters["layers.1.0.weight"]),
    )
    (
        native_layer_norm_backward_out0,
        native_layer_norm_backward_out1,
        native_layer_norm_backward_out2,
    ) = aten.native_layer_norm_backward.default(
        tanh_backward,
        aten.reshape.default(addmm_1, [4, 16, 16]),
        [16],
        native_layer_norm_1_out1,
        native_layer_norm_1_out2,
        parameters["layers.1.1.weight"],
        parameters["layers.1.1.bias"],
        [True, True, True],
    )
    gradients["layers.1.1.weight"] = native_layer_norm_backward_out1
    gradients["layers.1.1.bias"] = native_layer_norm_backward_out2
    del addmm_1, native_layer_norm_1_out1, native_layer_norm_1_out2, native_layer_norm_backward_out1
    del native_layer_norm_backward_out2, tanh_backward
    yield "layers.1.1.weight"
    yield "layers.1.1.bias"

    # stage 14: 1 call; at most 39.54 KiB live
    mm_3 = aten.mm.default(
        aten.t.default(aten.reshape.default(native_layer_norm_backward_out0, [64, 16])),
        aten.reshape.default(add_2, [64, 16]),
    )
    del add_2

    # stage 13: 3 calls; at most 39.6 KiB live
    mm_2 = aten.mm.default(
        aten.reshape.default(native_layer_norm_backward_out0, [64, 16]),
        parameters["layers.1.0.weight"],
    )
    gradients["layers.1.0.weight"] = mm_3
    del mm_3
    yield "layers.1.0.weight"
    sum_6 = aten.sum.dim_IntList(aten.reshape.default(native_layer_norm_backward_out0, [64, 16]), [0], True)
    gradients["layers.1.0.bias"] = aten.reshape.default(sum_6, [16])
    del native_layer_norm_backward_out0, sum_6
    yield "layers.1.0.bias"
    sum_7 = aten.sum.dim_IntList(aten.reshape.default(mm_2, [4, 16, 16]), [1], True)

    # stage 12: 1 call; at most 39.85 KiB live
    add_4 = aten.add.Tensor(aten.reshape.default(mm, [4, 16, 16]), aten.reshape.default(mm_2, [4, 16, 16]))
    del mm, mm_2

    # stage 11: 1 call; at most 32.1 KiB live
    div_2 = aten.div.Tensor(sum_7, sum_4)
    del sum_4, sum_7

    # stage 10: 1 call; at most 35.84 KiB live
    mul_2 = aten.mul.Tensor(aten.expand.default(div_2, [4, 16, 16]), aten.unsqueeze.default(inputs[1], -1))
    del div_2

    # stage 9: 1 call; at most 39.59 KiB live
    add_5 = aten.add.Tensor(add_4, mul_2)
    del add_4, mul_2

    # stage 8: 1 call; at most 35.59 KiB live
    tanh_backward_1 = aten.tanh_backward.default(add_5, tanh)
    del tanh

    # stage 7: 2 calls, 1 recomputed; at most 39.71 KiB live
    addmm = aten.addmm.default(
        parameters["layers.0.0.bias"],
        aten.reshape.default(add, [64, 16]),
        aten.t.default(parameters["layers.0.0.weight"]),
    )
    (
        native_layer_norm_backward_1_out0,
        native_layer_norm_backward_1_out1,
        native_layer_norm_backward_1_out2,
    ) = aten.native_layer_norm_backward.default(
        tanh_backward_1,
        aten.reshape.default(addmm, [4, 16, 16]),
        [16],
        native_layer_norm_out1,
        native_layer_norm_out2,
        parameters["layers.0.1.weight"],
        parameters["layers.0.1.bias"],
        [True, True, True],
    )
    gradients["layers.0.1.weight"] = native_layer_norm_backward_1_out1
    gradients["layers.0.1.bias"] = native_layer_norm_backward_1_out2
    del addmm, native_layer_norm_backward_1_out1, native_layer_norm_backward_1_out2, native_layer_norm_out1
    del native_layer_norm_out2, tanh_backward_1
    yield "layers.0.1.weight"
    yield "layers.0.1.bias"

    # stage 6: 1 call; at most 32.21 KiB live
    mm_5 = aten.mm.default(
        aten.t.default(aten.reshape.default(native_layer_norm_backward_1_out0, [64, 16])),
        aten.reshape.default(add, [64, 16]),
    )
    del add

    # stage 5: 3 calls; at most 32.27 KiB live
    mm_4 = aten.mm.default(
        aten.reshape.default(native_layer_norm_backward_1_out0, [64, 16]),
        parameters["layers.0.0.weight"],
    )
    gradients["layers.0.0.weight"] = mm_5
    del mm_5
    yield "layers.0.0.weight"
    sum_8 = aten.sum.dim_IntList(aten.reshape.default(native_layer_norm_backward_1_out0, [64, 16]), [0], True)
    gradients["layers.0.0.bias"] = aten.reshape.default(sum_8, [16])
    del native_layer_norm_backward_1_out0, sum_8
    yield "layers.0.0.bias"
    sum_9 = aten.sum.dim_IntList(aten.reshape.default(mm_4, [4, 16, 16]), [1], True)

    # stage 4: 1 call; at most 32.52 KiB live
    add_6 = aten.add.Tensor(add_5, aten.reshape.default(mm_4, [4, 16, 16]))
    del add_5, mm_4

    # stage 3: 1 call; at most 24.77 KiB live
    div_3 = aten.div.Tensor(sum_9, sum_2)
    del sum_2, sum_9

    # stage 2: 1 call; at most 28.51 KiB live
    mul_3 = aten.mul.Tensor(aten.expand.default(div_3, [4, 16, 16]), aten.unsqueeze.default(inputs[1], -1))
    del div_3

    # stage 1: 2 calls; at most 32.26 KiB live
    add_7 = aten.add.Tensor(add_6, mul_3)
    del add_6, mul_3
    embedding_dense_backward = aten.embedding_dense_backward.default(add_7, inputs[0], 32, -1, False)
    gradients["embedding.weight"] = embedding_dense_backward
    del add_7, embedding_dense_backward
    yield "embedding.weight"
