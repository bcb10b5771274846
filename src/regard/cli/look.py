"""`regard look`: shows a model in the browser, or writes the page or a picture to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlencode

import typer

from regard.cli.terminal import Device, ModelName, To, progress, require_server, say
from regard.errors import InputError, SettingsError
from regard.serving.settings import PageSettings
from regard.settings import describe, parse

if TYPE_CHECKING:
    from regard.look.study import NamedImage, Study, StudyRun

LOOK_EXAMPLE = 'Example: regard look de-en "Ein Hund läuft durch den Schnee."'
_DEFAULTS = PageSettings()
_PORT_HELP = next(text for name, _, _, text in describe(PageSettings) if name == "port")


class LookOptions(NamedTuple):
    """What to show."""

    model: str
    text: str | None
    target: str | None
    to: str | None
    beside: str | None
    view: str
    at: str
    device: str | None


def look_command(  # noqa: PLR0913
    model: ModelName,
    text: Annotated[
        str | None,
        typer.Argument(help="Text to show first; for a vision model, an image file.", show_default=False),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Translation of the text.", show_default="the model's own")] = None,
    to: To = None,
    beside: Annotated[
        str | None, typer.Option(help="Another model of the same family, for comparison.", show_default=False)
    ] = None,
    view: Annotated[
        str,
        typer.Option(
            help="View to open: heads, walk, decode, lens, ... (to draw: heads or lens)", show_default="the first"
        ),
    ] = "",
    at: Annotated[
        str,
        typer.Option(help="Attention (decoder.cross) or head (decoder.1.cross.0).", show_default="the view's choice"),
    ] = "",
    html: Annotated[
        Path | None, typer.Option(help="Write all views to one HTML file that needs no server.", show_default=False)
    ] = None,
    views: Annotated[str, typer.Option(help="Views in the file, separated by commas.", show_default="all")] = "",
    picture: Annotated[
        Path | None, typer.Option(help="Draw one view to a .png, .svg or .pdf file.", show_default=False)
    ] = None,
    port: Annotated[int, typer.Option(help=_PORT_HELP)] = _DEFAULTS.port,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser.")] = True,
    device: Device = None,
) -> None:
    """Look inside a model: attention, values from text to output, decoding. Ctrl-C stops it."""
    settings: PageSettings = parse(PageSettings, {"port": port})
    asked = LookOptions(model, text, target, to, beside, view, at, device)
    if views and html is None:
        raise SettingsError(f"--views ({views}) needs a file; add --html FILE")
    if html is None and picture is None:
        _serve(asked, settings, browser)
    else:
        _write(asked, html, [name.strip() for name in views.split(",") if name.strip()], picture)


def _serve(asked: LookOptions, settings: PageSettings, browser: bool) -> None:
    require_server("look")
    from regard.serving.http import address_of, listen

    with listen("127.0.0.1", settings.port) as listening:
        from regard.look.views import view_named
        from regard.serving.page import serve_page
        from regard.serving.page_file import location_state

        study = _study(asked, settings)
        text = asked.text
        if text is not None and study.loaded.settings.kind == "vision":
            study.picture, text = _picture(study, text), None
        state = {"text": text, "target": asked.target, "to": asked.to} | location_state(study, asked.at)
        if asked.view:
            state["view"] = view_named(study, asked.view).name
        given = urlencode({name: value for name, value in state.items() if value is not None})
        address = f"{address_of(listening)}/{f'#{given}' if given else ''}"
        say(f"looking into {asked.model} on {address}")
        serve_page(study, settings, listening, address if browser else None, say)


def _study(asked: LookOptions, settings: PageSettings) -> Study:
    import regard
    from regard.look.study import Study
    from regard.models.cpu import bound_kernel_caches

    bound_kernel_caches()
    other = None if asked.beside is None else regard.load(asked.beside, device=asked.device)
    return Study(regard.load(asked.model, device=asked.device), settings.tokens, settings.tensor_bytes, other)


def _picture(study: Study, file: str) -> NamedImage:
    from regard.look.input import image_from
    from regard.look.study import NamedImage

    return NamedImage(Path(file).name, image_from(study.loaded, Path(file)))


def _write(asked: LookOptions, html: Path | None, views: list[str], picture: Path | None) -> None:
    option = "--html" if html else "--picture"
    if asked.text is None:
        raise InputError(f'{option} needs a text; give one: regard look MODEL "TEXT" {option} FILE')
    for file in (html, picture):
        if file is not None and not file.parent.is_dir():
            raise InputError(f"{file} cannot be written: {file.parent} is not a directory; choose another file")
    if picture is not None:
        from regard.look.pictures import new_figure, require_format

        require_format(picture)
        new_figure(1, 1)  # raises an error at once if matplotlib is missing
    from regard.look.input import Input

    study = _study(asked, PageSettings())
    is_image = study.loaded.settings.kind == "vision"
    given = Input(image=_picture(study, asked.text).pixels) if is_image else Input(asked.text, asked.target, asked.to)
    run = study.run(given)
    if picture is not None:
        from regard.look.views import draw_view

        draw_view(study, run, picture, asked.view or "heads", asked.at)
        say(f"{picture}: {picture.stat().st_size / 1024:,.0f} KiB")
    if html is not None:
        _write_page(study, run, html, views, asked)


def _write_page(study: Study, run: StudyRun, file: Path, views: list[str], asked: LookOptions) -> None:
    from regard.files import write_text
    from regard.look.views import views_of
    from regard.serving.page_file import page_file

    named = [asked.view, *(views or views_of(study))] if asked.view else views
    with progress("computing the views") as update:
        made = page_file(study, run, named, asked.at, say=update)
    try:
        write_text(file, made.html)
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}; choose another file") from None
    say(f"{file}: {', '.join(made.views)}; {len(made.html) / 2**20:.1f} MiB")
    for view, count in made.left.items():
        say(f"{view}: {count:,} answers are left out, since the file has a size limit; choose fewer --views")
