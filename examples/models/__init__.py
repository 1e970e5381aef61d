"""Reference networks in plain PyTorch, ready for `treadle trace capture MODULE:FUNCTION`.

The convention of an entry function, here and in your own code:

    def function(*, batch=..., ...) -> tuple[nn.Module, tuple[Tensor, ...], Callable | None]:
        return model, inputs, loss

- Every argument has a default, so that the function can be called without any.
- `inputs` holds all tensors one step needs, targets included, e.g. `(images, labels)`.
- With a loss the step computes `loss(model, *inputs)`, a scalar; without one (`None`, or left out of the tuple) it
  computes `model(*inputs)`.
- Every tensor the step uses is a parameter or buffer of the model or one of the inputs.
- Weights and inputs come from the global generator, so `torch.manual_seed` decides them, and nothing reads their
  values: under `FakeTensorMode` or `torch.device("meta")` the largest model is built without its memory.

Batch sizes default to the largest that fit a 16 GB P100 without any planning (MONeT, section 4.5), where it names one.
"""
