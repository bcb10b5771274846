"""`regard evaluate` and `regard predict`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from regard.cli import terminal
from regard.errors import DataError, SettingsError
from regard.use.translation import TranslateOptions

if TYPE_CHECKING:
    from regard.use.evaluation import Compared, EvaluationSet, Report
    from regard.use.translator import Translator

EVALUATE_EXAMPLE = "Example: regard evaluate runs/multi30k-en-de --split test --against runs/older"
PREDICT_EXAMPLE = "Example: regard predict runs/digits image.png --json"

NAMES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "bleu-tokenized": "BLEU, tokenized, lower case"}
CHUNK = 256
"""Inputs of `predict` that are passed to the model at once."""

SplitName: TypeAlias = Literal["train", "valid", "test"]
BleuTokenizer: TypeAlias = Literal["13a", "none", "intl", "zh", "char"]
Test: TypeAlias = Literal["bootstrap", "randomization"]


@dataclass
class Evaluation:
    """How to evaluate, and the results by direction."""

    against: str | None
    limit: int | None
    to: str | None
    beam: int
    as_used: bool
    device: str | None
    worst: int
    lowercase: bool
    tokenize: BleuTokenizer
    tokenized: bool
    test: Test
    name: str = ""
    results: dict[str, Result] = field(default_factory=dict)

    def evaluate(self, test_set: EvaluationSet, model: Translator | None, hypotheses: list[str] | None = None) -> None:
        """Scores hypotheses, or the model's translations."""
        from regard.use.evaluation import Counting, compare, evaluate_texts

        counting, seconds = Counting(self.lowercase, self.tokenize), None
        if hypotheses is None:
            assert model is not None
            started = perf_counter()
            hypotheses = self._translate(test_set, model)
            seconds = perf_counter() - started
        compared: dict[str, Compared] = {}
        with terminal.progress("scoring"):
            report = evaluate_texts(
                hypotheses,
                test_set.references,
                test_set.sources,
                counting=counting,
                tokenized=self.tokenized,
                worst=self.worst,
            )
        if self.against is not None:
            others = self._others(test_set, self.against)
            with terminal.progress("testing significance"):
                compared = compare(hypotheses, others, test_set.references, counting=counting, test=self.test)
        self.results[test_set.name] = Result(hypotheses, report, seconds, compared)

    def _translate(self, test_set: EvaluationSet, model: Translator) -> list[str]:
        with terminal.progress(f"translating {len(test_set.references):,} sentences with {model.name}"):
            return test_set.translations(model, self.beam, self.as_used)

    def _others(self, test_set: EvaluationSet, against: str) -> list[str]:
        """The translations to compare with: lines of a file, or those of another model."""
        from regard.use.evaluation import read_texts

        if Path(against).is_file():
            return read_texts(against)[: self.limit]
        if test_set.sources is None:
            raise SettingsError(f"--against ({against}) is a model and needs --input; add it, or give a file")
        return self._translate(test_set, terminal.load_translator(against, self.device))


@dataclass(frozen=True)
class Result:
    """The result of one direction."""

    hypotheses: list[str]
    report: Report
    seconds: float | None
    """Time of translating; None if translations were given."""
    compared: dict[str, Compared]


