"""`regard evaluate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from regard.cli import terminal
from regard.errors import DataError, SettingsError
from regard.files import require_writable

if TYPE_CHECKING:
    from regard.use.evaluation import Compared, EvaluationSet, Report
    from regard.use.translator import Translator

NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "brackets": "bracket F1"}
WIDEST = 12
"""Most classes of a confusion matrix that is printed as a table, and most mistakes of more classes."""

BleuTokenizer: TypeAlias = Literal["13a", "none", "intl", "zh", "char"]

Evaluated: TypeAlias = "tuple[Report, float | None, dict[str, Compared]]"
"""The report of one direction, the time of translating (None if translations were given), the significance tests."""

_MODEL = f"{terminal.MODEL_HELP} Settings of its data may follow: data.root=DIR. No model with --hypotheses."


def evaluate_command(  # noqa: PLR0913
    words: Annotated[list[str] | None, typer.Argument(metavar="[MODEL] [KEY=VALUE]...", help=_MODEL)] = None,
    split: Annotated[
        terminal.SplitName | None, typer.Option(help="Split of the data.", show_default="test, valid")
    ] = None,
    source: Annotated[Path | None, typer.Option("--input", help="Texts to translate, instead of a split.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Reference translations, line by line.")] = None,
    hypotheses: Annotated[Path | None, typer.Option(help="Translations to score, instead of a model's.")] = None,
    against: Annotated[str | None, typer.Option(help="Model or file to compare with (significance test).")] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    tokenize: Annotated[BleuTokenizer, typer.Option(help="BLEU's tokenizer; none for tokenized texts.")] = "13a",
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size.", show_default="5, or the model's")] = None,
    to: Annotated[str | None, typer.Option(help="Evaluate only this target language.")] = None,
    as_used: Annotated[bool, typer.Option("--as-used", help="Split sentences and keep numbers.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Use the first LIMIT texts.", show_default="all")] = None,
    worst: Annotated[int, typer.Option(min=0, help="Number of worst translations to print.")] = 5,
    save: Annotated[Path | None, typer.Option(help="Write translations (or the runs of --suite) here.")] = None,
    suite: Annotated[str | None, typer.Option(help="Train a suite: glue, gpt, words, squad or a file.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each task, with --suite.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time, with --suite.")] = 1,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens between overlapping windows, for language models.")
    ] = None,
    device: terminal.Device = None,
    threads: terminal.Threads = None,
    as_json: terminal.Json = False,
) -> None:
    """Evaluate a model: translation by BLEU, chrF and TER (sacreBLEU), other tasks by their own metrics.

    With --suite, give [MODEL] and the directory of the data: each task is trained from the model, or from scratch.
    """
    if suite is not None:
        _run_suite(suite, list(words or ()), save, seeds, jobs, device, as_json)
        return
    names, changes = terminal.split_words(words, "data.")
    _check(names, source, reference, hypotheses, save)
    terminal.prepare_torch(threads, names)
    from regard.use.evaluation import compare, evaluate_texts

    if reference is None and (directory := _of_another_task(names[0])) is not None:
        _print_metrics(directory, split, changes, device, as_json, stride)
        return
    model: Translator | None = terminal.open_model(names[0], device, verb="translate") if names else None
    if model is not None and to is not None:
        model.target_language(to=to)  # raises an error if the model does not translate into it
    given: list[str] = []
    if reference is None:
        assert model is not None
        chosen, sets = _sets_of_run(model, split, changes, limit, to)
        title = f"{names[0]}, {chosen}"
    else:
        sets, given = _sets_of_files(source, reference, hypotheses, limit, to)
        title = " ".join(str(each) for each in (*names, hypotheses or source))

    results: dict[str, Evaluated] = {}
    for test_set in sets:
        started = perf_counter()
        translations = given if model is None else _translate(test_set, model, beam, as_used)
        seconds = None if model is None else perf_counter() - started
        if save is not None:
            path = save if len(sets) == 1 else save.with_name(f"{save.name}.{test_set.name}")
            terminal.write_lines((" ".join(text.splitlines()) for text in translations), path)
        texts = (translations, test_set.references, test_set.sources)
        with terminal.progress("scoring"):
            report = evaluate_texts(*texts, lowercase=lowercase, tokenize=tokenize, worst=worst)
        compared: dict[str, Compared] = {}
        if against is not None:
            if Path(against).is_file():
                others = [*terminal.text_lines(against)][:limit]
            else:
                others = _translate(test_set, terminal.open_model(against, device, verb="translate"), beam, as_used)
            with terminal.progress("testing significance"):
                compared = compare(translations, others, test_set.references, lowercase=lowercase, tokenize=tokenize)
        results[test_set.name] = (report, seconds, compared)
    (_print_json if as_json else _print)(title, against, results)


def _of_another_task(name: str) -> Path | None:
    """The directory of a run whose task is not translation; None for other models."""
    from regard.tasks.task import find_task
    from regard.use.model import task_kind
    from regard.weights.directory import CONFIG, read_config
    from regard.weights.location import find_model

    directory, _ = find_model(name)
    kind = task_kind(read_config(directory)) if (directory / CONFIG).is_file() else None
    return directory if kind is not None and not find_task(kind).translates else None


def _translate(test_set: EvaluationSet, model: Translator, beam: int | None, as_used: bool) -> list[str]:
    """Unless `as_used`, texts are neither split nor protected, as in most papers."""
    if test_set.sources is None:
        raise SettingsError(f"--against ({model.name}) is a model and needs --input; add it, or give a file")
    to = test_set.to if model.tagged else None
    with terminal.progress(f"translating {len(test_set.references):,} sentences with {model.name}"):
        beam = beam or model.frame.defaults.beam
        return model.translate(test_set.sources, beam=beam, to=to, split=as_used, keep=as_used)


def _run_suite(
    suite: str, words: list[str], save: Path | None, seeds: int, jobs: int, device: str | None, as_json: bool
) -> None:
    changes = [word for word in words if "=" in word]
    names = [word for word in words if word not in changes]
    if len(names) not in (1, 2):
        raise SettingsError(f"--suite needs the directory of its data: regard evaluate [MODEL] --suite {suite} DIR")
    *model, data = names
    if not Path(data).is_dir():
        raise DataError(f"{data} is not a directory; give the directory with the data of the suite")
    terminal.prepare_torch(None, model)
    from regard.use.suite import Suite, markdown

    name = Path(model[0]).name if model else "scratch"
    directory = save or Path("runs") / f"{Path(suite).stem}-{name}"
    with terminal.progress(f"suite {suite}, in {directory}") as show:
        made = Suite(suite, str(Path(data).resolve()), model[0] if model else None, directory, changes, device)
        results = made.run(seeds, jobs, show)
    if as_json:
        terminal.print_json([asdict(result) | {"median": result.median} for result in results])
    else:
        terminal.console().print("\n".join(markdown(results)), soft_wrap=True)


def _sets_of_run(
    model: Translator, split: terminal.SplitName | None, changes: dict[str, Any], limit: int | None, to: str | None
) -> tuple[terminal.SplitName, list[EvaluationSet]]:
    """The split of a run's data, and its pairs for each direction of the model, or for the direction `to`."""
    from regard.use.evaluation import evaluation_sets

    chosen, found = evaluation_sets(model.config, split, changes, limit)
    targets = {target for _, target in model.directions}
    sets = [each for each in found if each.to is None or (each.to in targets and to in (None, each.to))]
    if not sets:
        known = ", ".join(each.name for each in found)
        raise DataError(f"data.{chosen} has no pairs into --to ({to}); choose one of {known}")
    return chosen, sets


