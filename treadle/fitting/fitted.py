"""A model that trains within a memory budget, whatever its batches are."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper

from treadle.fitting.call_form import ModelCall
from treadle.fitting.programs import HeldPrograms, Loss
from treadle.fitting.settings import FitSettings

log = logging.getLogger("treadle.fit")


class FittedModule(ActivationWrapper):
    """A model whose training calls run under plans. Its `state_dict`, parameters and other attributes are those of the
    model; in evaluation mode and under `torch.no_grad` the model itself runs."""

    def __init__(self, model: nn.Module, loss: Loss, settings: FitSettings) -> None:
        vars(self).update(programs=HeldPrograms(model, loss, settings), summary="")
        super().__init__(model)  # type: ignore[no-untyped-call]
        self.programs: HeldPrograms
        self.summary: str
        """What was done for the example batch, in one line."""

    @property
    def model(self) -> nn.Module:
        """The wrapped model."""
        model: nn.Module = self._checkpoint_wrapped_module
        return model

    @torch.compiler.disable(reason="a fitted module runs its own plans")  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and self.model.training:
            program = self.programs.of(ModelCall(args, kwargs))
            if program is not None:
                self._warn_of_held_gradients()
                return program(*args, **kwargs)
        loss = self.programs.loss
        return self.model(*args, **kwargs) if loss is None else loss(self.model, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        """Attributes are set on the model, except those of this class and new private ones."""
        model = vars(self).get("_modules", {}).get("_checkpoint_wrapped_module")
        own = model is None or name in vars(self) or hasattr(type(self), name)
        if own or (name.startswith("_") and not hasattr(model, name)):
            super().__setattr__(name, value)
        else:
            setattr(model, name, value)

    def extra_repr(self) -> str:
        return self.summary

    def _warn_of_held_gradients(self) -> None:
        settings = self.programs.settings
        if not settings.hold_gradients and any(parameter.grad is not None for parameter in self.model.parameters()):
            self.programs.warn_once(
                "gradients of an earlier step are still there, which the plan does not count; "
                "fit with hold_gradients=True where gradients are accumulated"
            )
