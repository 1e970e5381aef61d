"""Loads the module MODULE with JAX on 8 devices that are CPUs; prints which indices of arrays each device holds.

python jax_worker.py MODULE < {"x": [4, 8]}
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

spec = importlib.util.spec_from_file_location("shardings", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
mesh = module.on(jax.devices())
found = {}
for name, shape in json.load(sys.stdin).items():
    for copy, specs in (("first", module.SPECS), ("second", module.SECOND)):
        if name in specs:
            values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
            placed = jax.device_put(values, module.sharding(name, mesh, specs))
            kept = jax.jit(jax.lax.with_sharding_constraint, static_argnums=1)(placed, placed.sharding)
            assert kept.sharding.is_equivalent_to(placed.sharding, len(shape))
            shards = sorted(placed.addressable_shards, key=lambda shard: shard.device.id)
            found[f"{name} {copy}"] = [np.asarray(shard.data).ravel().tolist() for shard in shards]
json.dump(found, sys.stdout)
