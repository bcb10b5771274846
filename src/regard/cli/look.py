"""`regard look`: a page in the browser that shows a model at work; or the same as a file, or a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlencode

import typer

from regard.cli.working import require_packages, working
from regard.errors import InputError, SettingsError
from regard.serving.look_settings import Looking
from regard.settings import describe

if TYPE_CHECKING:
    from regard.look.reading import Input
    from regard.look.study import Picture, Run, Study
    from regard.serving.look_file import PageFile

EXAMPLE = 'Example: regard look de-en "Ein Hund läuft durch den Schnee."'
_ABOUT = {name: about for name, _, _, about in describe(Looking)}
_DEFAULTS = Looking()


class Asked(NamedTuple):
    """What to look at."""

    model: str
    text: str | None
    target: str | None
    to: str | None
    beside: str | None
    view: str
    at: str


# A command's options are its arguments, and each has a name.
def command(  # noqa: PLR0913
    model: Annotated[
        str, typer.Argument(help="A shipped model (de-en), a run's directory, or a Hugging Face directory.")
    ],
    text: Annotated[
        str | None,
        typer.Argument(help="What to look at first; of a model of images, an image file.", show_default=False),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="A translation of the text; none: what the model writes itself.", show_default=False),
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="The language to write, of a model that knows several.", show_default=False)
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(help="Another model of the same family, to be compared with it.", show_default=False),
    ] = None,
    view: Annotated[
        str, typer.Option(help="The view to open, or to draw: heads, walk, decode, lens, …", show_default="the first")
    ] = "",
    at: Annotated[
        str,
        typer.Option(
            help="Where to look: a kind of attention (decoder.cross), or a head (decoder.1.cross.0).",
            show_default="the view's own choice",
        ),
    ] = "",
    html: Annotated[
        Path | None,
        typer.Option(help="Write every view of the text to one HTML file, which needs no server.", show_default=False),
    ] = None,
    views: Annotated[str, typer.Option(help="The views that the file holds, between commas.", show_default="all")] = "",
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw one view of the text: a file that ends in .png, .svg or .pdf.", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option(help=_ABOUT["port"])] = _DEFAULTS.port,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Whether to open the browser.")] = True,
    device: Annotated[
        str | None, typer.Option(help="Where the model runs: cpu, cuda or cuda:NUMBER.", show_default=False)
    ] = None,
) -> None:
    """Look into a model: its attention, its numbers from text to answer, and how it decodes. Ctrl-C ends it."""
    from regard.settings import parse

    settings: Looking = parse(Looking, {"port": port})
    asked = Asked(model, text, target, to, beside, view, at)
    if views and html is None:
        raise SettingsError(f"--views ({views}) says what a file holds, and none is written; name one: --html FILE")
    if html is None and picture is None:
        _serve(asked, settings, browser, device)
    else:
        _write(asked, html, [name.strip() for name in views.split(",") if name.strip()], picture, device)


def _serve(asked: Asked, settings: Looking, browser: bool, device: str | None) -> None:

    require_packages("look")
    from regard.serving.http import address_of, listen

    with listen("127.0.0.1", settings.port) as listening:
        from regard.look.drawn import require_view
        from regard.serving.look_file import place_state
        from regard.serving.look_run import look

        study = _study(asked.model, device, settings, asked.beside)
        text = asked.text
        if text is not None and study.loaded.settings.kind == "vision":
            study.picture, text = _picture(study, text), None
        state = {"text": text, "target": asked.target, "to": asked.to} | place_state(study, asked.at)
        if asked.view:
            require_view(asked.view, study.views)
            state["view"] = asked.view
        given = urlencode({name: value for name, value in state.items() if value is not None})
        address = f"{address_of(listening)}/{f'#{given}' if given else ''}"
        typer.echo(f"looking into {asked.model} on {address}", err=True)
        look(study, settings, listening, address if browser else None, lambda line: typer.echo(line, err=True))


def _study(model: str, device: str | None, settings: Looking, beside: str | None = None) -> Study:
    import regard
    from regard.decoding.memory import bound_caches
    from regard.look.study import Study

    bound_caches()
    other = None if beside is None else regard.load(beside, device=device)
    return Study(regard.load(model, device=device), settings.tokens, settings.tensor_bytes, other)


def _picture(study: Study, file: str) -> Picture:
    from regard.look.reading import image_from
    from regard.look.study import Picture

    return Picture(Path(file).name, image_from(study.loaded, Path(file)))


# ---------------------------------------------------------------------------------------------------------------- files


def _write(asked: Asked, html: Path | None, views: list[str], picture: Path | None, device: str | None) -> None:
    option = "--html" if html else "--picture"
    if asked.text is None:
        raise InputError(f'{option} needs a text to look at; give one: regard look MODEL "TEXT" {option} FILE')
    _require_place(html)
    _require_place(picture)
    if picture is not None:
        from regard.look.drawing import new_figure, require_ending

        require_ending(picture)
        new_figure(1, 1)  # says at once where matplotlib is not installed
    study = _study(asked.model, device, Looking(), asked.beside)
    run = study.run(_given(study, asked.text, asked))
    if picture is not None:
        from regard.look.drawn import draw

        draw(study, run, picture, asked.view or study.views[0], asked.at)
        typer.echo(f"{picture}: {picture.stat().st_size / 1024:,.0f} KiB", err=True)
    if html is not None:
        _tell(html, _page(study, run, html, views, asked))


def _require_place(file: Path | None) -> None:
    """Told before a model is loaded."""
    if file is not None and not file.parent.is_dir():
        raise InputError(f"{file} cannot be written (there is no directory {file.parent}); choose another file")


def _given(study: Study, text: str, asked: Asked) -> Input:
    from regard.look.reading import Input

    if study.loaded.settings.kind == "vision":
        return Input(image=_picture(study, text).pixels)
    return Input(text, asked.target, asked.to)


def _page(study: Study, run: Run, file: Path, views: list[str], asked: Asked) -> PageFile:
    from regard.files import write_text
    from regard.serving.look_file import page_file

    named = [asked.view, *(views or study.views)] if asked.view else views
    with working("working out what the views show") as say:
        made = page_file(study, run, named, asked.at, say=say)
    try:
        write_text(file, made.html)
    except OSError as error:
        raise InputError(f"{file} cannot be written ({error.strerror}); choose another file") from None
    return made


def _tell(file: Path, made: PageFile) -> None:
    typer.echo(f"{file}: {', '.join(made.views)}; {len(made.html) / 2**20:.1f} MiB", err=True)
    for view, count in made.left.items():
        typer.echo(
            f"{view}: {count:,} answers had no room, and the page will say so; fewer --views leave more", err=True
        )
