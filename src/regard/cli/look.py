"""`regard look`: shows a model in the browser, or writes the page or a picture to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from regard.cli.terminal import Device, ModelName, To, prepare_torch, progress, require_server, say
from regard.errors import InputError, SettingsError
from regard.serving.settings import PageSettings
from regard.settings import describe, parse

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from regard.look.study import Study

_DEFAULTS = PageSettings()
_PORT_HELP = next(text for name, _, _, text in describe(PageSettings) if name == "port")


def look_command(  # noqa: PLR0913
    model: ModelName,
    text: Annotated[str | None, typer.Argument(help="Text, or image file, to show first.")] = None,
    target: Annotated[str | None, typer.Option(help="Translation of the text.", show_default="the model's own")] = None,
    to: To = None,
    beside: Annotated[str | None, typer.Option(help="Another model of the same family to compare.")] = None,
    view: Annotated[str, typer.Option(help="View to open: heads, walk, decode, ... (draw: heads, lens).")] = "",
    at: Annotated[str, typer.Option(help="Attention (decoder.cross) or head (decoder.1.cross.0).")] = "",
    html: Annotated[Path | None, typer.Option(help="Write all views to one HTML file.")] = None,
    views: Annotated[str, typer.Option(help="Views in the file, separated by commas.", show_default="all")] = "",
    picture: Annotated[Path | None, typer.Option(help="Draw one view to a .png, .svg or .pdf file.")] = None,
    port: Annotated[int, typer.Option(help=_PORT_HELP)] = _DEFAULTS.port,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser.")] = True,
    device: Device = None,
) -> None:
    """Look inside a model: attention, values from text to output, decoding. Ctrl-C stops it."""
    settings: PageSettings = parse(PageSettings, {"port": port})
    if views and html is None:
        raise SettingsError(f"--views ({views}) needs a file; add --html FILE")
    if html is None and picture is None:
        require_server("look")
        from regard.serving.http import address_of, listen

        with listen("127.0.0.1", settings.port) as listening:
            from regard.look.views import view_named
            from regard.serving.page import serve_page
            from regard.serving.page_file import location_state

            study = _study(model, beside, device, settings)
            if text is not None and study.loaded.settings.kind == "vision":
                study.picture, text = _picture(study, text), None
            state = {"text": text, "target": target, "to": to} | location_state(study, at)
            if view:
                state["view"] = view_named(study, view).name
            given = urlencode({name: value for name, value in state.items() if value is not None})
            address = f"{address_of(listening)}/{f'#{given}' if given else ''}"
            say(f"looking into {model} on {address}")
            serve_page(study, settings, listening, address if browser else None, say)
        return
    option = "--html" if html else "--picture"
    if text is None:
        raise InputError(f'{option} needs a text; give one: regard look MODEL "TEXT" {option} FILE')
    from regard.look.input import Input

    study = _study(model, beside, device, settings)
    is_image = study.loaded.settings.kind == "vision"
    run = study.run(Input(image=_picture(study, text)[1]) if is_image else Input(text, target, to))
    if picture is not None:
        from regard.look.views import draw_view

        draw_view(study, run, picture, view or "heads", at)
        say(f"{picture}: {picture.stat().st_size / 1024:,.0f} KiB")
    if html is not None:
        from regard.look.views import views_of
        from regard.serving.page_file import page_file

        named = [name.strip() for name in views.split(",") if name.strip()]
        with progress("computing the views"):
            made = page_file(study, run, [view, *(named or views_of(study))] if view else named, at)
        made.save(html)
        say(f"{html}: {', '.join(made.views)}; {len(made.html) / 2**20:.1f} MiB")
        for name, count in made.left.items():
            say(f"{name}: {count:,} answers are left out, since the file has a size limit; choose fewer --views")


def _study(model: str, beside: str | None, device: str | None, settings: PageSettings) -> Study:
    prepare_torch()
    import regard
    from regard.look.study import Study

    other = None if beside is None else regard.load(beside, device=device)
    return Study(regard.load(model, device=device), settings.tokens, settings.tensor_bytes, other)


def _picture(study: Study, file: str) -> tuple[str, NDArray[np.uint8]]:
    from regard.look.input import image_from

    return Path(file).name, image_from(study.loaded, Path(file))
