"""One training step of zoo under a memory budget of 1 TiB. Made by treadle; do not edit.

Peak of live tensor bytes: 251.2 KiB counted value by value over the calls below, 0 B in the plan.
17 forward calls, 20 backward calls in 31 stages, 0 calls recomputed.
"""

import torch

from treadle import kernels
from treadle.runtime import inverting

aten = torch.ops.aten

# What the step expects: [dtype, shape] of parameters and buffers, [dtype, shape, stride] of inputs. TANGENTS lists the
# outputs that take a gradient, GRADIENTS the names that `backward` yields, in its order, FROZEN what must require none,
# EVALUATING the modules in evaluation mode.
# CALLED is what the step is called with: trees of values, with the numbers of INPUTS.
# HANDED are the gradients with which those before them, back to the one named before, are handed over.
# SCALES are the scales, each with its shift, by which the backward pass divides.
PARAMETERS = {
    "stem.weight": ["float32", [8, 3, 5, 5]],
    "stem.bias": ["float32", [8]],
    "norm.weight": ["float32", [8]],
    "norm.bias": ["float32", [8]],
    "conv.weight": ["float32", [8, 8, 3, 3]],
    "conv.bias": ["float32", [8]],
    "hidden.weight": ["float32", [32, 128]],
    "hidden.bias": ["float32", [32]],
    "layer_norm.weight": ["float32", [32]],
    "layer_norm.bias": ["float32", [32]],
    "output.weight": ["float32", [5, 32]],
    "output.bias": ["float32", [5]],
}
BUFFERS = {
    "norm.running_mean": ["float32", [8]],
    "norm.running_var": ["float32", [8]],
    "norm.num_batches_tracked": ["int64", []],
}
CALLED = {"args": [{"tensor": 0}, {"tensor": 1}], "kwargs": {}, "parameters": ["images", "labels"]}
INPUTS = [["float32", [6, 3, 16, 16], [768, 256, 16, 1]], ["int64", [6], [1]]]
TANGENTS = [0]
GRADIENTS = [
    "output.weight",
    "output.bias",
    "layer_norm.weight",
    "layer_norm.bias",
    "hidden.weight",
    "hidden.bias",
    "conv.bias",
    "conv.weight",
    "norm.weight",
    "norm.bias",
    "stem.weight",
    "stem.bias",
]
HANDED = [
    "output.weight",
    "output.bias",
    "layer_norm.bias",
    "hidden.weight",
    "hidden.bias",
    "conv.bias",
    "conv.weight",
    "norm.bias",
    "stem.bias",
]
FROZEN = ["input 0", "input 1"]
EVALUATING = []
SCALES = [["layer_norm.weight", "layer_norm.bias"]]


def returned(outputs):
    """The outputs as the step returns them."""
    return outputs[0]


