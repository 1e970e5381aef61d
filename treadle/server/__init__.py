"""Training with parameters on a server: `treadle.server.attach(model, optimizer, address)`."""

from __future__ import annotations

from treadle.server.lamb import Lamb
from treadle.server.models import attach
from treadle.server.training import ServedTraining

__all__ = ["Lamb", "ServedTraining", "attach"]
