"""decode(model, inputs): tokens in, tokens out, in the order of the inputs and whatever the batches are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from regard.blocks.cache import CacheKind
from regard.decoding import beam, constrained, greedy, replay
from regard.decoding.request import Ends, Hypothesis, Job, Wish, wishes_for
from regard.decoding.rulebook import is_steady
from regard.decoding.settings import Beam, Greedy, NoPenalty, Rules, Sampling, Search
from regard.decoding.source import Models, Source, source_of
from regard.errors import InputError
from regard.models.cpu import is_watched

BATCH_TOKENS = 8192
"""Tokens read at once, padding included, each counted once for every beam."""

ONE = Beam(size=1, stop="first", length=NoPenalty())
"""A beam of one sequence that stops at its end: it takes the likeliest token each time, as `Greedy`."""


def decode(
    model: Models,
    inputs: Sequence[Sequence[int]],
    ends: Ends,
    search: Search | None = None,
    rules: Rules | None = None,
    wishes: Sequence[Wish] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    cache: CacheKind | None = None,
) -> list[list[Hypothesis]]:
    """The hypotheses of each input, the best first.

    Inputs are sources of an encoder-decoder, or prompts of a decoder. Several models are an ensemble. Inputs of about
    one length are decoded together, at most `batch_tokens` at once.
    """
    if batch_tokens < 1:
        raise InputError(f"batch_tokens ({batch_tokens}) must be at least 1; one input is always taken")
    search, rules = search or Greedy(), rules or Rules()
    asked = wishes_for(inputs, wishes)
    results: list[list[Hypothesis]] = [[] for _ in inputs]
    if cache is None:
        cache = _usual_cache(model, search, rules, asked)
        search = ONE if cache == "fixed" and isinstance(search, Greedy) else search
    with torch.inference_mode():
        source = source_of(model, ends, cache)
        jobs = jobs_for(source, inputs, ends, rules, asked)
        for job in jobs:
            require_possible(job, ends, search, rules, source.vocabulary)
        for batch in batches(jobs, batch_tokens, search.size if isinstance(search, Beam) else 1):
            for job, found in zip(batch, _search(source, batch, ends, rules, search), strict=True):
                results[job.place] = found
    return results


def _search(source: Source, jobs: list[Job], ends: Ends, rules: Rules, search: Search) -> list[list[Hypothesis]]:
    if not isinstance(search, Beam):
        return greedy.write(source, jobs, ends, rules, search)
    if jobs[0].wish.must:
        return [constrained.search(source, job, ends, rules, search) for job in jobs]
    # Kernels and recordings are made on the device that is set, not on that of the tensors.
    with torch.cuda.device(source.device) if source.device.type == "cuda" else contextlib.nullcontext():
        if replay.can_replay(source, jobs, rules, search):
            return replay.replayed(source, jobs, ends, rules, search)
        return beam.BeamSearch(beam.Batch(source, jobs, ends, rules, search)).run()


def _usual_cache(model: Models, search: Search, rules: Rules, wishes: Sequence[Wish]) -> CacheKind:
    """Memory that stays in its place where a GPU can replay its turns: one model, and scores that nothing changes."""
    steady = is_steady(rules, wishes) and not any(wish.must for wish in wishes)
    plain = isinstance(search, Greedy) or (isinstance(search, Beam) and not search.coverage)
    # What is watched is not replayed, and its attention should show the keys there are, not all there is room for.
    replays = isinstance(model, nn.Module) and next(model.parameters()).is_cuda and not is_watched(model)
    return "fixed" if replays and plain and steady else "growing"


def jobs_for(
    source: Source, inputs: Sequence[Sequence[int]], ends: Ends, rules: Rules, wishes: Sequence[Wish]
) -> list[Job]:
    """The inputs with the lengths that the rules and the model's positions allow them."""
    jobs = []
    for place, (tokens, wish) in enumerate(zip(inputs, wishes, strict=True)):
        if not len(tokens):
            what = "its end token" if source.reads else "a token to begin with"
            raise InputError(f"input {place} is empty; give at least {what}")
        room = source.room(len(tokens))
        if room is not None and room < 1:
            raise InputError(f"input {place} ({len(tokens)} tokens) leaves the model's positions no room; shorten it")
        longest = rules.longest.of(len(tokens))
        jobs.append(Job(place, tokens, wish, longest if room is None else min(longest, room)))
    return jobs


def require_possible(job: Job, ends: Ends, search: Search, rules: Rules, vocabulary: int) -> None:
    """Refuses wishes that cannot be met."""
    wish = job.wish
    asked = [*wish.prefix, *(token for word in (*wish.must, *wish.must_not, *rules.must_not) for token in word)]
    wrong = [token for token in asked if not 0 <= token < vocabulary]
    if wrong:
        raise InputError(
            f"token {wrong[0]} of a wish or rule for input {job.place} is not in the vocabulary ({vocabulary}); "
            "give tokens of this model"
        )
    if not all(len(word) for word in (*wish.must, *wish.must_not)):
        raise InputError(f"a word that input {job.place} wishes for, or not, is empty; give its tokens")
    if rules.end_at_longest and ends.end is None:
        raise InputError("rules.end_at_longest needs Ends.end; give it, or leave the rule out")
    if wish.must and not isinstance(search, Beam):
        raise InputError(f"words that must occur need a beam search, not {search.kind}; choose Beam(size=…)")
    least = sum(map(len, constrained.needed(wish.must)))
    if least > job.longest:
        raise InputError(
            f"words that must occur in input {job.place} take {least} tokens, beyond longest ({job.longest}); raise it"
        )


def batches(jobs: list[Job], tokens: int, beams: int) -> Iterator[list[Job]]:
    """Jobs of about one length together, the longest first; those with words that must occur apart."""
    batch: list[Job] = []
    for job in sorted(jobs, key=lambda job: (bool(job.wish.must), -len(job.tokens))):
        apart = bool(batch) and bool(batch[0].wish.must) is not bool(job.wish.must)
        if batch and (apart or (len(batch) + 1) * len(batch[0].tokens) * beams > tokens):
            yield batch
            batch = []
        batch.append(job)
    if batch:
        yield batch


def stream(
    model: Models,
    tokens: Sequence[int],
    ends: Ends,
    search: Greedy | Sampling | None = None,
    rules: Rules | None = None,
    wish: Wish | None = None,
) -> Iterator[tuple[int, float]]:
    """What `decode` would write for one input, as it comes: tokens, without the end, and their log-probabilities."""
    search, rules, wish = search or Greedy(), rules or Rules(), wish or Wish()
    # Not around the whole: a generator would leave the mode switched on for its caller between two tokens.
    with torch.inference_mode():
        source = source_of(model, ends)
        (job,) = jobs_for(source, [tokens], ends, rules, [wish])
        require_possible(job, ends, search, rules, source.vocabulary)
        writing = greedy.Writing(source, [job], ends, rules, search)
    more = True
    while more:
        with torch.inference_mode():
            more = writing.advance()
            step, length = writing.step - 1, int(writing.lengths_B[0])
            token, chance = int(writing.tokens_BL[0, step]), float(writing.chances_BL[0, step])
        if length <= step or token == ends.end:
            return
        yield token, chance
