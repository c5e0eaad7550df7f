"""Many light stand-ins (tests/standin.py) in one process, each on a port of its own, with metrics
pages as large as a real one.

    python benchmarks/fleet_server.py 200

Prints the ports as one line, then serves until it is killed.
"""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import AsyncExitStack

from common import PAGE, ROOT

sys.path.insert(0, str(ROOT / "tests"))
from standin import StandIn  # the tests are no package, so not at the top

_FAMILY = re.compile(r"^# HELP (\S+)", re.MULTILINE)


class FullPage(StandIn):
    """A stand-in whose page also carries the families of a real page that it does not keep itself,
    as they stood when captured.
    """

    rest = ""

    def metrics_page(self) -> str:
        """Its own families, then the rest of the captured page."""
        own = super().metrics_page()
        if not self.rest:
            FullPage.rest = rest_of(PAGE.read_text(), own)
        return own + self.rest


def rest_of(captured: str, own: str) -> str:
    """The families of a captured page that are not in our own."""
    kept = set(_FAMILY.findall(own))
    families = re.split(r"(?m)^(?=# HELP )", captured)
    return "".join(
        family for family in families if (name := _FAMILY.match(family)) and name[1] not in kept
    )


async def main(count: int) -> None:
    """Serve `count` targets."""
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
