"""`decode(model, inputs)`: tokens in, tokens out, in the order of the inputs and independent of the batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.decoding import beam, constrained
from regard.decoding.continuation import Continuation, Prompt
from regard.decoding.fast import select
from regard.decoding.model import Model, SearchModel, padded_pairs, wide
from regard.decoding.settings import Beam, Ends, Greedy, Hypothesis, Job, Power, Rules, Sampling, Search, Wish
from regard.errors import InputError
from regard.models.families import EncoderDecoder

BATCH_TOKENS = 8192
"""Tokens of a batch, with padding, each counted once for every beam."""
SHORTEST_REPLAY = 4
"""The shortest search that is recorded as a CUDA graph: recording takes two steps."""
ONE = Beam(size=1, stop="first", length=Power(alpha=0.0))
"""A beam search that is equal to greedy search."""


def decode(
    model: Model,
    inputs: Sequence[Sequence[int]],
    ends: Ends,
    search: Search | None = None,
    rules: Rules | None = None,
    wishes: Sequence[Wish] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    fixed: bool | None = None,
) -> list[list[Hypothesis]]:
    """The hypotheses of each input, the best first.

    Inputs are sources of an encoder-decoder, or prompts of a decoder. Inputs of similar length are
    decoded together, at most `batch_tokens` at once. `fixed` overrides whether memory stays in place
    (by default on a GPU, so that steps can be replayed).
    """
    if batch_tokens < 1:
        raise InputError(f"batch_tokens ({batch_tokens}) must be at least 1")
    search, rules = search or Greedy(), rules or Rules()
    asked = [Wish()] * len(inputs) if wishes is None else wishes
    if len(asked) != len(inputs):
        raise InputError(f"there are {len(asked)} wishes for {len(inputs)} inputs; give one for each, Wish() for none")
    results: list[list[Hypothesis]] = [[] for _ in inputs]
    with torch.inference_mode():
        prepared = SearchModel(model, ends, select(model, search, rules, asked, fixed))
        search = ONE if prepared.paths.replay and isinstance(search, Greedy) else search
        jobs = jobs_for(prepared, inputs, ends, search, rules, asked)
        for batch in batches(jobs, batch_tokens, search.size if isinstance(search, Beam) else 1):
            for job, found in zip(batch, _search(prepared, batch, ends, rules, search), strict=True):
                results[job.index] = found
    return results


def _search(model: SearchModel, jobs: list[Job], ends: Ends, rules: Rules, search: Search) -> list[list[Hypothesis]]:
    if not isinstance(search, Beam):
        batch = Continuation(model)
        rows = batch.add([*prompts(jobs, model, ends, rules, search)])
        while batch.rows:
            batch.step()
        return [[Hypothesis.of(row.written, sum(row.chances), row.chances, row.finish == "stop")] for row in rows]
    if jobs[0].wish.must:
        return [constrained.search(model, job, ends, rules, search) for job in jobs]
    # Kernels and graphs are created on the current device, not on that of the tensors (on a CPU: no effect).
    with torch.cuda.device(model.weight.get_device()):
        if model.paths.replay and max(job.longest for job in jobs) >= SHORTEST_REPLAY:
            from regard.decoding.fast import graphs

            return graphs.replayed(model, jobs, ends, rules, search)
        return beam.BeamSearch(beam.BeamBatch(model, jobs, ends, rules, search)).run()


def prompts(
    jobs: Sequence[Job], model: SearchModel, ends: Ends, rules: Rules, search: Greedy | Sampling
) -> Iterator[Prompt]:
    """The jobs as prompts of a running batch."""
    end = frozenset(() if ends.end is None else (ends.end,))
    for job in jobs:
        words = [tuple(word) for word in job.wish.must_not]
        own = rules.model_copy(update={"must_not": (*rules.must_not, *words)}) if words else rules
        tokens, source = ([ends.start or 0], job.tokens) if model.reads_source else (job.tokens, ())
        yield Prompt(tokens, job.longest, search, own, end, job.index, prefix=job.wish.prefix, source=source)


def jobs_for(
    model: SearchModel,
    inputs: Sequence[Sequence[int]],
    ends: Ends,
    search: Search,
    rules: Rules,
    wishes: Sequence[Wish],
) -> list[Job]:
    """The inputs with the lengths that the rules and the model's positions allow. Raises if a wish cannot be met."""
    jobs = []
    for index, (tokens, wish) in enumerate(zip(inputs, wishes, strict=True)):
        if not len(tokens):
            what = "its end token" if model.reads_source else "one token"
            raise InputError(f"inputs[{index}] is empty; give at least {what}")
        room = model.room(len(tokens))
        if room is not None and room < 1:
            raise InputError(f"inputs[{index}] has {len(tokens)} tokens, which use all learned positions; shorten it")
        longest = rules.longest.of(len(tokens))
        jobs.append(Job(index, tokens, wish, longest if room is None else min(longest, room)))
        _require_possible(jobs[-1], ends, search, rules, model.vocabulary)
    return jobs


