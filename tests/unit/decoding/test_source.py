"""Models as decoding sees them: read once, rows that share a source, rows that come and go."""

from __future__ import annotations

import pytest
import torch
from decoding_cases import END, ENDS, continuer, inputs, next_chances, translator

from regard.blocks.layout import Padded
from regard.decoding.source import source_of


@torch.no_grad()
def test_beams_that_share_a_memory_see_what_copies_would() -> None:
    model = translator()
    source, lengths = torch.randint(2, 6, (2, 5)), torch.tensor([5, 3])
    target = torch.randint(2, 6, (6, 4))
    memory = model.encode(source, Padded.of(lengths))
    copied = model.decode(target, memory.repeat_interleave(3, 0), Padded.of(lengths.repeat_interleave(3)))
    cache = model.new_cache(6)
    steps = [model.decode(token, memory, Padded.of(lengths), cache=cache) for token in target.split(1, dim=1)]
    assert torch.allclose(torch.cat(steps, 1), copied, atol=1e-12)
    stored = cache.cross[0].stored
    assert stored is not None
    assert stored[0].shape[0] == 2


@pytest.mark.parametrize("kind", ["growing", "fixed"])
@pytest.mark.parametrize("family", [translator, continuer])
@torch.no_grad()
def test_rows_that_split_change_places_and_go(family, kind) -> None:
    """Each row's scores are those of its own source and what was written in it."""
    model, sources = family(), inputs(3)
    state, scores = source_of(model, ENDS, kind).begin(sources, longest=6)
    written: list[tuple[int, list[int]]] = [(source, []) for source in range(3)]

    def agree() -> None:
        for row, (source, tokens) in enumerate(written):
            expected = next_chances(model, sources[source], tokens)
            assert torch.allclose(scores[row].log_softmax(-1), expected, atol=1e-10)

    agree()
    steps = [([0, 0, 1, 1, 2, 2], None), ([1, 0, 2, 2, 5, 4], None), ([0, 1, 4, 5], [0, 2]), ([1, 1, 2, 3], None)]
    for rows, kept in steps:
        state.select(torch.tensor(rows), None if kept is None else torch.tensor(kept))
        tokens = [2 + (row + len(written)) % 4 for row in range(len(rows))]
        written = [(written[row][0], [*written[row][1], token]) for row, token in zip(rows, tokens, strict=True)]
        scores = state.step(torch.tensor(tokens))
        agree()


def test_sixteen_bits_are_summed_in_thirty_two() -> None:
    source = source_of(translator(dtype=torch.bfloat16), ENDS)
    _, scores = source.begin([[2, END]], longest=3)
    assert scores.dtype == torch.float32
    assert source.vocabulary == 6
