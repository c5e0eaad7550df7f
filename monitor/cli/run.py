"""`run`: the daemon."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from monitor.cli.common import CommandError, config_arguments, load_context
from monitor.cli.logs import set_up_logging


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    config_arguments(parser, url=True)
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="serve health and metrics there, instead of as configured",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log every canary")


def run(args: argparse.Namespace) -> int:
    """Say what will be done, then do it until stopped."""
    settings = load_context(args)
    if args.listen is not None:
        settings = settings.model_copy(update={"listen": _checked(args.listen)})
    from monitor.config.probes import load_probes  # noqa: PLC0415 - --help needs none of this
    from monitor.daemon.service import Daemon  # noqa: PLC0415
    from monitor.store.database import shown  # noqa: PLC0415

    probes = load_probes(Path(settings.probes), settings)
    set_up_logging(args.verbose)

    async def main() -> None:
        daemon = Daemon(settings, probes)
        host = settings.listen.rpartition(":")[0]
        print(f"watching {', '.join(f'{t.name} at {t.url}' for t in settings.targets)}", flush=True)
        print(f"probes {', '.join(probe.name for probe in probes)} from {settings.probes}")
        print(f"history in {shown(settings.database)}")
        print(f"health and metrics on http://{host}:{daemon.web.port}", flush=True)
        await daemon.run()

    asyncio.run(main())
    return 0


def _checked(listen: str) -> str:
    from monitor.config.settings import checked_listen  # noqa: PLC0415

    try:
        return checked_listen(listen)
    except ValueError as error:
        raise CommandError(f"--listen {error}") from None
