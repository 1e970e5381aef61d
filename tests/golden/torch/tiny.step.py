"""One training step of tiny under a memory budget of 1 TiB. Made by treadle; do not edit.

Peak of live tensor bytes: 26.61 KiB counted value by value over the calls below, 36.52 KiB in the plan.
12 forward calls, 17 backward calls in 12 stages, 20 calls recomputed.
"""

import torch

from treadle.runtime import rng

aten = torch.ops.aten

# What the step expects: [dtype, shape] of parameters and buffers, [dtype, shape, stride] of inputs. TANGENTS lists the
# outputs that take a gradient, GRADIENTS the names that `backward` yields, in its order, FROZEN what must require none,
# EVALUATING the modules in evaluation mode.
# CALLED is what the step is called with: trees of values, with the numbers of INPUTS.
# HANDED are the gradients with which those before them, back to the one named before, are handed over.
PARAMETERS = {
    "conv.weight": ["float32", [4, 2, 3, 3]],
    "norm.weight": ["float32", [4]],
    "norm.bias": ["float32", [4]],
    "linear.weight": ["float32", [32, 32]],
    "linear.bias": ["float32", [32]],
}
BUFFERS = {
    "norm.running_mean": ["float32", [4]],
    "norm.running_var": ["float32", [4]],
    "norm.num_batches_tracked": ["int64", []],
}
CALLED = {"args": [{"tensor": 0}, {"tensor": 1}], "kwargs": {}, "parameters": ["x", "y"]}
INPUTS = [["float32", [3, 2, 8, 8], [128, 64, 8, 1]], ["float32", [3, 32], [32, 1]]]
TANGENTS = [0]
GRADIENTS = ["linear.bias", "linear.weight", "norm.weight", "norm.bias", "conv.weight"]
HANDED = ["linear.weight", "conv.weight"]
FROZEN = ["input 0", "input 1"]
EVALUATING = []


def returned(outputs):
    """The outputs as the step returns them."""
    return outputs[0]


# FORWARD
def forward(parameters, buffers, inputs):
    """Outputs of the step, and what the backward pass needs of it."""
    # stage 13: 12 calls; at most 21.35 KiB live
    device = next(iter([*parameters.values(), *buffers.values(), *inputs])).device
    saved = {}
    convolution = aten.convolution.default(
        inputs[0],
        parameters["conv.weight"],
        None,
        [1, 1],
        [1, 1],
        [1, 1],
        False,
        [0, 0],
        1,
    )
    add = aten.add.Tensor(buffers["norm.num_batches_tracked"], 1)
    buffers["norm.num_batches_tracked"].copy_(add)
    del add
    (
        native_batch_norm_legit_functional_out0,
        native_batch_norm_legit_functional_out1,
        native_batch_norm_legit_functional_out2,
        native_batch_norm_legit_functional_out3,
        native_batch_norm_legit_functional_out4,
    ) = aten._native_batch_norm_legit_functional.default(
        convolution,
        parameters["norm.weight"],
        parameters["norm.bias"],
        buffers["norm.running_mean"],
        buffers["norm.running_var"],
        True,
        0.1,
        1e-05,
    )
    buffers["norm.running_mean"].copy_(native_batch_norm_legit_functional_out3)
    buffers["norm.running_var"].copy_(native_batch_norm_legit_functional_out4)
    del native_batch_norm_legit_functional_out1, native_batch_norm_legit_functional_out2
    del native_batch_norm_legit_functional_out3, native_batch_norm_legit_functional_out4
    relu = aten.relu.default(native_batch_norm_legit_functional_out0)
    del native_batch_norm_legit_functional_out0
    neg = aten.neg.default(relu)
    cat = aten.cat.default([relu, neg], 1)
    del neg, relu
    avg_pool2d = aten.avg_pool2d.default(cat, [4, 4])
    del cat
    saved["generator native_dropout"] = rng.state(device)
    native_dropout_out0, native_dropout_out1 = aten.native_dropout.default(
        aten.reshape.default(avg_pool2d, [3, 32]),
        0.5,
        True,
    )
    del avg_pool2d, native_dropout_out1
    addmm = aten.addmm.default(
        parameters["linear.bias"],
        native_dropout_out0,
        aten.t.default(parameters["linear.weight"]),
    )
    del native_dropout_out0
    gelu = aten.gelu.default(addmm)
    addmm_1 = aten.addmm.default(parameters["linear.bias"], gelu, aten.t.default(parameters["linear.weight"]))
    del gelu
    mse_loss = aten.mse_loss.default(addmm_1, inputs[1])
    saved["addmm"] = addmm
    saved["addmm_1"] = addmm_1
    saved["convolution"] = convolution
    return [mse_loss], saved


