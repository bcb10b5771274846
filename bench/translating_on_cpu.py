"""Speed of translation on a CPU, compared with CTranslate2 and transformers, with the same weights.

    python bench/translating_on_cpu.py [--model DIRECTORY [--to de]] --sources FILE [--references FILE]
        [--sentences 160] [--threads 2] [--rounds 5] [--batch 32] [--without transformers] [--out result.json]

We write the model, and the others read it. Beam 5 without a length penalty, so that all three search for the same
translation; runs alternate, and results are medians. Without `--model`, the script uses the paper's base model with
random weights and 32,000 tokens, which reads 4/3 random tokens for each word of a line, and writes 24, since it would
never end. With references, BLEU is reported too.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ctranslate2
import sacrebleu
import torch
from measured import environment, lines
from transformers import AutoModelForSeq2SeqLM

from regard.decoding.decode import decode
from regard.decoding.settings import Absolute, Beam, Ends, Power, Rules, ToSource
from regard.errors import RegardError
from regard.models.build import build
from regard.models.cpu import Numbers, prepared
from regard.models.families import EncoderDecoder
from regard.models.presets import preset
from regard.text.settings import Words
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.model import load
from regard.use.translator import Translator
from regard.weights.ctranslate2 import write_ctranslate2
from regard.weights.huggingface.directory import write_pretrained

Tokens = list[list[int]]
System = Callable[[Tokens], Tokens]
BEAMS, VOCABULARY, WRITTEN, RATIO, EXTRA = 5, 32_000, 24, 1.5, 10


def trained(directory: Path, to: str | None, sources: list[str]) -> tuple[EncoderDecoder, TokenizerPair, Ends, Tokens]:
    model = load(directory, device="cpu")
    assert isinstance(model, Translator)
    inputs = model.tokenizers.inputs(sources, None if to is None else [to] * len(sources))
    return model.network, model.tokenizers, model.frame.ends, inputs


def untrained(sources: list[str]) -> tuple[EncoderDecoder, TokenizerPair, Ends, Tokens]:
    torch.manual_seed(0)
    draw = random.Random(0)
    tokenizer = train_tokenizer(Words(size=VOCABULARY), (f"w{number}" for number in range(VOCABULARY)))
    changes = {"vocabulary": tokenizer.size, "position.order": "halves", "attention.bias": True}
    model = build(preset("transformer-base").changed(changes)).eval()
    assert isinstance(model, EncoderDecoder)
    ends = Ends(tokenizer.role("start"), tokenizer.role("end"))
    special = len(tokenizer.roles)
    counts = [len(line.split()) * 4 // 3 for line in sources]
    inputs = [[*(draw.randrange(special, tokenizer.size) for _ in range(count)), ends.end] for count in counts]
    return model, TokenizerPair.of(tokenizer), ends, inputs


def ours(model: EncoderDecoder, ends: Ends, longest: Absolute | ToSource, batch: int) -> System:
    beam, rules = Beam(size=BEAMS, length=Power(alpha=0.0)), Rules(longest=longest)

    def write(inputs: Tokens) -> Tokens:
        tokens = batch * BEAMS * sum(map(len, inputs)) // len(inputs)
        return [row[0].tokens for row in decode(model, inputs, ends, beam, rules, batch_tokens=tokens)]

    return write


def by_ctranslate2(
    directory: str, pair: TokenizerPair, numbers: Numbers, longest: Absolute | ToSource, batch: int, threads: int
) -> System:
    reader = ctranslate2.Translator(
        directory, device="cpu", compute_type=numbers, inter_threads=1, intra_threads=threads
    )

    def write(inputs: Tokens) -> Tokens:
        # Their end of the source is added by them. Longer sequences than ours are cut: they have one limit for all.
        texts = [[pair.source.token(token) for token in row[:-1]] for row in inputs]
        results = reader.translate_batch(
            texts,
            max_batch_size=batch,
            beam_size=BEAMS,
            length_penalty=0,
            max_input_length=0,
            max_decoding_length=max(longest.of(len(row)) for row in inputs),
        )
        return [[number(pair, token) for token in result.hypotheses[0]] for result in results]

    return write


def number(pair: TokenizerPair, token: str) -> int:
    found = pair.target.id(token)
    return -1 if found is None else found


def by_transformers(directory: str, ends: Ends, longest: Absolute | ToSource, batch: int) -> System:
    model = AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
    model.generation_config.forced_eos_token_id = None

    @torch.inference_mode()
    def write(inputs: Tokens) -> Tokens:
        order = sorted(range(len(inputs)), key=lambda place: -len(inputs[place]))
        found: Tokens = [[] for _ in inputs]
        for i in range(0, len(order), batch):
            places = order[i : i + batch]
            time_ = len(inputs[places[0]])
            rows = [inputs[place] + [0] * (time_ - len(inputs[place])) for place in places]
            mask = [[1] * len(inputs[place]) + [0] * (time_ - len(inputs[place])) for place in places]
            out = model.generate(
                input_ids=torch.tensor(rows),
                attention_mask=torch.tensor(mask),
                num_beams=BEAMS,
                do_sample=False,
                length_penalty=0.0,
                max_new_tokens=longest.of(time_),
            )
            for place, row in zip(places, out[:, 1:].tolist(), strict=True):
                found[place] = row[: row.index(ends.end)] if ends.end in row else row
        return found

    return write


def systems(
    model: EncoderDecoder, pair: TokenizerPair, ends: Ends, options: argparse.Namespace, room: Path
) -> dict[str, System]:
    longest = ToSource(ratio=RATIO, extra=EXTRA) if options.model else Absolute(tokens=WRITTEN)
    write_ctranslate2(model, pair, room / "ctranslate2")
    found: dict[str, System] = {
        "regard float32": ours(model, ends, longest, options.batch),
        "regard int8": ours(prepared(model, "int8"), ends, longest, options.batch),
    }
    for numbers in ("float32", "int8"):
        found[f"ctranslate2 {numbers}"] = by_ctranslate2(
            str(room / "ctranslate2"), pair, numbers, longest, options.batch, options.threads
        )
    if "transformers" not in options.without:
        config = {"pad_token_id": ends.start, "eos_token_id": ends.end, "decoder_start_token_id": ends.start}
        try:
            write_pretrained(model, room / "transformers", config=config)
            found["transformers"] = by_transformers(str(room / "transformers"), ends, longest, options.batch)
        except RegardError as error:
            print(f"without transformers: {error}")
    return found


def measure(each: dict[str, System], inputs: Tokens, rounds: int) -> tuple[dict[str, list[float]], dict[str, Tokens]]:
    """Seconds of every run, and what was written; the systems take turns, after a short run to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in each}
    written: dict[str, Tokens] = {}
    for write in each.values():
        write(inputs[:8])
    for _ in range(rounds):
        for name, write in each.items():
            begun = time.perf_counter()
            written[name] = write(inputs)
            seconds[name].append(time.perf_counter() - begun)
    return seconds, written


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--to")
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--references", type=Path)
    parser.add_argument("--sentences", type=int, default=160)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sources = lines(options.sources)[: options.sentences]
    made = trained(options.model, options.to, sources) if options.model else untrained(sources)
    model, pair, ends, inputs = made
    with tempfile.TemporaryDirectory() as room:
        each = systems(model, pair, ends, options, Path(room))
        seconds, written = measure(each, inputs, options.rounds)
    first = written["regard float32"]
    rows = []
    for name, times in seconds.items():
        median = statistics.median(times)
        equal = sum(a == b for a, b in zip(first, written[name], strict=True)) / len(first)
        row = {
            "system": name,
            "seconds": round(median, 2),
            "least": round(min(times), 2),
            "sentences_per_second": round(len(inputs) / median, 2),
            "tokens": sum(map(len, written[name])),
            "equal_to_regard_float32": round(equal, 4),
        }
        if options.references:
            references = [lines(options.references)[: options.sentences]]
            texts = pair.target.decode_batch(written[name])
            row["bleu"] = round(sacrebleu.corpus_bleu(texts, references).score, 2)
        rows.append(row)
        print(json.dumps(row), flush=True)
    speed = {row["system"]: 1 / row["seconds"] for row in rows}
    ratios = {
        f"{mine} / {other}": round(speed[mine] / speed[other], 2)
        for mine, other in (
            ("regard float32", "ctranslate2 float32"),
            ("regard int8", "ctranslate2 int8"),
            ("regard float32", "transformers"),
        )
        if other in speed
    }
    print(json.dumps(ratios))
    if options.out:
        settings = {"threads": options.threads, "beams": BEAMS, "sentences": len(inputs), "batch": options.batch}
        every = {"environment": environment(), **settings, "rows": rows, "ratios": ratios}
        options.out.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
