"""`regard evaluate`: how good a model is, or translations that are there already."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from regard.cli.loading import load_translator
from regard.cli.working import working
from regard.errors import DataError, SettingsError
from regard.use.translation import TranslateOptions

if TYPE_CHECKING:
    from regard.use.evaluation import Compared, Exam, Report
    from regard.use.translator import Translator

EXAMPLE = "Example: regard evaluate runs/multi30k-en-de --split test --against runs/older"

Wanted: TypeAlias = Literal["train", "valid", "test"]
Words: TypeAlias = Literal["13a", "none", "intl", "zh", "char"]
Chance: TypeAlias = Literal["bootstrap", "randomization"]

NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "bleu-tokenized": "BLEU, tokenised, lower case"}


@dataclass(frozen=True)
class Asked:
    """The options that say how to measure, together."""

    split: Wanted | None
    limit: int | None
    to: str | None
    beam: int
    as_used: bool
    device: str | None
    worst: int
    counting: tuple[bool, str]
    tokenized: bool
    test: Chance
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """One direction, measured."""

    exam: Exam
    answers: list[str]
    report: Report
    seconds: float | None
    """Of translating; None where translations were given."""
    compared: dict[str, Compared]


# A command's options are its arguments, and each has a name.
def command(  # noqa: PLR0913
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [KEY=VALUE]...",
            help="A run, a shipped model or a Hugging Face directory; and settings of its data to change: "
            "data.root=DIR. None where --hypotheses are given.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        Wanted | None, typer.Option(help="Which of the run's own data.", show_default="test, else valid")
    ] = None,
    source: Annotated[Path | None, typer.Option("--input", help="Texts to translate, in place of a split.")] = None,
    reference: Annotated[Path | None, typer.Option(help="What they should be, line by line.")] = None,
    hypotheses: Annotated[Path | None, typer.Option(help="Translations that are there, in place of a model's.")] = None,
    against: Annotated[
        str | None, typer.Option(help="Another model, or a file of translations, for a paired test of significance.")
    ] = None,
    test: Annotated[Chance, typer.Option(help="Which test: by resampling, or by exchanging at random.")] = "bootstrap",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Upper and lower case count as the same.")] = False,
    tokenize: Annotated[Words, typer.Option(help="How BLEU cuts words; none: the texts are tokenised.")] = "13a",
    tokenized: Annotated[
        bool, typer.Option("--tokenized", help="Also tell BLEU of tokenised texts in lower case, as older papers do.")
    ] = False,
    beam: Annotated[
        int, typer.Option(min=1, help="Sequences that are searched side by side.")
    ] = TranslateOptions().beam,
    to: Annotated[str | None, typer.Option(help="Only into this language.", show_default="all it writes")] = None,
    as_used: Annotated[
        bool,
        typer.Option("--as-used", help="Translate as regard translate does: sentence by sentence, numbers kept."),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many of the first.", show_default="all")] = None,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst to show.")] = 5,
    save: Annotated[Path | None, typer.Option(help="Write the translations to this file.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:NUMBER.", show_default="a GPU where there is one")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads on a CPU.", show_default="all cores")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Measure a model: translations by BLEU, chrF and TER (sacreBLEU), any other by its own figures."""
    from regard.decoding.memory import bound_caches
    from regard.settings import read_overrides

    names = [word for word in words or () if "=" not in word or Path(word).exists()]
    changes = read_overrides(word.removeprefix("data.") for word in words or () if word not in names)
    _require_sense(names, source, reference, hypotheses)
    bound_caches()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    asked = Asked(split, limit, to, beam, as_used, device, worst, (lowercase, tokenize), tokenized, test, changes)
    if not names or hypotheses is not None or source is not None:
        measured = _from_files(names, source, reference, hypotheses, against, asked)
        told = " ".join(str(each) for each in (*names, hypotheses or source) if each is not None)
    else:
        place, config = _found(names[0])
        if _is_other_task(config):
            _tell_figures(place, asked, as_json)
            return
        told, measured = _from_split(names[0], config, against, asked)
    if save is not None:
        _save(save, measured)
    if as_json:
        typer.echo(json.dumps(_as_table(told, measured, against), indent=2, ensure_ascii=False))
    else:
        _print(told, measured, against)


