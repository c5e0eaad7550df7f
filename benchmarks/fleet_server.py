"""Many light stand-ins (tests/standin.py) in one process, each on its own port, with metrics pages
as large as a real one.

    python benchmarks/fleet_server.py 200

Prints the ports on one line, then serves until it is killed.
"""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import AsyncExitStack

from common import METRICS_PAGE, ROOT

sys.path.insert(0, str(ROOT / "tests"))
from standin import StandIn  # tests/ is not a package, so the import follows the path

_FAMILY = re.compile(r"^# HELP (\S+)", re.MULTILINE)


class FullPage(StandIn):
    """A stand-in whose metrics page also has the other families of a captured real page."""

    rest = ""

    def metrics_page(self) -> str:
        """Its own families, then the others of the captured page."""
        own = super().metrics_page()
        if not self.rest:
            FullPage.rest = rest_of(METRICS_PAGE.read_text(), own)
        return own + self.rest


def rest_of(captured: str, own: str) -> str:
    """The families of a captured page that are not in the stand-in's own."""
    kept = set(_FAMILY.findall(own))
    families = re.split(r"(?m)^(?=# HELP )", captured)
    return "".join(
        family for family in families if (name := _FAMILY.match(family)) and name[1] not in kept
    )


async def main(count: int) -> None:
    """Serves `count` targets."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(FullPage()) for _ in range(count)]
        print(*(server.port for server in servers), flush=True)
        while True:
            await asyncio.sleep(60)
            for server in servers:
                for kept in (server.state.requests, server.state.headers, server.state.paths):
                    kept.clear()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