# BACKWARD
def backward(saved, parameters, buffers, inputs, tangents, gradients):
    """Empty `saved` and `tangents`; put each gradient into `gradients` and yield its name as soon as it is ready."""
    device = next(iter([*parameters.values(), *buffers.values(), *inputs])).device
    tangent_0 = tangents.pop(0)
    addmm = saved.pop("addmm")
    addmm_1 = saved.pop("addmm_1")
    convolution = saved.pop("convolution")

    # stage 12: 1 call; at most 10.86 KiB live
    mse_loss_backward = aten.mse_loss_backward.default(tangent_0, addmm_1, inputs[1], 1)
    del addmm_1, tangent_0

    # stage 11: 1 call; at most 10.86 KiB live
    mm = aten.mm.default(mse_loss_backward, parameters["linear.weight"])

    # stage 10: 2 calls, 1 recomputed; at most 15.23 KiB live
    gelu = aten.gelu.default(addmm)
    mm_1 = aten.mm.default(aten.t.default(mse_loss_backward), gelu)
    del gelu

    # stage 9: 1 call; at most 14.98 KiB live
    sum_1 = aten.sum.dim_IntList(mse_loss_backward, [0], True)
    del mse_loss_backward

    # stage 8: 2 calls; at most 14.98 KiB live
    gelu_backward = aten.gelu_backward.default(mm, addmm)
    del addmm, mm
    mm_2 = aten.mm.default(gelu_backward, parameters["linear.weight"])

    # stage 7: 7 calls, 6 recomputed; at most 26.61 KiB live
    (
        native_batch_norm_legit_functional_out0,
        native_batch_norm_legit_functional_out1,
        native_batch_norm_legit_functional_out2,
        native_batch_norm_legit_functional_out3,
        native_batch_norm_legit_functional_out4,
    ) = aten._native_batch_norm_legit_functional.default(
        convolution,
        parameters["norm.weight"],
        parameters["norm.bias"],
        buffers["norm.running_mean"],
        buffers["norm.running_var"],
        True,
        0.1,
        1e-05,
    )
    del native_batch_norm_legit_functional_out1, native_batch_norm_legit_functional_out2
    del native_batch_norm_legit_functional_out3, native_batch_norm_legit_functional_out4
    relu = aten.relu.default(native_batch_norm_legit_functional_out0)
    del native_batch_norm_legit_functional_out0
    neg = aten.neg.default(relu)
    cat = aten.cat.default([relu, neg], 1)
    del neg, relu
    avg_pool2d = aten.avg_pool2d.default(cat, [4, 4])
    del cat
    with rng.replayed(saved["generator native_dropout"], device):
        native_dropout_out0, native_dropout_out1 = aten.native_dropout.default(
            aten.reshape.default(avg_pool2d, [3, 32]),
            0.5,
            True,
        )
    del avg_pool2d, native_dropout_out1
    mm_3 = aten.mm.default(aten.t.default(gelu_backward), native_dropout_out0)
    del native_dropout_out0

    # stage 6: 3 calls; at most 22.23 KiB live
    sum_2 = aten.sum.dim_IntList(gelu_backward, [0], True)
    del gelu_backward
    add_1 = aten.add.Tensor(aten.reshape.default(sum_1, [32]), aten.reshape.default(sum_2, [32]))
    gradients["linear.bias"] = add_1
    del add_1, sum_1, sum_2
    yield "linear.bias"
    add_2 = aten.add.Tensor(mm_1, mm_3)
    gradients["linear.weight"] = add_2
    del add_2, mm_1, mm_3
    yield "linear.weight"

    # stage 5: 7 calls, 6 recomputed; at most 26.23 KiB live
    (
        native_batch_norm_legit_functional_out0,
        native_batch_norm_legit_functional_out1,
        native_batch_norm_legit_functional_out2,
        native_batch_norm_legit_functional_out3,
        native_batch_norm_legit_functional_out4,
    ) = aten._native_batch_norm_legit_functional.default(
        convolution,
        parameters["norm.weight"],
        parameters["norm.bias"],
        buffers["norm.running_mean"],
        buffers["norm.running_var"],
        True,
        0.1,
        1e-05,
    )
    del native_batch_norm_legit_functional_out1, native_batch_norm_legit_functional_out2
    del native_batch_norm_legit_functional_out3, native_batch_norm_legit_functional_out4
    relu = aten.relu.default(native_batch_norm_legit_functional_out0)
    del native_batch_norm_legit_functional_out0
    neg = aten.neg.default(relu)
    cat = aten.cat.default([relu, neg], 1)
    del neg, relu
    avg_pool2d = aten.avg_pool2d.default(cat, [4, 4])
    del cat
    with rng.replayed(saved.pop("generator native_dropout"), device):
        native_dropout_out0, native_dropout_out1 = aten.native_dropout.default(
            aten.reshape.default(avg_pool2d, [3, 32]),
            0.5,
            True,
        )
    del avg_pool2d, native_dropout_out0
    native_dropout_backward = aten.native_dropout_backward.default(mm_2, native_dropout_out1, 2.0)
    del mm_2, native_dropout_out1

    # stage 4: 5 calls, 4 recomputed; at most 26.23 KiB live
    (
        native_batch_norm_legit_functional_out0,
        native_batch_norm_legit_functional_out1,
        native_batch_norm_legit_functional_out2,
        native_batch_norm_legit_functional_out3,
        native_batch_norm_legit_functional_out4,
    ) = aten._native_batch_norm_legit_functional.default(
        convolution,
        parameters["norm.weight"],
        parameters["norm.bias"],
        buffers["norm.running_mean"],
        buffers["norm.running_var"],
        True,
        0.1,
        1e-05,
    )
    del native_batch_norm_legit_functional_out1, native_batch_norm_legit_functional_out2
    del native_batch_norm_legit_functional_out3, native_batch_norm_legit_functional_out4
    relu = aten.relu.default(native_batch_norm_legit_functional_out0)
    del native_batch_norm_legit_functional_out0
    neg = aten.neg.default(relu)
    cat = aten.cat.default([relu, neg], 1)
    del neg, relu
    avg_pool2d_backward = aten.avg_pool2d_backward.default(
        aten.reshape.default(native_dropout_backward, [3, 8, 2, 2]),
        cat,
        [4, 4],
        [],
        [0, 0],
        False,
        True,
        None,
    )
    del cat, native_dropout_backward

    # stage 3: 2 calls; at most 25.86 KiB live
    neg_1 = aten.neg.default(aten.slice.Tensor(avg_pool2d_backward, 1, 4, 8))
    add_3 = aten.add.Tensor(aten.slice.Tensor(avg_pool2d_backward, 1, 0, 4), neg_1)
    del avg_pool2d_backward, neg_1

    # stage 2: 3 calls, 2 recomputed; at most 22.86 KiB live
    (
        native_batch_norm_legit_functional_out0,
        native_batch_norm_legit_functional_out1,
        native_batch_norm_legit_functional_out2,
        native_batch_norm_legit_functional_out3,
        native_batch_norm_legit_functional_out4,
    ) = aten._native_batch_norm_legit_functional.default(
        convolution,
        parameters["norm.weight"],
        parameters["norm.bias"],
        buffers["norm.running_mean"],
        buffers["norm.running_var"],
        True,
        0.1,
        1e-05,
    )
    del native_batch_norm_legit_functional_out1, native_batch_norm_legit_functional_out2
    del native_batch_norm_legit_functional_out3, native_batch_norm_legit_functional_out4
    relu = aten.relu.default(native_batch_norm_legit_functional_out0)
    del native_batch_norm_legit_functional_out0
    threshold_backward = aten.threshold_backward.default(add_3, relu, 0)
    del add_3, relu

    # stage 1: 3 calls, 1 recomputed; at most 19.92 KiB live
    (
        native_batch_norm_legit_functional_out0,
        native_batch_norm_legit_functional_out1,
        native_batch_norm_legit_functional_out2,
        native_batch_norm_legit_functional_out3,
        native_batch_norm_legit_functional_out4,
    ) = aten._native_batch_norm_legit_functional.default(
        convolution,
        parameters["norm.weight"],
        parameters["norm.bias"],
        buffers["norm.running_mean"],
        buffers["norm.running_var"],
        True,
        0.1,
        1e-05,
    )
    del native_batch_norm_legit_functional_out0, native_batch_norm_legit_functional_out3
    del native_batch_norm_legit_functional_out4
    (
        native_batch_norm_backward_out0,
        native_batch_norm_backward_out1,
        native_batch_norm_backward_out2,
    ) = aten.native_batch_norm_backward.default(
        threshold_backward,
        convolution,
        parameters["norm.weight"],
        buffers["norm.running_mean"],
        buffers["norm.running_var"],
        native_batch_norm_legit_functional_out1,
        native_batch_norm_legit_functional_out2,
        True,
        1e-05,
        [True, True, True],
    )
    gradients["norm.weight"] = native_batch_norm_backward_out1
    gradients["norm.bias"] = native_batch_norm_backward_out2
    del native_batch_norm_legit_functional_out1, native_batch_norm_legit_functional_out2, convolution
    del native_batch_norm_backward_out1, native_batch_norm_backward_out2, threshold_backward
    yield "norm.weight"
    yield "norm.bias"
    _, convolution_backward_out1, _ = aten.convolution_backward.default(
        native_batch_norm_backward_out0,
        inputs[0],
        parameters["conv.weight"],
        [0],
        [1, 1],
        [1, 1],
        [1, 1],
        False,
        [0, 0],
        1,
        [False, True, False],
    )
    gradients["conv.weight"] = convolution_backward_out1
    del convolution_backward_out1, native_batch_norm_backward_out0
    yield "conv.weight"