# FORWARD
def forward(parameters, buffers, inputs):
    """Outputs of the step, and what the backward pass needs of it."""
    # stage 32: 17 calls; at most 178.7 KiB live
    saved = {}
    convolution = kernels.conv2d_im2col(
        inputs[0],
        parameters["stem.weight"],
        parameters["stem.bias"],
        [1, 1],
        [2, 2],
        [1, 1],
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
    del native_batch_norm_legit_functional_out3, native_batch_norm_legit_functional_out4
    relu = aten.relu_.default(native_batch_norm_legit_functional_out0)
    del native_batch_norm_legit_functional_out0
    max_pool2d_with_indices_out0 = kernels.max_pool2d(relu, [2, 2], [2, 2], [0, 0], [1, 1], False)
    convolution_1 = aten.convolution.default(
        max_pool2d_with_indices_out0,
        parameters["conv.weight"],
        parameters["conv.bias"],
        [1, 1],
        [1, 1],
        [1, 1],
        False,
        [0, 0],
        1,
    )
    hardtanh = aten.hardtanh_.default(convolution_1, 0, 6)
    del convolution_1
    add_1 = aten.add.Tensor(hardtanh, max_pool2d_with_indices_out0)
    max_pool2d_with_indices_1_out0 = kernels.max_pool2d(add_1, [2, 2], [2, 2], [0, 0], [1, 1], False)
    native_dropout_out0, native_dropout_out1 = aten.native_dropout.default(max_pool2d_with_indices_1_out0, 0.4, True)
    del max_pool2d_with_indices_1_out0
    addmm = aten.addmm.default(
        parameters["hidden.bias"],
        aten.reshape.default(native_dropout_out0, [6, 128]),
        aten.t.default(parameters["hidden.weight"]),
    )
    native_layer_norm_out0, native_layer_norm_out1, native_layer_norm_out2 = aten.native_layer_norm.default(
        addmm,
        [32],
        parameters["layer_norm.weight"],
        parameters["layer_norm.bias"],
        1e-05,
    )
    saved["spare native_layer_norm_backward"] = inverting.spare(
        [addmm, native_layer_norm_out1],
        parameters["layer_norm.weight"],
        parameters["layer_norm.bias"],
        "layer_norm.weight",
    )
    del addmm, native_layer_norm_out1
    relu_1 = aten.relu.default(native_layer_norm_out0)
    relu_1_mask = kernels.relu_mask(relu_1)
    addmm_1 = aten.addmm.default(parameters["output.bias"], relu_1, aten.t.default(parameters["output.weight"]))
    log_softmax = aten._log_softmax.default(addmm_1, 1, False)
    del addmm_1
    nll_loss_forward_out0, nll_loss_forward_out1 = aten.nll_loss_forward.default(log_softmax, inputs[1], None, 1, -100)
    saved["log_softmax"] = log_softmax
    saved["native_batch_norm_legit_functional_out1"] = native_batch_norm_legit_functional_out1
    saved["native_batch_norm_legit_functional_out2"] = native_batch_norm_legit_functional_out2
    saved["add_1"] = add_1
    saved["convolution"] = convolution
    saved["hardtanh"] = hardtanh
    saved["max_pool2d_with_indices_out0"] = max_pool2d_with_indices_out0
    saved["native_dropout_out0"] = native_dropout_out0
    saved["native_dropout_out1"] = native_dropout_out1
    saved["native_layer_norm_out0"] = native_layer_norm_out0
    saved["native_layer_norm_out2"] = native_layer_norm_out2
    saved["nll_loss_forward_out1"] = nll_loss_forward_out1
    saved["relu"] = relu
    saved["relu_1"] = relu_1
    saved["relu_1_mask"] = relu_1_mask
    return [nll_loss_forward_out0], saved


# BACKWARD
def backward(saved, parameters, buffers, inputs, tangents, gradients):
    """Empty `saved` and `tangents`; put each gradient into `gradients` and yield its name as soon as it is ready."""
    tangent_0 = tangents.pop(0)
    log_softmax = saved.pop("log_softmax")
    native_batch_norm_legit_functional_out1 = saved.pop("native_batch_norm_legit_functional_out1")
    native_batch_norm_legit_functional_out2 = saved.pop("native_batch_norm_legit_functional_out2")
    add_1 = saved.pop("add_1")
    convolution = saved.pop("convolution")
    hardtanh = saved.pop("hardtanh")
    max_pool2d_with_indices_out0 = saved.pop("max_pool2d_with_indices_out0")
    native_dropout_out0 = saved.pop("native_dropout_out0")
    native_dropout_out1 = saved.pop("native_dropout_out1")
    native_layer_norm_out0 = saved.pop("native_layer_norm_out0")
    native_layer_norm_out2 = saved.pop("native_layer_norm_out2")
    nll_loss_forward_out1 = saved.pop("nll_loss_forward_out1")
    relu = saved.pop("relu")
    relu_1 = saved.pop("relu_1")
    relu_1_mask = saved.pop("relu_1_mask")

    # stage 31: 1 call; at most 177.5 KiB live
    nll_loss_backward = aten.nll_loss_backward.default(
        tangent_0,
        log_softmax,
        inputs[1],
        None,
        1,
        -100,
        nll_loss_forward_out1,
    )
    del nll_loss_forward_out1, tangent_0

    # stage 30: 1 call; at most 177.6 KiB live
    log_softmax_backward_data = aten._log_softmax_backward_data.default(
        nll_loss_backward,
        log_softmax,
        1,
        torch.float32,
    )
    del log_softmax, nll_loss_backward

    # stage 27: 1 call; at most 178 KiB live
    mm_1 = aten.mm.default(aten.t.default(log_softmax_backward_data), relu_1)
    del relu_1

    # stage 26: 1 call; at most 178 KiB live
    mm = aten.mm.default(log_softmax_backward_data, parameters["output.weight"])
    gradients["output.weight"] = mm_1
    del mm_1
    yield "output.weight"

    # stage 24: 1 call; at most 178 KiB live
    sum_1 = aten.sum.dim_IntList(log_softmax_backward_data, [0], True)
    gradients["output.bias"] = aten.reshape.default(sum_1, [5])
    del log_softmax_backward_data, sum_1
    yield "output.bias"

    # stage 21: 1 call; at most 178.6 KiB live
    threshold_backward = kernels.relu_backward_mask(mm, relu_1_mask)
    del mm, relu_1_mask

    # stage 20: 1 call; at most 178.8 KiB live
    spare = saved.pop("spare native_layer_norm_backward")
    if spare is None:
        (
            native_layer_norm_backward_out0,
            native_layer_norm_backward_out1,
            native_layer_norm_backward_out2,
        ) = kernels.layer_norm_backward_output(
            threshold_backward,
            native_layer_norm_out0,
            [32],
            parameters["layer_norm.weight"],
            parameters["layer_norm.bias"],
            native_layer_norm_out2,
            [True, True, True],
        )
    else:
        (
            native_layer_norm_backward_out0,
            native_layer_norm_backward_out1,
            native_layer_norm_backward_out2,
        ) = aten.native_layer_norm_backward.default(
            threshold_backward,
            spare[0],
            [32],
            spare[1],
            native_layer_norm_out2,
            parameters["layer_norm.weight"],
            parameters["layer_norm.bias"],
            [True, True, True],
        )
    del spare
    gradients["layer_norm.weight"] = native_layer_norm_backward_out1
    gradients["layer_norm.bias"] = native_layer_norm_backward_out2
    del native_layer_norm_backward_out1, native_layer_norm_backward_out2, native_layer_norm_out0
    del native_layer_norm_out2, threshold_backward
    yield "layer_norm.weight"
    yield "layer_norm.bias"

    # stage 17: 1 call; at most 193.3 KiB live
    mm_3 = aten.mm.default(
        aten.t.default(native_layer_norm_backward_out0),
        aten.reshape.default(native_dropout_out0, [6, 128]),
    )
    del native_dropout_out0

    # stage 16: 1 call; at most 193.3 KiB live
    mm_2 = aten.mm.default(native_layer_norm_backward_out0, parameters["hidden.weight"])
    gradients["hidden.weight"] = mm_3
    del mm_3
    yield "hidden.weight"

    # stage 14: 1 call; at most 193.4 KiB live
    sum_2 = aten.sum.dim_IntList(native_layer_norm_backward_out0, [0], True)
    gradients["hidden.bias"] = aten.reshape.default(sum_2, [32])
    del native_layer_norm_backward_out0, sum_2
    yield "hidden.bias"

    # stage 10: 1 call; at most 195.7 KiB live
    native_dropout_backward = aten.native_dropout_backward.default(
        aten.reshape.default(mm_2, [6, 8, 4, 4]),
        native_dropout_out1,
        1.6666666666666667,
    )
    del mm_2, native_dropout_out1

    # stage 9: 1 call; at most 203.9 KiB live
    max_pool2d_with_indices_backward = kernels.max_pool2d_backward(
        native_dropout_backward,
        add_1,
        [2, 2],
        [2, 2],
        [0, 0],
        [1, 1],
        False,
    )
    del add_1, native_dropout_backward

    # stage 8: 1 call; at most 200.9 KiB live
    hardtanh_backward = aten.hardtanh_backward.default(max_pool2d_with_indices_backward, hardtanh, 0, 6)
    del hardtanh

    # stage 7: 1 call; at most 191.2 KiB live
    convolution_backward_out1, convolution_backward_out2 = kernels.conv2d_weight_gradient(
        hardtanh_backward,
        max_pool2d_with_indices_out0,
        [8, 8, 3, 3],
        True,
        [1, 1],
        [1, 1],
        [1, 1],
        1,
        "direct",
    )
    gradients["conv.bias"] = convolution_backward_out2
    del convolution_backward_out2, max_pool2d_with_indices_out0
    yield "conv.bias"

    # stage 6: 1 call; at most 191.2 KiB live
    convolution_backward_out0 = kernels.conv2d_input_gradient(
        hardtanh_backward,
        parameters["conv.weight"],
        [6, 8, 8, 8],
        [1, 1],
        [1, 1],
        [1, 1],
        1,
        "direct",
    )
    gradients["conv.weight"] = convolution_backward_out1
    del convolution_backward_out1, hardtanh_backward
    yield "conv.weight"

    # stage 5: 1 call; at most 191.2 KiB live
    add_2 = aten.add.Tensor(max_pool2d_with_indices_backward, convolution_backward_out0)
    del convolution_backward_out0, max_pool2d_with_indices_backward

    # stage 4: 1 call; at most 215.2 KiB live
    max_pool2d_with_indices_backward_1 = kernels.max_pool2d_backward(add_2, relu, [2, 2], [2, 2], [0, 0], [1, 1], False)
    del add_2

    # stage 3: 1 call; at most 251.2 KiB live
    threshold_backward_1 = aten.threshold_backward.default(max_pool2d_with_indices_backward_1, relu, 0)
    del max_pool2d_with_indices_backward_1, relu

    # stage 2: 1 call; at most 203.3 KiB live
    (
        native_batch_norm_backward_out0,
        native_batch_norm_backward_out1,
        native_batch_norm_backward_out2,
    ) = aten.native_batch_norm_backward.default(
        threshold_backward_1,
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
    del native_batch_norm_backward_out1, native_batch_norm_backward_out2, threshold_backward_1
    yield "norm.weight"
    yield "norm.bias"

    # stage 1: 1 call; at most 109.6 KiB live
    convolution_backward_1_out1, convolution_backward_1_out2 = kernels.conv2d_weight_gradient(
        native_batch_norm_backward_out0,
        inputs[0],
        [8, 3, 5, 5],
        True,
        [1, 1],
        [2, 2],
        [1, 1],
        1,
        "direct",
    )
    gradients["stem.weight"] = convolution_backward_1_out1
    gradients["stem.bias"] = convolution_backward_1_out2
    del convolution_backward_1_out1, convolution_backward_1_out2, native_batch_norm_backward_out0
    yield "stem.weight"
    yield "stem.bias"
