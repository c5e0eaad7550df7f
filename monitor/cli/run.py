"""`run`: the daemon."""

from __future__ import annotations

import asyncio
from argparse import Namespace

from monitor.cli.common import CommandError
from monitor.cli.configured import chosen_probes, settings_of
from monitor.cli.logs import set_up_logging
from monitor.config.settings import Settings, checked_listen
from monitor.daemon.service import Daemon
from monitor.model import Probe
from monitor.store.database import shown


def run(args: Namespace) -> int:
    """Prints what is watched, then watches until stopped."""
    settings = settings_of(args)
    if args.listen is not None:
        settings = settings.model_copy(update={"listen": _checked(args.listen)})
    probes = chosen_probes(settings)
    set_up_logging(args.verbose)
    asyncio.run(_watch(settings, probes))
    return 0


async def _watch(settings: Settings, probes: list[Probe]) -> None:
    daemon = Daemon(settings, probes)
    host = settings.listen.rpartition(":")[0]
    print(f"watching {', '.join(f'{t.name} at {t.url}' for t in settings.targets)}", flush=True)
    print(f"probes {', '.join(probe.name for probe in probes)} from {settings.probes}")
    print(f"history in {shown(settings.database)}")
    print(f"health and metrics on http://{host}:{daemon.web.port}", flush=True)
    await daemon.run()


def _checked(listen: str) -> str:
    try:
        return checked_listen(listen)
    except ValueError as error:
        raise CommandError(f"--listen {error}") from None
