"""What stands for the fingerprint's digest in virtual time."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from monitor.simulate.gpu.gpu import Gpu
from monitor.simulate.world import World


@dataclass
class Digests:
    """It changes when one of the root fields changes that can be seen from outside. `first`: as it
    was when the history began.
    """

    world: World
    first: str = field(init=False)
    _at_change: int = -1
    _digest: str = ""

    def __post_init__(self) -> None:
        """As it is at first."""
        self.first = self.now()

    def now(self) -> str:
        """As it is now; worked out anew after something was set."""
        if self._at_change != self.world.changes:
            self._at_change, self._digest = self.world.changes, digest(self.world)
        return self._digest


def digest(world: World) -> str:
    """Of what can be seen now."""
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
