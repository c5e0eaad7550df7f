"""The control endpoint: what is set, what plays, and switches for both.

GET  /-/control                                        everything that can be set, and the scenario
that plays
POST /-/control {"max_model_len": 4096, "restart": true}    names of World.settable, in this order;
and "scenario": a name or a file
"""

from __future__ import annotations

from typing import Any

from monitor.errors import Told
from monitor.simulate.api.validation import ApiError
from monitor.simulate.assemble import switch
from monitor.simulate.scenarios.play import Play
from monitor.simulate.world import World


def state(world: World) -> dict[str, Any]:
    """What is set now, what plays, and how long the world has been going."""
    plays = [source.scenario.name for source in world.sources if isinstance(source, Play)]
    return {
        "now_s": world.now_s,
        "scenario": plays[-1] if plays else None,
        "settings": world.settings(),
    }


def change(world: World, changes: dict[str, Any]) -> None:
    """Switch things, in the order given. Raises ApiError; what stood before the wrong name is
    done.
    """
    try:
        for name, value in changes.items():
            if name == "scenario":
                switch(world, str(value))
            else:
                world.set(name, value)
    except Told as told:
        raise ApiError(400, {"error": str(told)}) from None