def evaluate_command(  # noqa: PLR0913
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [KEY=VALUE]...",
            help=f"{terminal.MODEL_HELP} Settings of its data may follow: data.root=DIR. No model with --hypotheses.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        SplitName | None, typer.Option(help="Split of the run's data.", show_default="test if any, else valid")
    ] = None,
    source: Annotated[Path | None, typer.Option("--input", help="Texts to translate, instead of a split.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Reference translations, line by line.")] = None,
    hypotheses: Annotated[Path | None, typer.Option(help="Translations to score, instead of a model's.")] = None,
    against: Annotated[
        str | None, typer.Option(help="Another model or a file of translations, for a paired significance test.")
    ] = None,
    test: Annotated[Test, typer.Option(help="Significance test.")] = "bootstrap",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    tokenize: Annotated[BleuTokenizer, typer.Option(help="BLEU's tokenizer; none for tokenized texts.")] = "13a",
    tokenized: Annotated[
        bool, typer.Option("--tokenized", help="Also print BLEU of tokenized, lower-cased texts, as in older papers.")
    ] = False,
    beam: Annotated[int, typer.Option(min=1, help="Beam size.")] = TranslateOptions().beam,
    to: Annotated[
        str | None, typer.Option(help="Evaluate only this target language.", show_default="all languages")
    ] = None,
    as_used: Annotated[
        bool, typer.Option("--as-used", help="Translate as regard translate does: split sentences, keep numbers.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Use the first LIMIT texts.", show_default="all")] = None,
    worst: Annotated[int, typer.Option(min=0, help="Number of worst translations to print.")] = 5,
    save: Annotated[Path | None, typer.Option(help="Write the translations to this file.")] = None,
    device: terminal.Device = None,
    threads: terminal.Threads = None,
    as_json: terminal.Json = False,
) -> None:
    """Evaluate a model: translation by BLEU, chrF and TER (sacreBLEU), other tasks by their own metrics."""
    from regard.models.cpu import bound_kernel_caches

    names, changes = terminal.split_words(words, "data.")
    _check(names, source, reference, hypotheses)
    bound_kernel_caches()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    run = Evaluation(against, limit, to, beam, as_used, device, worst, lowercase, tokenize, tokenized, test)
    if hypotheses is not None or source is not None:
        _evaluate_files(run, names, source, reference, hypotheses)
    else:
        from regard.use.evaluation import task_of

        directory, config = _config(names[0])
        if task_of(config) not in (None, "translate"):
            _print_metrics(directory, split, changes, device, as_json)
            return
        _evaluate_split(run, names[0], config, split, changes)
    if save is not None:
        for name, result in run.results.items():
            path = save if len(run.results) == 1 else save.with_name(f"{save.name}.{name}")
            terminal.write_lines((" ".join(text.splitlines()) for text in result.hypotheses), path)
    if as_json:
        terminal.print_json(_as_table(run))
    else:
        _print(run)


def _check(names: list[str], source: Path | None, reference: Path | None, hypotheses: Path | None) -> None:
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


def _config(name: str) -> tuple[Path, dict[str, Any]]:
    from regard.use.model import find_model
    from regard.weights.directory import CONFIG, read_config

    directory, _ = find_model(name)
    return directory, read_config(directory) if (directory / CONFIG).is_file() else {}


def _evaluate_split(
    run: Evaluation, name: str, config: dict[str, Any], split: SplitName | None, changes: dict[str, Any]
) -> None:
    from regard.use.evaluation import evaluation_sets

    model = terminal.load_translator(name, run.device)
    chosen, found = evaluation_sets(config, split, changes, run.limit)
    targets = {target for _, target in model.directions}
    fitting = [
        test_set
        for test_set in found
        if test_set.to is None or (test_set.to in targets and run.to in (None, test_set.to))
    ]
    if not fitting:
        raise DataError(
            f"data.{chosen} has no pairs into --to ({run.to}); choose one of {', '.join(each.name for each in found)}"
        )
    task = config.get("task")
    bleu = task.get("bleu") if isinstance(task, dict) else None
    if isinstance(bleu, dict) and bleu.get("tokenize") == "none":  # the run's data are tokenized
        run.tokenized = True
    run.name = f"{name}, {chosen}"
    for test_set in fitting:
        run.evaluate(test_set, model)


def _evaluate_files(
    run: Evaluation, names: list[str], source: Path | None, reference: Path | None, hypotheses: Path | None
) -> None:
    from regard.use.evaluation import EvaluationSet, read_texts

    sources, references, given = (
        None if file is None else read_texts(str(file))[: run.limit] for file in (source, reference, hypotheses)
    )
    assert references is not None
    if sources is not None and len(sources) != len(references):
        raise DataError(
            f"{source} has {len(sources):,} lines and {reference} {len(references):,}; they need the same number"
        )
    model = terminal.load_translator(names[0], run.device) if names else None
    run.name = " ".join(str(each) for each in (*names, hypotheses or source))
    run.evaluate(EvaluationSet("", sources, references, run.to), model, given)


def _print_metrics(
    directory: Path, split: SplitName | None, changes: dict[str, Any], device: str | None, as_json: bool
) -> None:
    """Evaluates a run of another task by its own metrics."""
    from regard.format import four_digits
    from regard.tasks.run import evaluate_run
    from regard.training.run import json_value

    with terminal.progress("evaluating"):
        chosen, metrics = evaluate_run(directory, split, changes, device)
    if as_json:
        terminal.print_json({"model": str(directory), "split": chosen, "metrics": json_value(metrics)})
        return
    table = terminal.grid(f"{directory}, {chosen}", "")
    for name, value in metrics.items():
        table.add_row(name, four_digits(value))
    terminal.console().print(table)


