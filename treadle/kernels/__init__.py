"""Alternative implementations of operators: with other workspace, or from other kept tensors.

A trace names one as the target `treadle.NAME`. They are plain functions of tensors, numbers and lists of numbers, work
on every device, and are to be called without autograd. They do not change their inputs, except where the name ends in
`_`: then the result is written into the first input. Intermediate tensors are freed as soon as they are read.
"""

from treadle.kernels.activation import (
    hardtanh_backward_,
    hardtanh_backward_output,
    relu_backward_mask,
    relu_backward_mask_,
    relu_mask,
    threshold_backward_,
)
from treadle.kernels.convolution_cudnn import conv2d_cudnn, conv2d_cudnn_input_gradient, conv2d_cudnn_weight_gradient
from treadle.kernels.convolution_fft import conv2d_fft
from treadle.kernels.convolution_gradients import (
    conv2d_input_gradient,
    conv2d_weight_gradient,
    convolution_input_gradient,
    convolution_weight_gradient,
)
from treadle.kernels.convolution_im2col import conv2d_im2col, conv2d_im2col_sample
from treadle.kernels.convolution_winograd import conv2d_winograd
from treadle.kernels.dropout import dropout_backward_packed, dropout_backward_rng, dropout_mask_pack, rng_state
from treadle.kernels.normalisation import (
    batch_norm_again,
    batch_norm_backward_output,
    layer_norm_backward_output,
    safe_to_invert,
)
from treadle.kernels.pooling import max_pool2d, max_pool2d_backward, max_pool2d_backward_index, max_pool2d_index

__all__ = [
    "batch_norm_again",
    "batch_norm_backward_output",
    "conv2d_cudnn",
    "conv2d_cudnn_input_gradient",
    "conv2d_cudnn_weight_gradient",
    "conv2d_fft",
    "conv2d_im2col",
    "conv2d_im2col_sample",
    "conv2d_input_gradient",
    "conv2d_weight_gradient",
    "conv2d_winograd",
    "convolution_input_gradient",
    "convolution_weight_gradient",
    "dropout_backward_packed",
    "dropout_backward_rng",
    "dropout_mask_pack",
    "hardtanh_backward_",
    "hardtanh_backward_output",
    "layer_norm_backward_output",
    "max_pool2d",
    "max_pool2d_backward",
    "max_pool2d_backward_index",
    "max_pool2d_index",
    "relu_backward_mask",
    "relu_backward_mask_",
    "relu_mask",
    "rng_state",
    "safe_to_invert",
    "threshold_backward_",
]