def _require_possible(job: Job, ends: Ends, search: Search, rules: Rules, vocabulary: int) -> None:
    wish = job.wish
    asked = [*wish.prefix, *(token for word in (*wish.must, *wish.must_not, *rules.must_not) for token in word)]
    wrong = [token for token in asked if not 0 <= token < vocabulary]
    if wrong:
        raise InputError(
            f"token {wrong[0]} in the wishes or rules for inputs[{job.index}] is outside the vocabulary "
            f"({vocabulary}); use the model's tokenizer"
        )
    if not all(len(word) for word in (*wish.must, *wish.must_not)):
        raise InputError(f"wishes[{job.index}] has an empty word in must or must_not; give its tokens")
    if rules.end_at_longest and ends.end is None:
        raise InputError("rules.end_at_longest needs Ends.end; give it, or turn the rule off")
    if wish.must and not isinstance(search, Beam):
        raise InputError(f"must (words that must occur) needs a beam search, not {search.kind}; use Beam(size=…)")
    least = constrained.missing_tokens((), constrained.needed(wish.must)) if wish.must else 0
    if least > job.longest:
        raise InputError(
            f"must of inputs[{job.index}] needs {least} tokens, more than longest ({job.longest}); raise rules.longest"
        )


def batches(jobs: list[Job], tokens: int, beams: int) -> Iterator[list[Job]]:
    """Groups jobs of similar length, the longest first; jobs with words that must occur are separate."""
    batch: list[Job] = []
    for job in sorted(jobs, key=lambda job: (bool(job.wish.must), -len(job.tokens))):
        apart = bool(batch) and bool(batch[0].wish.must) is not bool(job.wish.must)
        if batch and (apart or (len(batch) + 1) * len(batch[0].tokens) * beams > tokens):
            yield batch
            batch = []
        batch.append(job)
    if batch:
        yield batch


def pair_batches(inputs: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], tokens: int) -> Iterator[list[int]]:
    """Groups the indices of pairs of similar length; the longer side of a pair counts."""
    if len(inputs) != len(targets):
        raise InputError(f"there are {len(targets)} targets for {len(inputs)} inputs; give one for each")
    pairs = enumerate(zip(inputs, targets, strict=True))
    for batch in batches([Job(index, max(pair, key=len)) for index, pair in pairs], tokens, 1):
        yield [job.index for job in batch]


def stream(
    model: Model,
    tokens: Sequence[int],
    ends: Ends,
    search: Greedy | Sampling | None = None,
    rules: Rules | None = None,
    wish: Wish | None = None,
) -> Iterator[tuple[int, float]]:
    """Yields the tokens that `decode` writes for one input, without the end, and their log-probabilities."""
    search, rules, wish = search or Greedy(), rules or Rules(), wish or Wish()
    # Not around the whole generator: the mode would stay on for the caller between two tokens.
    with torch.inference_mode():
        prepared = SearchModel(model, ends)
        (job,) = jobs_for(prepared, [tokens], ends, search, rules, [wish])
        batch = Continuation(prepared)
        batch.add([*prompts([job], prepared, ends, rules, search)])
    while batch.rows:
        for _, written in batch.step():
            yield from ((each.token, each.chance) for each in written if each.token != ends.end)


def score(
    model: EncoderDecoder,
    inputs: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    ends: Ends,
    batch_tokens: int = BATCH_TOKENS,
) -> list[list[float]]:
    """Log-probability of each token of each target and of the end, by teacher forcing, without rules.

    Their sum is the log-probability of the target. Without `Ends.end`, targets have no end.
    """
    tail = [] if ends.end is None else [ends.end]
    results: list[list[float]] = [[] for _ in inputs]
    for batch in pair_batches(inputs, targets, batch_tokens):
        wanted = [[*targets[index], *tail] for index in batch]
        chances_BTV = _log_chances(model, [inputs[index] for index in batch], wanted, ends)
        for index, target, chances_TV in zip(batch, wanted, chances_BTV, strict=True):
            token_T1 = torch.tensor(target, dtype=torch.long, device=chances_TV.device)[:, None]
            results[index] = chances_TV[: len(target)].gather(1, token_T1)[:, 0].tolist()
    return results


def alternatives(
    model: EncoderDecoder, tokens: Sequence[int], prefix: Sequence[int], ends: Ends, count: int = 5
) -> list[tuple[int, float]]:
    """The most likely next tokens after an input and a written prefix, with their log-probabilities."""
    # The token to predict is not read, so any will do.
    chances_V = _log_chances(model, [tokens], [[*prefix, 0]], ends)[0, len(prefix)]
    best = chances_V.topk(min(count, len(chances_V)))
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


@torch.inference_mode()
def _log_chances(
    model: EncoderDecoder, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], ends: Ends
) -> Tensor:
    """`[B, T, V]`: log-probabilities of the tokens of targets."""
    if not all(map(len, sources)):
        raise InputError("an input is empty; give at least one token")
    if model.training:
        raise InputError("a model in training mode would score with dropout; call model.eval() first")
    read = padded_pairs(model, sources, [target[:-1] for target in targets], ends)
    return wide(model(*read)).log_softmax(-1)
