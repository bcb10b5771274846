"""`regard serve`: translation over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from regard.cli.terminal import given_settings, prepare_torch, require_server, say, settings_options, split_words
from regard.errors import SettingsError
from regard.serving.settings import Serving
from regard.settings import describe, parse

OPTIONS = {name: name for name in ("host", "port", "threads")}
_HELP = {name: text for name, _, _, text in describe(Serving)}


@settings_options(Serving, OPTIONS)
def serve_command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL... [KEY=VALUE]...",
            help="Shipped models (de-en), run directories or Hugging Face directories, and settings such as queue=512: "
            f"{', '.join(name for name in _HELP if name not in (*OPTIONS, 'api_keys'))}. See docs/settings.md.",
        ),
    ],
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{_HELP['api_keys']} Repeatable. Other users can see it in the list of processes, so prefer the "
            "environment variable, which may contain several keys separated by spaces.",
            envvar="REGARD_API_KEY",
            show_default=False,
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print a line on stderr for each request.")] = False,
    **given: Any,
) -> None:
    """Translate over HTTP with LibreTranslate's API. Ctrl-C finishes running requests and stops."""
    names, changes = split_words(words)
    if not names:
        raise SettingsError("the model is missing; give a shipped one such as de-en, or a directory")
    settings: Serving = parse(Serving, given_settings(OPTIONS, given) | {"api_keys": api_key or ()} | changes)
    require_server("serve")
    from regard.serving.http import address_of, listen, make_server, run_server

    prepare_torch(settings.threads)
    with listen(settings.host, settings.port) as listening:
        from regard.serving.translation import create_app, load_translators

        models = load_translators(names, settings)
        address = address_of(listening)
        directions = ", ".join(f"{source} to {target}" for source, target in models.directions)
        say(f"translating {directions} on {address} (documentation: {address}/docs)")
        app = create_app(models, settings, say, verbose)
        run_server(make_server(app, settings.connections, settings.grace), listening)
