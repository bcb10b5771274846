"""`regard serve`: a model over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.working import require_packages
from regard.errors import SettingsError
from regard.serving.settings import Serving
from regard.settings import describe

EXAMPLE = "Example: regard serve de-en --port 5000 queue=512"

_ABOUT = {name: about for name, _, _, about in describe(Serving)}
_OWN_OPTION = ("host", "port", "threads", "api_keys")
_DEFAULTS = Serving()


def command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... [KEY=VALUE]...",
            help="Shipped models (de-en), runs' or Hugging Face directories, for a direction each or for several; and "
            "settings to change, such as queue=512 or characters=2000: "
            f"{', '.join(name for name in _ABOUT if name not in _OWN_OPTION)}. docs/settings.md describes them.",
        ),
    ],
    host: Annotated[str, typer.Option(help=_ABOUT["host"])] = _DEFAULTS.host,
    port: Annotated[int, typer.Option(help=_ABOUT["port"])] = _DEFAULTS.port,
    threads: Annotated[int | None, typer.Option(help=_ABOUT["threads"], show_default="all cores")] = _DEFAULTS.threads,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{_ABOUT['api_keys']} May be given again; others see it in the list of processes, so prefer the "
            "variable, which may hold several, with spaces between.",
            envvar="REGARD_API_KEY",
            show_default=False,
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line on stderr for each request.")] = False,
) -> None:
    """Translate over HTTP, in LibreTranslate's shapes. Ctrl-C finishes what has begun, and ends."""
    from regard.decoding.memory import bound_caches
    from regard.settings import parse, read_overrides

    names = [word for word in words if "=" not in word or Path(word).exists()]
    if not names:
        raise SettingsError("no model is named to be served; give a shipped one such as de-en, or a directory")
    changes = read_overrides(word for word in words if word not in names)
    options = {"host": host, "port": port, "threads": threads, "api_keys": api_key or ()}
    settings: Serving = parse(Serving, {name: value for name, value in options.items() if value is not None} | changes)
    require_packages("serve")
    bound_caches()
    from regard.serving.http import address_of, listen, make_server, run_server

    with listen(settings.host, settings.port) as listening:
        from regard.serving.translation import create_app, load_translators

        models = load_translators(names, settings)
        address = address_of(listening)
        directions = ", ".join(f"{source} to {target}" for source, target in models.directions)
        typer.echo(f"translating {directions} on {address} (about it: {address}/docs)", err=True)
        app = create_app(models, settings, lambda line: typer.echo(line, err=True), verbose)
        run_server(make_server(app, settings.connections, settings.grace), listening)
