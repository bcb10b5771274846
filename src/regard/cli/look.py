"""`regard look`: a page in the browser that shows a model at work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from regard.serving.look_settings import Looking
from regard.settings import describe

if TYPE_CHECKING:
    from regard.look.study import Study

EXAMPLE = 'Example: regard look de-en "Ein Hund läuft durch den Schnee."'
_ABOUT = {name: about for name, _, _, about in describe(Looking)}
_DEFAULTS = Looking()


def command(
    model: Annotated[
        str, typer.Argument(help="A shipped model (de-en), a run's directory, or a Hugging Face directory.")
    ],
    text: Annotated[str | None, typer.Argument(help="What to look at first.", show_default=False)] = None,
    target: Annotated[
        str | None,
        typer.Option(help="A translation of the text; none: what the model writes itself.", show_default=False),
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="The language to write, of a model that knows several.", show_default=False)
    ] = None,
    port: Annotated[int, typer.Option(help=_ABOUT["port"])] = _DEFAULTS.port,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Whether to open the browser.")] = True,
    html: Annotated[
        Path | None,
        typer.Option(help="Write the heads of the text to one HTML file, which needs no server.", show_default=False),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where the model runs: cpu, cuda or cuda:NUMBER.", show_default=False)
    ] = None,
) -> None:
    """Look into a model: its attention, its numbers from text to answer, and how it decodes. Ctrl-C ends it."""
    from regard.serving.run import address_of, bind, require_installed
    from regard.serving.settings import Serving
    from regard.settings import parse

    settings: Looking = parse(Looking, {"port": port})
    require_installed("look")
    if html is not None:
        _write(html, model, text, target, to, device)
        return
    with bind(Serving(port=settings.port)) as listening:
        from regard.serving.look_run import look

        state = {"text": text, "target": target, "to": to}
        given = urlencode({name: value for name, value in state.items() if value is not None})
        address = f"{address_of(listening)}/{f'#{given}' if given else ''}"
        study = _study(model, device, settings)
        typer.echo(f"looking into {model} on {address}", err=True)
        look(study, settings, listening, address if browser else None, lambda line: typer.echo(line, err=True))


def _study(model: str, device: str | None, settings: Looking) -> Study:
    import regard
    from regard.decoding.memory import bound_caches
    from regard.look.study import Study

    bound_caches()
    return Study(regard.load(model, device=device), settings.tokens, settings.tensor_bytes)


def _write(file: Path, model: str, text: str | None, target: str | None, to: str | None, device: str | None) -> None:
    from regard.errors import InputError
    from regard.files import write_beside
    from regard.look.reading import Input
    from regard.serving.look_file import page_file

    if text is None:
        raise InputError('--html needs a text to look at; give one: regard look MODEL "TEXT" --html FILE')
    study = _study(model, device, Looking())
    content = page_file(study, study.run(Input(text, target, to))).html
    try:
        write_beside(file, lambda partial: _put(partial, content))
    except OSError as error:
        raise InputError(f"{file} cannot be written ({error.strerror}); choose another file") from None
    typer.echo(f"{file}: {len(content) / 2**20:.1f} MiB", err=True)


def _put(file: Path, content: str) -> None:
    file.write_text(content, encoding="utf-8")
