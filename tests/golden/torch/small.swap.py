"""One iteration of small with 2 KiB of device memory. Made by treadle; do not edit.

Predicted: 76.153 us, of which the operators take 61.675 us. 832 B are copied in, 576 B out.
Tensors lie in an arena of 2 KiB.
"""

import torch

from treadle.runtime.swap.step import T, compute, copy_in, copy_out, drop

aten = torch.ops.aten

ARENA_BYTES = 2048
MACHINE = {
    "memory_bytes": 2048,
    "in_bandwidth": 1000000000,
    "out_bandwidth": 1000000000,
    "together": (5, 6),
    "copy_ns": 1000,
}
PREDICTED_NS = 76153

# What the step expects of the model, and its inputs: name and storage. OPTIMIZER is what the step adds to the model's
# own, zero at first. OUTPUTS are handed to the caller.
# CALLED is what the step is called with: trees of values, with the numbers of INPUTS.
NAME = "small"
PARAMETERS = {"0.weight": "parameter_0", "0.bias": "parameter_1", "2.weight": "parameter_2", "2.bias": "parameter_3"}
BUFFERS = {}
OPTIMIZER = {}
CALLED = {"args": [{"tensor": 0}, {"tensor": 1}], "kwargs": {}, "parameters": ["x", "y"]}
INPUTS = ["input_0", "input_1"]
TANGENTS = ["tangent_0"]
OUTPUTS = ["mse_loss"]
UPDATES = []
EVALUATING = []
TRAINING = True

# Storage: bytes, dtype, shape and strides of the tensor that owns it.
STORAGES = {
    "parameter_0": [96, "float32", [8, 3], [3, 1]],
    "parameter_1": [32, "float32", [8], [1]],
    "parameter_2": [64, "float32", [2, 8], [8, 1]],
    "parameter_3": [16, "float32", [2], [1]],
    "input_0": [48, "float32", [4, 3], [3, 1]],
    "input_1": [32, "float32", [4, 2], [2, 1]],
    "tangent_0": [16, "float32", [], []],
    "addmm": [128, "float32", [4, 8], [8, 1]],
    "tanh": [128, "float32", [4, 8], [8, 1]],
    "addmm_1": [32, "float32", [4, 2], [2, 1]],
    "mse_loss": [32, "float32", [], []],
    "mse_loss_backward": [32, "float32", [4, 2], [2, 1]],
    "mm": [128, "float32", [4, 8], [8, 1]],
    "mm_1": [64, "float32", [2, 8], [8, 1]],
    "sum_1": [16, "float32", [1, 2], [2, 1]],
    "tanh_backward": [128, "float32", [4, 8], [8, 1]],
    "mm_2": [96, "float32", [8, 3], [3, 1]],
    "sum_2": [32, "float32", [1, 8], [8, 1]],
}

# Places in the arena: address of the first, bytes of each, how many.
POOL = [[0, 512, 4]]

# Where parameters and states lie on the device between iterations; every other one is on the host.
INITIAL = {"parameter_1": 0, "parameter_0": 512}
FINAL = {"parameter_1": 1024, "parameter_0": 1536}


def returned(outputs):
    """The outputs as the step returns them."""
    return outputs[0]


# OPERATORS
def calls(device):
    """By name: operator, arguments, results. In the order of the model; those that no node computes are views."""
    options_0 = {
        "lr": 0.001,
        "weight_decay": 0.0,
        "momentum": 0.0,
        "dampening": 0.0,
        "nesterov": False,
        "maximize": False,
        "is_first_step": False,
    }
    return {
        "t": (aten.t.default, [T("parameter_0")], {}, ["t"]),
        "addmm": (aten.addmm.default, [T("parameter_1"), T("input_0"), T("t")], {}, ["addmm"]),
        "tanh": (aten.tanh.default, [T("addmm")], {}, ["tanh"]),
        "t_1": (aten.t.default, [T("parameter_2")], {}, ["t_1"]),
        "addmm_1": (aten.addmm.default, [T("parameter_3"), T("tanh"), T("t_1")], {}, ["addmm_1"]),
        "mse_loss": (aten.mse_loss.default, [T("addmm_1"), T("input_1")], {}, ["mse_loss"]),
        "mse_loss_backward": (
            aten.mse_loss_backward.default,
            [T("tangent_0"), T("addmm_1"), T("input_1"), 1],
            {},
            ["mse_loss_backward"],
        ),
        "t_2": (aten.t.default, [T("t_1")], {}, ["t_2"]),
        "mm": (aten.mm.default, [T("mse_loss_backward"), T("t_2")], {}, ["mm"]),
        "t_3": (aten.t.default, [T("mse_loss_backward")], {}, ["t_3"]),
        "mm_1": (aten.mm.default, [T("t_3"), T("tanh")], {}, ["mm_1"]),
        "t_4": (aten.t.default, [T("mm_1")], {}, ["t_4"]),
        "sum_1": (aten.sum.dim_IntList, [T("mse_loss_backward"), [0], True], {}, ["sum_1"]),
        "view": (aten.view.default, [T("sum_1"), [2]], {}, ["view"]),
        "t_5": (aten.t.default, [T("t_4")], {}, ["t_5"]),
        "tanh_backward": (aten.tanh_backward.default, [T("mm"), T("tanh")], {}, ["tanh_backward"]),
        "t_6": (aten.t.default, [T("tanh_backward")], {}, ["t_6"]),
        "mm_2": (aten.mm.default, [T("t_6"), T("input_0")], {}, ["mm_2"]),
        "t_7": (aten.t.default, [T("mm_2")], {}, ["t_7"]),
        "sum_2": (aten.sum.dim_IntList, [T("tanh_backward"), [0], True], {}, ["sum_2"]),
        "view_1": (aten.view.default, [T("sum_2"), [8]], {}, ["view_1"]),
        "t_8": (aten.t.default, [T("t_7")], {}, ["t_8"]),
        "sgd_0": (aten._fused_sgd_.default, [[T("parameter_2")], [T("t_5")], []], options_0, []),
        "sgd_1": (aten._fused_sgd_.default, [[T("parameter_3")], [T("view")], []], options_0, []),
        "sgd_2": (aten._fused_sgd_.default, [[T("parameter_0")], [T("t_8")], []], options_0, []),
        "sgd_3": (aten._fused_sgd_.default, [[T("parameter_1")], [T("view_1")], []], options_0, []),
    }


