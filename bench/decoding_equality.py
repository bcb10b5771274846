"""Compares our beam search with transformers' `generate`, with the same weights in float32.

    PYTHONPATH=src:tests/cases python bench/decoding_equality.py [--model de-en --sources FILE] [--sentences 1000]
        [--steps 400] [--out result.json]

We write the model, and transformers reads it: a named model with the lines of a file, or a small one that learns for
some seconds to reverse random tokens of which a few are dropped or doubled, so that it is uncertain of tokens and of
the end. For each length exponent and each stop rule, the script reports how many sentences have the same translation,
how many of the others are ties (scores less than 1e-4 apart), and the largest difference of scores. It exits with 1 if
less than 99.5 % are equal, a difference is not a tie, or scores differ by 1e-4.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from generate_cases import END, PAD, TIE, compare, generate
from measured import environment, lines
from transformers import AutoModelForSeq2SeqLM

import regard
from regard.blocks.settings import Attention, Dense, Sinusoidal
from regard.decoding.decode import decode
from regard.decoding.model import padded
from regard.decoding.settings import Absolute, Beam, Ends, Power, Rules
from regard.models.build import build
from regard.models.families import EncoderDecoder
from regard.models.settings import EncoderDecoder as Settings
from regard.weights.huggingface.directory import write_pretrained

VOCABULARY, LONGEST, REAL, BEAMS, EXPONENTS = 60, 30, 128, 5, (0.0, 0.6, 1.0)
STOPS = {"best": False, "first": True, "all": "never"}
SETTINGS = Settings(
    vocabulary=VOCABULARY,
    width=64,
    depth=2,
    attention=Attention(heads=4),
    ffn=Dense(hidden=128),
    position=Sinusoidal(order="halves"),
    embedding_scale=True,
    output_bias=True,
    dropout=0.0,
)


def sentence(draw: random.Random) -> list[int]:
    return [draw.randrange(4, VOCABULARY) for _ in range(draw.randint(2, 14))] + [END]


def translation(source: list[int], draw: random.Random) -> list[int]:
    kept = [token for token in source[-2::-1] for _ in range(draw.choice((0, 1, 1, 1, 1, 1, 2)))]
    return [*kept, END]


def trained(steps: int) -> EncoderDecoder:
    torch.manual_seed(0)
    draw = random.Random(0)
    model = build(SETTINGS).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        sources = [sentence(draw) for _ in range(48)]
        targets = [translation(source, draw) for source in sources]
        source, layout = padded(sources, torch.device("cpu"))
        read, read_layout = padded([[PAD, *target[:-1]] for target in targets], torch.device("cpu"))
        wanted, _ = padded([[*target] for target in targets], torch.device("cpu"))
        real = read_layout.real(wanted.device)
        assert real is not None
        loss = torch.nn.functional.cross_entropy(model(source, read, layout, read_layout)[real], wanted[real])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


class Subject(NamedTuple):
    """What is compared."""

    model: EncoderDecoder
    ends: Ends
    pad: int
    inputs: list[list[int]]
    longest: int
    """Tokens that are written at most."""


def small(steps: int, sentences: int) -> Subject:
    model = trained(steps)
    with torch.no_grad():
        assert model.output.bias is not None
        model.output.bias[PAD] = -30.0  # padding is never written
    draw = random.Random(1)
    return Subject(model, Ends(PAD, END), PAD, [sentence(draw) for _ in range(sentences)], LONGEST)


def named(name: str, sources: Path, sentences: int) -> Subject:
    translator: Any = regard.load(name)
    inputs = [tokens[: translator.reach] for tokens in translator.inputs(lines(sources)[:sentences])]
    return Subject(translator.network, translator.frame.ends, translator.tokenizers.target.role("pad"), inputs, REAL)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.model:
        subject = named(options.model, options.sources, options.sentences)
    else:
        subject = small(options.steps, options.sentences)
    ours, ends, pad, inputs, longest = subject
    with tempfile.TemporaryDirectory() as directory:
        config = {"pad_token_id": pad, "eos_token_id": ends.end, "decoder_start_token_id": ends.start}
        write_pretrained(ours, directory, config={**config, "forced_eos_token_id": None})
        theirs = AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
    theirs.generation_config.forced_eos_token_id = None
    rules = Rules(longest=Absolute(tokens=longest))
    rows, good = [], True
    for alpha in EXPONENTS:
        for stop, early in STOPS.items():
            beam = Beam(size=BEAMS, length=Power(alpha=alpha), stop=stop)
            begun = time.perf_counter()
            found = decode(ours, inputs, ends, beam, rules)
            between = time.perf_counter()
            expected = []
            for i in range(0, len(inputs), 64):
                more = {"max_new_tokens": longest, "length_penalty": alpha, "early_stopping": early}
                expected += generate(theirs, inputs[i : i + 64], BEAMS, **more)
            seconds = (between - begun, time.perf_counter() - between)
            agreement = compare(found, expected)
            lengths = sorted(len(row[0].tokens) for row in found)
            good &= agreement.equal >= 0.995 * agreement.inputs and not agreement.unexplained and agreement.apart < TIE
            row = {
                "exponent": alpha,
                "early_stopping": early,
                "equal": agreement.equal,
                "ties": agreement.ties,
                "unexplained": agreement.unexplained,
                "scores_apart": agreement.apart,
                "lengths": [lengths[0], lengths[len(lengths) // 2], lengths[-1]],
                "different": len({tuple(row[0].tokens) for row in found}),
                "unfinished": sum(not row[0].finished for row in found),
                "seconds": [round(each, 1) for each in seconds],
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.out:
        every = {
            "environment": environment(),
            "model": options.model,
            "sentences": len(inputs),
            "beams": BEAMS,
            "rows": rows,
        }
        options.out.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")
    return not good


if __name__ == "__main__":
    sys.exit(main())
