"""A substitute for the fingerprint's digest in virtual time."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from monitor.simulate.gpu.gpu import Gpu
from monitor.simulate.world import World


@dataclass
class Digests:
    """The digest of what is served; it changes with every root field that is visible from
    outside.
    """

    world: World
    _at_change: int = -1
    _digest: str = ""

    def now(self) -> str:
        """The present digest, computed again after a setting changed."""
        if self._at_change != self.world.changes:
            self._at_change, self._digest = self.world.changes, digest(self.world)
        return self._digest


def digest(world: World) -> str:
    """The digest of what is visible now."""
    identity = world.identity
    gpus = [
        (gpu.uuid, gpu.driver_version, gpu.limit_w) for gpu in world.gpus if isinstance(gpu, Gpu)
    ]
    seen = [
        identity.version,
        identity.root,
        identity.max_model_len,
        identity.template,
        world.answers == "lost-bos",
        gpus,
    ]
    seen += [world.system_fingerprint(), identity.quantization, world.config.enable_prefix_caching]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:12]