# NODES in the order in which they are issued, each with the nodes it waits for. A node is numbered by its place here.
NODES = [
    copy_in("input_0", 1024),  # 0, 0.000 us
    compute("addmm", {"addmm": 1536}, after=[0]),  # 1, 1.048 us
    copy_out("parameter_1", after=[1]),  # 2, 5.166 us
    drop("input_0", after=[1]),  # 3, 5.166 us
    compute("tanh", {"tanh": 0}, ends=["addmm"], after=[1, 2]),  # 4, 6.198 us
    copy_out("parameter_0", after=[1]),  # 5, 6.198 us
    copy_in("parameter_2", 512, after=[5]),  # 6, 7.294 us
    copy_in("parameter_3", 1536, after=[4]),  # 7, 10.314 us
    compute("addmm_1", {"addmm_1": 1024}, after=[3, 4, 6, 7]),  # 8, 11.330 us
    drop("parameter_3", after=[8]),  # 9, 15.444 us
    copy_in("input_1", 1536, after=[9]),  # 10, 15.444 us
    copy_out("tanh", after=[8]),  # 11, 15.444 us
    drop("parameter_2", after=[8]),  # 12, 15.444 us
    compute("mse_loss", {"mse_loss": 0}, after=[8, 10, 11]),  # 13, 16.779 us
    copy_out("mse_loss", after=[13]),  # 14, 20.883 us
    copy_in("tangent_0", 0, after=[14]),  # 15, 21.915 us
    # 16, 22.931 us
    compute(
        "mse_loss_backward",
        {"mse_loss_backward": 512},
        ends=["addmm_1", "input_1", "tangent_0"],
        after=[12, 13, 15],
    ),
    copy_in("parameter_2", 0, after=[12, 16]),  # 17, 27.037 us
    compute("mm", {"mm": 1024}, after=[16, 17]),  # 18, 28.101 us
    copy_in("tanh", 1536, after=[11, 16]),  # 19, 28.101 us
    drop("parameter_2", after=[18]),  # 20, 32.215 us
    compute("mm_1", {"mm_1": 0}, after=[18, 19, 20]),  # 21, 32.215 us
    copy_out("mm_1", after=[21]),  # 22, 36.329 us
    compute("sum_1", {"sum_1": 0}, ends=["mse_loss_backward"], after=[21, 22]),  # 23, 37.393 us
    compute("tanh_backward", {"tanh_backward": 512}, ends=["tanh", "mm"], after=[23]),  # 24, 41.496 us
    copy_out("sum_1", after=[23]),  # 25, 41.496 us
    copy_in("mm_1", 0, after=[22, 25]),  # 26, 42.512 us
    copy_in("input_0", 1024, after=[3, 24]),  # 27, 45.619 us
    compute("mm_2", {"mm_2": 1536}, ends=["input_0"], after=[24, 27]),  # 28, 46.667 us
    compute("sum_2", {"sum_2": 1024}, ends=["tanh_backward"], after=[28]),  # 29, 50.783 us
    copy_out("mm_2", after=[28]),  # 30, 50.783 us
    copy_in("sum_1", 1536, after=[25, 30]),  # 31, 51.879 us
    copy_in("parameter_2", 512, after=[20, 29]),  # 32, 54.893 us
    copy_out("sum_2", after=[29]),  # 33, 54.893 us
    compute("sgd_0", ends=["mm_1"], after=[26, 29, 32]),  # 34, 56.164 us
    copy_in("mm_2", 1024, after=[30, 33]),  # 35, 56.164 us
    copy_in("parameter_3", 0, after=[9, 34]),  # 36, 60.276 us
    copy_out("parameter_2", after=[34]),  # 37, 60.276 us
    compute("sgd_1", ends=["sum_1"], after=[31, 34, 36]),  # 38, 61.496 us
    copy_in("sum_2", 512, after=[33, 37]),  # 39, 61.544 us
    copy_in("parameter_0", 1536, after=[5, 38]),  # 40, 65.598 us
    copy_out("parameter_3", after=[38]),  # 41, 65.598 us
    compute("sgd_2", ends=["mm_2"], after=[35, 38, 40]),  # 42, 66.898 us
    copy_in("parameter_1", 1024, after=[2, 42]),  # 43, 71.015 us
    compute("sgd_3", ends=["sum_2"], after=[39, 42, 43]),  # 44, 72.047 us
]
