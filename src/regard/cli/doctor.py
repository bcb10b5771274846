"""`regard doctor`: does a run look normal, and what is odd about it?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from regard.training.checks.evidence import Evidence
    from regard.training.curves import Points
    from regard.training.doctor import Diagnosis, Finding, Level

EXAMPLE = "Example: regard doctor runs/multi30k-en-de --png curves.png"

WIDTH, HEIGHT = 100, 16
"""Of the curves: columns at the most, and rows."""
STYLES: dict[Level, str] = {"bad": "bold red", "odd": "bold yellow", "note": "bold cyan", "fine": "dim"}


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run, finished or not.")],
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the curves into this file (extra: plot).")
    ] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Print the [reference] table for the run's recipe, and nothing else.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Look at a run's log: draw its losses, say what is normal and what is odd, with numbers and remedies."""
    from regard.training.checks.evidence import read_evidence
    from regard.training.doctor import diagnose_evidence, reference_of

    if reference:
        typer.echo(reference_of(run), nl=False)
        return
    evidence = read_evidence(run)
    diagnosis = diagnose_evidence(evidence)
    if png is not None:
        from regard.training.curves import write_png

        write_png(run, png)
        typer.echo(f"curves are in {png}", err=True)
    if as_json:
        findings = [asdict(finding) for finding in diagnosis.findings]
        typer.echo(json.dumps({"run": str(run), "worst": diagnosis.worst, "findings": findings}, indent=2))
    else:
        _print(run, evidence, diagnosis)


# --------------------------------------------------------------------------------------------------------- for people


def _print(run: Path, evidence: Evidence, diagnosis: Diagnosis) -> None:
    from regard.cli.tables import console

    out = console()
    out.print(f"{run}: {verdict(diagnosis)}", style="bold", soft_wrap=True)
    curves = {
        "training loss": evidence.curve("train", "loss").points(),
        "validation loss": evidence.curve("valid", "loss").points(),
    }
    if any(curves.values()):
        out.print()
        print_curves(out, curves)
    out.print()
    for finding in diagnosis.findings:
        _print_finding(out, finding)


def verdict(diagnosis: Diagnosis) -> str:
    """One line: is it normal?"""
    numbers = {level: diagnosis.count(level) for level in ("bad", "odd", "note")}
    looked = len(diagnosis.findings)
    wrong = [f"{number} {level}" for level, number in numbers.items() if number]
    if not numbers["bad"] and not numbers["odd"]:
        notes = f", with {numbers['note']} to note" if numbers["note"] else ""
        return f"looks normal in {looked - numbers['note']} respects{notes}"
    return f"does not look normal: {', '.join(wrong)}, {diagnosis.count('fine')} fine"


def print_curves(out: Console, curves: Points) -> None:
    """Curves over the steps, as wide as the terminal is, in what letters and colours it has."""
    from rich.text import Text

    from regard.training.curves import terminal_curve

    plain = not out.encoding.lower().startswith("utf")
    drawn = terminal_curve(curves, min(out.width, WIDTH), HEIGHT, ascii_only=plain, colours=out.is_terminal)
    out.print(Text.from_ansi(drawn), soft_wrap=True)


def _print_finding(out: Console, finding: Finding) -> None:
    from rich.text import Text

    label = Text(f"{finding.level:<5} ", STYLES[finding.level])
    if finding.level == "fine":
        line = label.append(f"{finding.title}: {finding.evidence}", "dim")
        out.print(line, soft_wrap=True)
        return
    out.print(label.append(finding.title, "bold"), soft_wrap=True)
    out.print(f"      {finding.evidence}", soft_wrap=True)
    if finding.remedy:
        arrow = "→" if out.encoding.lower().startswith("utf") else "->"
        out.print(f"      {arrow} {finding.remedy}", soft_wrap=True)
