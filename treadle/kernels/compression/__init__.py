"""Compressors of gradients: encoders, decoders, and what they keep from step to step."""

from treadle.kernels.compression.codec import Codec, codec
from treadle.kernels.compression.feedback import Feedback
from treadle.kernels.compression.powersgd import PowerSGD

__all__ = ["Codec", "Feedback", "PowerSGD", "codec"]
