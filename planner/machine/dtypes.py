"""The dtypes of elements by their short names, and their sizes in bytes."""

from __future__ import annotations

from typing import Literal

Dtype = Literal["f16", "bf16", "f32", "f64", "i32", "i64", "bool"]
BYTES: dict[Dtype, int] = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i32": 4, "i64": 8, "bool": 1}
FLOATS: tuple[Dtype, ...] = ("f16", "bf16", "f32", "f64")