def _sets_of_files(
    source: Path | None, reference: Path, hypotheses: Path | None, limit: int | None, to: str | None
) -> tuple[list[EvaluationSet], list[str]]:
    from regard.use.evaluation import EvaluationSet

    sources, references, given = (
        None if file is None else [*terminal.text_lines(str(file))][:limit] for file in (source, reference, hypotheses)
    )
    assert references is not None
    if sources is not None and len(sources) != len(references):
        raise DataError(
            f"{source} has {len(sources):,} lines and {reference} {len(references):,}; they need the same number"
        )
    return [EvaluationSet("", sources, references, to)], given or []


def _check(
    names: list[str], source: Path | None, reference: Path | None, hypotheses: Path | None, save: Path | None
) -> None:
    if len(names) > 1:
        raise SettingsError(f"{len(names)} models are given ({', '.join(names)}); give one, and --against another")
    if not names and hypotheses is None:
        raise SettingsError("nothing to evaluate; give a model, or --hypotheses FILE --reference FILE")
    if names and hypotheses is not None:
        raise SettingsError("--hypotheses needs no model; give one of the two")
    if (source is not None or hypotheses is not None) and reference is None:
        raise SettingsError("--reference is missing; give the file with the reference translations")
    if reference is not None and source is None and hypotheses is None:
        raise SettingsError("--reference needs --input (texts to translate) or --hypotheses (translations); add one")
    if save is not None:
        require_writable(save, "--save")


