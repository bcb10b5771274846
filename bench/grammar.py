"""Measures a run of `recipes/grammar.toml`: exact translations, correct pronouns, and two baselines for pronouns.

    python bench/grammar.py RUN [--split test] [--seed 1] [--count 2000] [--beam 1] [--json] [--out result.json]

The generator makes the sentences; seed 1 gives those of the shipped corpus. The splits share no combination of words,
whatever the seed. The script exits with 1 if less than 99 % of the sentences, or of the pronouns, are
correct.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
from measured import environment
from tools.grammar.report import GrammarReport, Resolution, Translate, grammar_report, resolve

from regard.decoding.decode import decode
from regard.decoding.settings import Beam, Ends, Greedy
from regard.text.tokenizer import TokenizerPair
from regard.weights.directory import load_model

NEEDED = 0.99


def translator(directory: Path, beam: int) -> Translate:
    """Translates with the run's own model and tokenizers."""
    model, tokenizers = load_model(directory), TokenizerPair.load(directory)
    target = tokenizers.target
    ends = Ends(target.role("start"), target.role("end"))
    search = Beam(size=beam) if beam > 1 else Greedy()

    def translate(texts: list[str]) -> list[str]:
        found = decode(model, tokenizers.source.ids(texts, end=True), ends, search)
        return target.decode_batch([hypotheses[0].tokens for hypotheses in found])

    return translate


def table(report: GrammarReport, seconds: float) -> str:
    rows = [
        (f"sentences of {report.split}, seed {report.seed}", f"{report.sentences:,}"),
        ("  exactly right", f"{report.exact:.2%}"),
        ("pronouns that depend on what they refer to", f"{report.pronouns:,}"),
        ("  right", f"{report.pronoun_accuracy:.2%}"),
        ("  guessed by the nearest noun", f"{report.nearest_noun:.2%}"),
        ("  guessed by the commonest gender", f"{report.majority:.2%}"),
        ("translated in", f"{seconds:.1f} s"),
    ]
    lines = [f"{name:<44}{value:>8}" for name, value in rows]
    if report.wrong:
        counts = ", ".join(f"{name} {number}" for name, number in report.wrong_by_construction.items())
        lines += [f"wrong: {counts}"]
    for wrong in report.wrong:
        lines += [f"  {wrong.source}", f"    right   {wrong.right}", f"    written {wrong.written}"]
    return "\n".join(lines)


def shown(resolution: Resolution) -> str:
    found = f"{resolution.pronoun}: {resolution.referent}" if resolution.referent else "no referent"
    return f"{resolution.source} -> {resolution.translation} ({found})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--split", choices=("valid", "test"), default="test")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    translate = translator(given.run, given.beam)
    start = time.perf_counter()
    report = grammar_report(translate, given.seed, given.split, given.count)
    seconds = time.perf_counter() - start
    examples = resolve(translate)
    result = {**environment(), "seconds": round(seconds, 1), **asdict(report)}
    result["wrong"] = [wrong._asdict() for wrong in report.wrong]
    result["examples"] = [example._asdict() for example in examples]
    text = json.dumps(result, indent=2, ensure_ascii=False)
    print(text if given.json else "\n".join([table(report, seconds), *map(shown, examples)]))
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")
    sys.exit(0 if min(report.exact, report.pronoun_accuracy) >= NEEDED else 1)


if __name__ == "__main__":
    main()