def _require_sense(names: list[str], source: Path | None, reference: Path | None, hypotheses: Path | None) -> None:
    if len(names) > 1:
        raise SettingsError(f"{len(names)} models are named ({', '.join(names)}); give one, and --against the other")
    if not names and hypotheses is None:
        raise SettingsError("nothing is named to evaluate; give a model, or --hypotheses FILE --reference FILE")
    if names and hypotheses is not None:
        raise SettingsError("--hypotheses are there already and need no model; leave one of the two out")
    if (source is not None or hypotheses is not None) and reference is None:
        raise SettingsError("--reference is missing: the file that says, line by line, what is right")
    if reference is not None and source is None and hypotheses is None:
        raise SettingsError("--reference needs --input, the texts to translate, or --hypotheses, their translations")


# ----------------------------------------------------------------------------------------------------- what to measure


def _found(name: str) -> tuple[Path, dict[str, Any]]:
    from regard.use.model import find_model
    from regard.weights.directory import CONFIG, read_config

    place, _ = find_model(name)
    return place, read_config(place) if (place / CONFIG).is_file() else {}


def _is_other_task(config: dict[str, Any]) -> bool:
    from regard.use.evaluation import task_of

    return task_of(config) not in (None, "translate")


def _from_split(name: str, config: dict[str, Any], against: str | None, asked: Asked) -> tuple[str, list[Measured]]:
    from regard.use.evaluation import exams

    model = load_translator(name, asked.device)
    split, found = exams(config, asked.split, asked.changes, asked.limit)
    written = {target for _, target in model.directions}
    fitting = [exam for exam in found if exam.to is None or (exam.to in written and asked.to in (None, exam.to))]
    if not fitting:
        raise DataError(f"data.{split} has no pairs into {asked.to}; it has {', '.join(exam.name for exam in found)}")
    if _says_tokenized(config):
        asked = replace(asked, tokenized=True)
    return f"{name}, {split}", [_measured(exam, model, None, against, asked) for exam in fitting]


def _says_tokenized(config: dict[str, Any]) -> bool:
    """Whether a run's validation by translating took its texts as tokenised."""
    bleu = dict(config["task"]).get("bleu") if isinstance(config.get("task"), dict) else None
    return isinstance(bleu, dict) and bleu.get("tokenize") == "none"


def _from_files(
    names: list[str],
    source: Path | None,
    reference: Path | None,
    hypotheses: Path | None,
    against: str | None,
    asked: Asked,
) -> list[Measured]:
    from regard.use.evaluation import Exam, read_texts

    sources, references, given = (
        None if file is None else read_texts(str(file))[: asked.limit] for file in (source, reference, hypotheses)
    )
    assert references is not None
    if sources is not None and len(sources) != len(references):
        raise DataError(f"{source} has {len(sources):,} lines and {reference} {len(references):,}; give as many")
    model = load_translator(names[0], asked.device) if names else None
    exam = Exam("", sources, references, asked.to)
    return [_measured(exam, model, given, against, asked)]


def _measured(
    exam: Exam, model: Translator | None, given: list[str] | None, against: str | None, asked: Asked
) -> Measured:
    from regard.use.evaluation import Counting, compare, evaluate_texts

    counting, seconds = Counting(*asked.counting), None
    if given is None:
        assert model is not None
        begun = perf_counter()
        with working(f"translating {len(exam.references):,} sentences"):
            given = exam.answers(model, asked.beam, asked.as_used)
        seconds = perf_counter() - begun
    with working("scoring"):
        report = evaluate_texts(
            given, exam.references, exam.sources, counting=counting, tokenized=asked.tokenized, worst=asked.worst
        )
    compared: dict[str, Compared] = {}
    if against is not None:
        other = _others(against, exam, asked)
        with working("comparing"):
            compared = compare(given, other, exam.references, counting=counting, test=asked.test)
    return Measured(exam, given, report, seconds, compared)


