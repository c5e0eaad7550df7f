"""The control endpoint: reads and changes settings and the scenario.

GET  /-/control                                           all settings, and the running scenario
POST /-/control {"max_model_len": 4096, "restart": true}  names of World.settable, in this order;
                                                          and "scenario": a name or a file
"""

from __future__ import annotations

from typing import Any

from monitor.errors import UserError
from monitor.simulate.api.validation import ApiError
from monitor.simulate.assemble import switch
from monitor.simulate.scenarios.play import Play
from monitor.simulate.world import World


def state(world: World) -> dict[str, Any]:
    """All settings, the running scenario, and the world's time."""
    plays = [source.scenario.name for source in world.sources if isinstance(source, Play)]
    return {
        "now_s": world.now_s,
        "scenario": plays[-1] if plays else None,
        "settings": world.settings(),
    }


def change(world: World, changes: dict[str, Any]) -> None:
    """Changes settings in the order given. Raises ApiError; changes before the wrong name stay."""
    try:
        for name, value in changes.items():
            if name == "scenario":
                switch(world, str(value))
            else:
                world.set(name, value)
    except UserError as error:
        raise ApiError(400, {"error": str(error)}) from None
