"""`regard look` shows a model in the browser, in a file or in a picture; `regard serve` serves models over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from regard.cli import terminal
from regard.errors import InputError, SettingsError
from regard.files import require_writable
from regard.serving.settings import PageSettings, Serving
from regard.settings import describe, parse

if TYPE_CHECKING:
    from regard.look.study import Study

_DEFAULTS = PageSettings()
OPTIONS = {name: name for name in ("host", "port", "device", "threads")}
_HELP = {name: text for name, _, text in describe(Serving)}
_PORT_HELP = next(text for name, _, text in describe(PageSettings) if name == "port")
_SERVED = (
    "Shipped models (de-en), run directories or Hugging Face directories, and settings such as beam=4: "
    f"{', '.join(name for name in _HELP if name not in (*OPTIONS, 'api_keys'))}. See docs/settings.md."
)
_API_KEY = (
    f"{_HELP['api_keys']} Repeatable. Other users can see it in the list of processes, so prefer the environment "
    "variable, which may contain several keys separated by spaces."
)


def look_command(  # noqa: PLR0913
    model: terminal.ModelName = "en-de",
    text: Annotated[str | None, typer.Argument(help="Text, or image file, to show first.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Translation, or the second text of a pair.", show_default="the model's own")
    ] = None,
    to: terminal.To = None,
    against: Annotated[str | None, typer.Option(help="Another model of the same family to compare with.")] = None,
    view: Annotated[str, typer.Option(help="View to open: heads, walk, decode, ... (draw: heads, lens).")] = "",
    at: Annotated[str, typer.Option(help="Attention (decoder.cross) or head (decoder.1.cross.0).")] = "",
    html: Annotated[Path | None, typer.Option(help="Write all views to one HTML file.")] = None,
    views: Annotated[str, typer.Option(help="Views in the file, separated by commas.", show_default="all")] = "",
    picture: Annotated[Path | None, typer.Option(help="Draw one view to a .png, .svg or .pdf file.")] = None,
    lecture: Annotated[bool, typer.Option("--lecture", help="Open the first chapter; → goes on.")] = False,
    chapters: Annotated[str | None, typer.Option(help="TOML file with other chapters.")] = None,
    port: Annotated[int, typer.Option(help=_PORT_HELP)] = _DEFAULTS.port,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser.")] = True,
    device: terminal.Device = None,
    threads: terminal.Threads = None,
) -> None:
    """Look inside a model: attention, values from text to output, decoding. Ctrl-C stops it."""
    settings: PageSettings = parse(PageSettings, {"port": port, "chapters": chapters})
    if views and html is None:
        raise SettingsError(f"--views ({views}) needs a file; add --html FILE")
    for path, option in ((html, "--html"), (picture, "--picture")):
        if path is not None:
            require_writable(path, option)
    terminal.prepare_torch(threads, [model, *([against] if against else [])])
    if html is None and picture is None:
        terminal.require_server("look")
        from regard.serving.http import address_of, listen

        with listen("127.0.0.1", settings.port) as listening:
            from regard.look.input import image_from
            from regard.look.views import view_named
            from regard.serving.page import serve_page
            from regard.serving.page_file import location_state

            study = _study(model, against, device, settings)
            if text is not None and study.loaded.settings.kind == "vision":
                study.picture, text = (Path(text).name, image_from(study.loaded, Path(text))), None
            state = {"text": text, "target": target, "to": to} | location_state(study, at)
            state |= {"chapter": "0"} if lecture else {}
            if view:
                state["view"] = view_named(study, view).name
            given = urlencode({name: value for name, value in state.items() if value is not None})
            address = f"{address_of(listening)}/{f'#{given}' if given else ''}"
            terminal.say(f"looking into {model} on {address}")
            serve_page(study, settings, listening, address if browser else None, terminal.say)
        return
    option = "--html" if html else "--picture"
    if text is None:
        raise InputError(f'{option} needs a text or an image file; give one: regard look MODEL "TEXT" {option} FILE')
    from regard.look.input import Input, image_from

    study = _study(model, against, device, settings)
    is_image = study.loaded.settings.kind == "vision"
    run = study.run(Input(image=image_from(study.loaded, Path(text))) if is_image else Input(text, target, to))
    if picture is not None:
        from regard.look.views import draw_view

        draw_view(study, run, picture, view or "heads", at)
        terminal.say(f"{picture}: {picture.stat().st_size / 1024:,.0f} KiB")
    if html is not None:
        from regard.look.views import views_of
        from regard.serving.page_file import page_file

        named = [name.strip() for name in views.split(",") if name.strip()]
        with terminal.progress("computing the views"):
            made = page_file(study, run, [view, *(named or views_of(study))] if view else named, at)
        made.save(html)
        terminal.say(f"{html}: {', '.join(made.views)}; {len(made.html) / 2**20:.1f} MiB")
        for name, count in made.left.items():
            terminal.say(f"{name}: {count:,} answers are left out (the file has a size limit); choose fewer --views")


def _study(model: str, against: str | None, device: str | None, settings: PageSettings) -> Study:
    import regard
    from regard.look.study import Study

    other = None if against is None else regard.load(against, device=device)
    return Study(regard.load(model, device=device), settings.tokens, settings.tensor_bytes, other)


@terminal.settings_options(Serving, OPTIONS)
def serve_command(
    words: Annotated[list[str], typer.Argument(metavar="MODEL... [KEY=VALUE]...", help=_SERVED)],
    api_key: Annotated[
        list[str] | None, typer.Option(help=_API_KEY, envvar="REGARD_API_KEY", show_default=False)
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print a line on stderr for each request.")] = False,
    *,
    given: dict[str, Any],
) -> None:
    """Serve models over HTTP: translation, predictions, embeddings, completions. Ctrl-C finishes requests and stops."""
    names, changes = terminal.split_words(words)
    if not names:
        raise SettingsError("the model is missing; give a shipped one such as de-en, or a directory")
    settings: Serving = parse(Serving, given | {"api_keys": api_key or ()} | changes)
    terminal.require_server("serve")
    terminal.prepare_torch(settings.threads, names)
    from regard.serving.http import address_of, listen, make_server, run_server

    with listen(settings.host, settings.port) as listening:
        from regard.serving.app import create_app, load_services

        services = load_services(names, settings)
        address = address_of(listening)
        summary = "; ".join(service.summary for service in services)
        terminal.say(f"{summary} on {address} (documentation: {address}/docs)")
        app = create_app(services, settings, terminal.say, verbose)
        server = make_server(app, settings.connections, settings.patience, settings.grace, terminal.say)
        run_server(server, listening)