# ------------------------------------------------------------------------------------------------------------- results


def _as_table(run: Evaluation) -> dict[str, Any]:
    reports = {}
    for name, result in run.results.items():
        reports[name] = {**result.report.as_table(), "seconds": result.seconds}
        if run.against is not None:
            reports[name]["against"] = {metric: each._asdict() for metric, each in result.compared.items()}
    return {"evaluated": run.name, "against": run.against, "reports": reports}


def _print(run: Evaluation) -> None:
    out = terminal.console()
    for index, (name, result) in enumerate(run.results.items()):
        if index:
            out.print()
        count = result.report.sentences
        title = f"{run.name}, {name}" if name else run.name
        speed = f", {result.seconds:.1f} s ({count / result.seconds:.1f} per second)" if result.seconds else ""
        out.print(f"{title}: {count:,} sentence{'s' if count != 1 else ''}{speed}", soft_wrap=True)
        _print_report(result.report)
        if run.against is not None:
            out.print()
            table = terminal.grid(f"against {run.against}", "here", "there", "p", "95 %", text="signature")
            for metric, each in result.compared.items():
                interval = "" if each.interval is None else f"± {each.interval:.2f}"
                scores = (f"{each.score:.2f}", f"{each.against:.2f}", f"{each.p:.4f}", interval)
                table.add_row(NAMES[metric], *scores, each.signature)
            out.print(table, soft_wrap=True)


def _print_report(report: Report) -> None:
    out = terminal.console()
    table = terminal.grid("", "score", text="signature")
    for name, metric in report.metrics.items():
        table.add_row(NAMES[name], f"{metric.score:.2f}", metric.signature)
    table.add_row("exact matches", f"{100 * report.exact:.1f} %", "")
    out.print(table, soft_wrap=True)
    out.print()
    lengths = terminal.grid("words", "sentences", "BLEU", "chrF", "length")
    for row in report.lengths:
        words = f"{row.first} or more" if row.last is None else f"{row.first or 'up'} to {row.last}"
        lengths.add_row(words, f"{row.sentences:,}", f"{row.bleu:.1f}", f"{row.chrf:.1f}", f"{row.ratio:.2f}")
    out.print(lengths)
    for sentence in report.worst:
        typer.echo(f"\nline {sentence.place:,}, chrF {sentence.chrf:.1f}")
        if sentence.source is not None:
            typer.echo(f"  source       {sentence.source}")
        typer.echo(f"  reference    {sentence.reference}")
        typer.echo(f"  translation  {sentence.hypothesis}")


# ------------------------------------------------------------------------------------------------------------- predict


def predict_command(
    model: terminal.ModelName,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT]...", help="Texts, or image files for a vision model.", show_default="standard input"
        ),
    ] = None,
    source: terminal.InputFile = None,
    output: terminal.OutputFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON value for each input.")] = False,
    device: terminal.Device = None,
) -> None:
    """Apply a model of any task to inputs. The output has one line per input."""
    if inputs and source is not None:
        raise SettingsError(f"give inputs or a file (--input {source}), not both")
    import regard
    from regard.models.cpu import bound_kernel_caches

    bound_kernel_caches()
    loaded: Any = regard.load(model, device=device)
    lines = iter(inputs) if inputs else terminal.text_lines(str(source)) if source else None
    results = (result for chunk in _input_chunks(lines) for result in loaded.predict(chunk))
    terminal.write_lines((_result_line(result, as_json) for result in results), output)


def _input_chunks(lines: Iterator[str] | None) -> Iterator[list[str]]:
    from regard.use.translator import chunks

    return terminal.read_input(CHUNK) if lines is None else chunks(lines, CHUNK)


def _result_line(result: Any, as_json: bool) -> str:
    value = asdict(result) if is_dataclass(result) and not isinstance(result, type) else result
    if isinstance(value, str) and not as_json:
        return " ".join(value.splitlines())
    return json.dumps(value, ensure_ascii=False, default=str)