def _print_metrics(
    directory: Path,
    split: terminal.SplitName | None,
    changes: dict[str, Any],
    device: str | None,
    as_json: bool,
    stride: int | None,
) -> None:
    from regard.format import four_digits
    from regard.tasks.run import evaluate_run
    from regard.training.run import json_value

    with terminal.progress("evaluating") as report:
        chosen, metrics, details = evaluate_run(directory, split, changes, device, report, stride)
    if as_json:
        terminal.print_json({"model": str(directory), "split": chosen, "metrics": json_value(metrics), **details})
        return
    table = terminal.grid(f"{directory}, {chosen}", "")
    for name, value in metrics.items():
        table.add_row(name, four_digits(value))
    terminal.console().print(table)
    if confusion := details.get("confusion"):
        _print_confusion(confusion["classes"], confusion["counts"])


def _print_confusion(classes: list[str], counts: list[list[int]]) -> None:
    """The matrix of a few classes; of many, the most frequent mistakes."""
    out = terminal.console()
    if len(classes) <= WIDEST:
        table = terminal.grid("class \\ predicted", *(name for name in classes), "right")
        for number, (name, row) in enumerate(zip(classes, counts, strict=True)):
            share = f"{100 * row[number] / sum(row):.1f} %" if sum(row) else ""
            table.add_row(name, *(f"{count:,}" if count else "·" for count in row), share)
    else:
        table = terminal.grid("class", "mistakes", text="predicted")
        pairs = [(row[j], i, j) for i, row in enumerate(counts) for j in range(len(row)) if i != j and row[j]]
        for count, i, j in sorted(pairs, key=lambda pair: -pair[0])[:WIDEST]:
            table.add_row(classes[i], f"{count:,}", classes[j])
    out.print()
    out.print(table)


def _print_json(evaluated: str, against: str | None, results: dict[str, Evaluated]) -> None:
    reports = {}
    for name, (report, seconds, compared) in results.items():
        tests = {"against": {metric: asdict(found) for metric, found in compared.items()}} if against else {}
        reports[name] = {**asdict(report), "seconds": seconds, **tests}
    terminal.print_json({"evaluated": evaluated, "against": against, "reports": reports})


def _print(evaluated: str, against: str | None, results: dict[str, Evaluated]) -> None:
    out = terminal.console()
    for index, (name, (report, seconds, compared)) in enumerate(results.items()):
        if index:
            out.print()
        count = report.sentences
        title = f"{evaluated}, {name}" if name else evaluated
        speed = f", {seconds:.1f} s ({count / seconds:.1f} per second)" if seconds else ""
        out.print(f"{title}: {count:,} sentence{'s' if count != 1 else ''}{speed}", soft_wrap=True)
        table = terminal.grid("", "score", text="signature")
        for metric, result in report.metrics.items():
            table.add_row(NAMES[metric], f"{result.score:.2f}", result.signature)
        table.add_row("exact matches", f"{100 * report.exact:.1f} %", "")
        out.print(table, soft_wrap=True)
        out.print()
        table = terminal.grid("words", "sentences", "BLEU", "chrF", "length")
        for row in report.lengths:
            words = f"{row.first} or more" if row.last is None else f"{row.first or 'up'} to {row.last}"
            table.add_row(words, f"{row.sentences:,}", f"{row.bleu:.1f}", f"{row.chrf:.1f}", f"{row.ratio:.2f}")
        out.print(table)
        for sentence in report.worst:
            out.print(f"\nline {sentence.place:,}, chrF {sentence.chrf:.1f}")
            if sentence.source is not None:
                out.print(f"  source       {sentence.source}", soft_wrap=True)
            out.print(f"  reference    {sentence.reference}", soft_wrap=True)
            out.print(f"  translation  {sentence.hypothesis}", soft_wrap=True)
        if against is not None:
            out.print()
            table = terminal.grid(f"against {against}", "here", "there", "p", "95 %", text="signature")
            for metric, each in compared.items():
                interval = "" if each.interval is None else f"± {each.interval:.2f}"
                scores = (f"{each.score:.2f}", f"{each.against:.2f}", f"{each.p:.4f}", interval)
                table.add_row(NAMES[metric], *scores, each.signature)
            out.print(table, soft_wrap=True)
