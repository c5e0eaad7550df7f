"""The cards' DCGM exporter in real time: a port of its own, as on a real machine, and alive when
the server is not.
"""

from __future__ import annotations

from monitor.simulate import dcgm
from monitor.simulate.card import Card
from monitor.simulate.listen import Listener
from monitor.simulate.server import SimulatedServer
from monitor.simulate.wire import Exchange


def exporter(server: SimulatedServer, host: str = "127.0.0.1", port: int = 0) -> Listener:
    """A listener that shows the cards of a running simulated server on /metrics: `async with
    exporter(server) as cards: cards.url`.
    """

    def handle(exchange: Exchange) -> None:
        if exchange.request.path not in {"/metrics", "/metrics/"}:
            exchange.reply("404 page not found\n", 404, "text/plain; charset=utf-8")
            return
        server.catch_up()
        server.world.settle()
        exchange.reply(
            dcgm.page([card for card in server.world.cards if isinstance(card, Card)]),
            kind=dcgm.CONTENT_TYPE,
        )

    return Listener(handle, host, port)
