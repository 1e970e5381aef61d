"""Gradients of data-parallel training, exchanged under a compression plan: `treadle.compress.attach(model, plan)`."""

from __future__ import annotations

from treadle.compress.models import attach
from treadle.runtime.compression.handle import CompressedExchange, ExchangeStatistics

__all__ = ["CompressedExchange", "ExchangeStatistics", "attach"]