def _others(against: str, exam: Exam, asked: Asked) -> list[str]:
    """The translations to compare with: those of a file, or another model's of the same texts."""
    from regard.use.evaluation import read_texts

    if Path(against).is_file():
        return read_texts(against)[: asked.limit]
    if exam.sources is None:
        raise SettingsError(f"--against ({against}) is a model, which needs --input to translate; or give a file")
    model = load_translator(against, asked.device)
    with working(f"translating {len(exam.references):,} sentences with {against}"):
        return exam.answers(model, asked.beam, asked.as_used)


def _save(path: Path, measured: list[Measured]) -> None:
    """One translation a line; of several directions, each has a file of its own."""
    from regard.files import write_text

    for each in measured:
        place = path if len(measured) == 1 else path.with_name(f"{path.name}.{each.exam.name}")
        write_text(place, "".join(" ".join(text.splitlines()) + "\n" for text in each.answers))


# --------------------------------------------------------------------------------------------------------- other tasks


def _tell_figures(place: Path, asked: Asked, as_json: bool) -> None:
    from regard.use.evaluation import figures_on

    with working("evaluating"):
        split, figures = figures_on(place, asked.split, asked.changes, asked.device)
    if as_json:
        from regard.training.run import json_value

        told = {"model": str(place), "split": split, "figures": json_value(figures)}
        typer.echo(json.dumps(told, indent=2))
        return
    from regard.cli.tables import console, grid
    from regard.format import four_digits

    table = grid(f"{place}, {split}", "")
    for name, value in figures.items():
        table.add_row(name, four_digits(value))
    console().print(table)


# ------------------------------------------------------------------------------------------------------------- results


def _as_table(told: str, measured: list[Measured], against: str | None) -> dict[str, Any]:
    def one(each: Measured) -> dict[str, Any]:
        table = {**each.report.as_table(), "seconds": each.seconds}
        if against is not None:
            table["against"] = {name: compared._asdict() for name, compared in each.compared.items()}
        return table

    return {"evaluated": told, "against": against, "reports": {each.exam.name: one(each) for each in measured}}


def _print(told: str, measured: list[Measured], against: str | None) -> None:
    for index, each in enumerate(measured):
        if index:
            typer.echo()
        name = f", {each.exam.name}" if each.exam.name else ""
        count = each.report.sentences
        speed = "" if not each.seconds else f", {each.seconds:.1f} s ({count / each.seconds:.1f} a second)"
        typer.echo(f"{told}{name}: {count:,} sentence{'s' if count != 1 else ''}{speed}")
        _print_report(each.report)
        if against is not None:
            _print_compared(each.compared, against)


def _print_report(report: Report) -> None:
    from regard.cli.tables import console, grid

    out = console()
    table = grid("", "score", text="signature")
    for name, figure in report.figures.items():
        table.add_row(NAMES[name], f"{figure.score:.2f}", figure.signature)
    table.add_row("exactly right", f"{100 * report.exact:.1f} %", "")
    out.print(table, soft_wrap=True)
    typer.echo()
    lengths = grid("words", "sentences", "BLEU", "chrF", "length")
    for row in report.lengths:
        words = f"{row.first} and more" if row.last is None else f"{row.first or 'up'} to {row.last}"
        lengths.add_row(words, f"{row.sentences:,}", f"{row.bleu:.1f}", f"{row.chrf:.1f}", f"{row.ratio:.2f}")
    out.print(lengths)
    for sentence in report.worst:
        typer.echo(f"\nline {sentence.place:,}, chrF {sentence.chrf:.1f}")
        if sentence.source is not None:
            typer.echo(f"  source       {sentence.source}")
        typer.echo(f"  reference    {sentence.reference}")
        typer.echo(f"  translation  {sentence.hypothesis}")


def _print_compared(compared: dict[str, Compared], against: str) -> None:
    from regard.cli.tables import console, grid

    typer.echo()
    table = grid(f"against {against}", "here", "there", "p", "95 %", text="signature")
    for name, each in compared.items():
        interval = "" if each.interval is None else f"± {each.interval:.2f}"
        table.add_row(
            NAMES[name], f"{each.score:.2f}", f"{each.against:.2f}", f"{each.p:.4f}", interval, each.signature
        )
    console().print(table, soft_wrap=True)
