"""Random attention problems for every cell of the support table, laid out and run by the library, and by the oracle."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import attention_oracle as oracle
import numpy as np
import torch
from attention_support import IMAGE_POSITIONS, RULES, Rule
from family_cases import Laid, packed, padded
from torch import Tensor

from regard.blocks import settings
from regard.blocks.cache import Cache
from regard.blocks.layers import Attention
from regard.blocks.layout import Padded
from regard.blocks.positions import Position, Signals, build_attended, build_embedded, build_grid_position
from regard.blocks.visibility import Visibility

WIDTH = 12


@dataclass
class Problem:
    """Sequences, a rule and one attention layer with its positions."""

    layout: str
    rule: Rule
    position: Any
    attention_settings: settings.Attention
    lengths: list[int]
    source_lengths: list[int]
    window: int | None
    row: int | None
    """Width of packed rows."""
    grid: tuple[int, int]
    seed: int
    attention: Attention = field(init=False)
    embedded: Any = field(init=False)
    attended: Position = field(init=False)
    sequences: list[Tensor] = field(init=False)
    sources: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        relative = isinstance(self.position, settings.TransformerXL)
        a = self.attention_settings
        heads, head_size = a.heads, a.head_size or WIDTH // a.heads
        self.attention = Attention(a, WIDTH, relative).double().eval()
        if self.position.kind in IMAGE_POSITIONS:
            self.embedded = build_grid_position(self.position, self.grid, WIDTH, head_size, class_token=True)
            self.attended = Position()
        else:
            self.embedded = build_embedded(self.position, WIDTH)
            self.attended = build_attended(self.position, WIDTH, heads, head_size, self.rule.causal)
        for module in (self.attention, self.embedded, self.attended):
            module.double()
            for parameter in module.parameters():
                torch.nn.init.normal_(parameter, std=0.5)
        self.sequences = [torch.randn(n, WIDTH, dtype=torch.float64) for n in self.lengths]
        self.sources = [torch.randn(n, WIDTH, dtype=torch.float64) for n in self.source_lengths]

    def to(self, device: str, dtype: torch.dtype) -> Problem:
        """The same problem elsewhere: parameters and inputs rounded to `dtype`."""
        for module in (self.attention, self.embedded, self.attended):
            module.to(device, dtype)
        self.sequences = [x.to(device, dtype) for x in self.sequences]
        self.sources = [x.to(device, dtype) for x in self.sources]
        return self

    @property
    def like(self) -> Tensor:
        return self.attention.q.weight


def random_problem(layout: str, rule_name: str, position_kind: str, seed: int, head_size: int | None = None) -> Problem:
    """A problem for one cell of the table; the seed decides all the rest."""
    draw = random.Random(f"{layout}/{rule_name}/{position_kind}/{seed}")
    rule = RULES[rule_name]
    batch = draw.randint(1, 3)
    longest = draw.randint(1, 9)
    least = 1 if layout == "cached" else 0
    lengths = [longest if layout == "full" else draw.randint(least, longest) for _ in range(batch)]
    longest_source = draw.randint(1, 7)
    source_lengths = [longest_source if layout == "full" else draw.randint(0, longest_source) for _ in range(batch)]
    grid = (draw.randint(1, 3), draw.randint(1, 3))
    if position_kind in IMAGE_POSITIONS:
        lengths = [grid[0] * grid[1] + 1] * batch
    row = draw.choice([None, max([*lengths, *source_lengths, 1]) + draw.randint(0, 4)])
    return Problem(
        layout,
        rule,
        _position(position_kind, draw),
        _attention(draw, head_size),
        lengths,
        source_lengths,
        draw.randint(1, 5) if rule.window else None,
        row,
        grid,
        seed,
    )


def _attention(draw: random.Random, head_size: int | None) -> settings.Attention:
    heads = draw.choice([1, 2, 4])
    return settings.Attention(
        heads=heads,
        kv_heads=draw.choice([n for n in (1, 2, 4) if heads % n == 0]),
        head_size=head_size or draw.choice([4, 8]),
        value_size=head_size or draw.choice([None, 4, 6]),
        bias=draw.random() < 0.5,
        scale=draw.choice([None, 0.7]),
        qk_norm=settings.RmsNorm() if head_size is None and draw.random() < 0.3 else None,
        sinks=head_size is None and draw.random() < 0.3,
    )


def _position(kind: str, draw: random.Random) -> Any:
    order = draw.choice(["interleaved", "halves"])
    made = {
        "sinusoidal": settings.Sinusoidal(base=draw.choice([1000.0, 10_000.0]), order=order),
        "learned": settings.Learned(length=16, offset=draw.choice([0, 2])),
        "relative": settings.Relative(buckets=draw.choice([4, 8]), longest=draw.choice([5, 8])),
        "transformer-xl": settings.TransformerXL(),
        "rotary": settings.Rotary(base=draw.choice([100.0, 10_000.0]), fraction=draw.choice([0.5, 1.0]), order=order),
        "alibi": settings.Alibi(),
        "none": settings.NoPosition(),
        "sinusoidal-2d": settings.Sinusoidal2d(order=order),
        "learned-2d": settings.Learned2d(),
        "rotary-2d": settings.Rotary2d(),
    }
    return made[kind]


# ------------------------------------------------------------------------------------------------- run by the library


def lay(problem: Problem, sequences: list[Tensor], junk: float = 3.0) -> Laid:
    laid = padded(sequences, junk=junk, ragged=problem.layout != "full")
    laid.tokens.requires_grad_()
    return laid


@dataclass
class Run:
    """What the library made of a problem, with its leaves, for gradients."""

    queries: Laid
    keys: Laid
    out: Tensor


def run(problem: Problem, junk: float = 3.0) -> Run:
    """One call of attention over the whole problem (not for `cached`)."""
    if problem.layout == "packed":
        sides = [problem.sequences, problem.sources] if problem.rule.cross else [problem.sequences]
        laid = packed(*sides, widths=[problem.row] * len(sides), junk=junk)
        for each in laid:
            each.tokens.requires_grad_()
        queries, keys = laid[0], laid[-1]
    else:
        queries = lay(problem, problem.sequences, junk)
        keys = lay(problem, problem.sources, junk) if problem.rule.cross else queries
    view = Visibility(queries.layout, keys.layout, problem.rule.causal, problem.window)
    x, signals = _with_positions(problem, queries, view)
    memory = keys.tokens if problem.rule.cross else None
    return Run(queries, keys, problem.attention(x, view, signals, memory))


def _with_positions(problem: Problem, laid: Laid, view: Visibility) -> tuple[Tensor, Signals]:
    x, device, dtype = laid.tokens, laid.tokens.device, laid.tokens.dtype
    if problem.position.kind in IMAGE_POSITIONS:
        added = problem.embedded.embed(problem.grid, device, dtype)
        signals = Signals(rotation=problem.embedded.rotation(problem.grid, device, dtype))
    else:
        added = problem.embedded.embed(laid.layout, device, dtype)
        signals = problem.attended.signals(view, device, dtype)
    return (x if added is None else x + added), signals


def run_cached(problem: Problem, fixed: bool) -> list[Tensor]:
    """The same with a cache: prompts of different lengths, then one token at a time; [T, D] of each sequence."""
    a, batch = problem.attention, len(problem.lengths)
    prompts = [max(1, n // 2) for n in problem.lengths]
    steps = max(n - done for n, done in zip(problem.lengths, prompts, strict=True))
    cache = Cache(1, batch, a.kv_heads, (a.head_size, a.value_size), problem.like, None, steps if fixed else None)
    memory = lay(problem, problem.sources) if problem.rule.cross else None
    out: list[list[Tensor]] = [[] for _ in range(batch)]
    for step in range(steps + 1):
        # A sequence that has ended repeats its last token.
        starts = [0] * batch if step == 0 else [done + step - 1 for done in prompts]
        news = [
            x[:n] if step == 0 else x[min(start, len(x) - 1) :][:1]
            for x, n, start in zip(problem.sequences, prompts, starts, strict=True)
        ]
        chunk = lay(problem, news)
        layout = chunk.layout if step == 0 else Padded(batch, 1)
        queries, keys = cache.plan(layout)
        cache.commit()
        if memory is not None:
            mixed = a(chunk.tokens, Visibility(queries, memory.layout), memory=memory.tokens, cache=cache.cross[0])
        else:
            view = Visibility(
                queries, keys, True, problem.window, cache.mask, beams=cache.mask is not None and not fixed
            )
            x, signals = _with_positions(problem, Laid(chunk.tokens, queries, chunk.cells, chunk.sequences), view)
            mixed = a(x, view, signals, cache=cache.layers[0])
        for b, taken in enumerate(chunk.take(mixed)):
            out[b].extend(taken)
    return [torch.stack(rows[:n]) for rows, n in zip(out, problem.lengths, strict=True)]


# -------------------------------------------------------------------------------------------------- run by the oracle


def sees(problem: Problem, s: int, i: int, j: int) -> bool:
    """Whether token i of sequence s sees token j (of its source, across)."""
    if problem.rule.cross:
        return True
    return (not problem.rule.causal or j <= i) and (problem.window is None or abs(i - j) < problem.window)


def expected(problem: Problem, soft_cap: float | None = None) -> list[np.ndarray]:
    """[T, D] of each sequence, by definition."""
    a, position = problem.attention_settings, problem.position
    arrays = {name: p.detach().numpy() for name, p in problem.attention.named_parameters()}
    head_size = problem.attention.head_size
    scale = head_size**-0.5 if a.scale is None else a.scale
    weights = oracle.Weights(arrays, a.heads, a.kv_heads or a.heads, scale, soft_cap)
    turn = bias = code = None
    if isinstance(position, settings.Rotary):
        channels = int(head_size * position.fraction)
        speeds = [position.base ** (-2 * j / channels) for j in range(channels // 2)]
        turn = lambda x, place: oracle.turned(x, [place * c for c in speeds], position.order == "halves")
    elif isinstance(position, settings.Rotary2d):
        turn = lambda x, place: oracle.turned(x, _grid_angles(problem, place, head_size), halves=True)
    elif isinstance(position, settings.Relative):
        table = problem.attended.weight.detach().numpy()
        bias = lambda h, i, j: table[
            oracle.t5_bucket(i - j, position.buckets, position.longest, problem.rule.causal), h
        ]
    elif isinstance(position, settings.Alibi):
        bias = lambda h, i, j: -oracle.alibi_slope(h, a.heads) * abs(i - j)
    elif isinstance(position, settings.TransformerXL):
        code = lambda d: oracle.sinusoid(d, WIDTH, position.base, halves=True)
    out = []
    for s, x in enumerate(problem.sequences):
        q = x.numpy() + np.array([_added(problem, i) for i in range(len(x))]).reshape(len(x), WIDTH)
        k = problem.sources[s].numpy() if problem.rule.cross else q
        out.append(oracle.attention(weights, q, k, lambda i, j, s=s: sees(problem, s, i, j), turn, bias, code))
    return out


def _added(problem: Problem, place: int) -> np.ndarray:
    position = problem.position
    if isinstance(position, settings.Sinusoidal):
        exact = oracle.sinusoid(place, WIDTH, position.base, position.order == "halves")
        return exact.astype(np.float32).astype(np.float64)
    if isinstance(position, settings.Learned):
        return problem.embedded.weight.detach().numpy()[position.offset + place]
    if isinstance(position, settings.Learned2d):
        first, weight = problem.embedded.first, problem.embedded.weight
        return (first if place == 0 else weight[place - 1]).detach().numpy()
    if isinstance(position, settings.Sinusoidal2d) and place > 0:
        y, x = divmod(place - 1, problem.grid[1])
        halves = position.order == "halves"
        return np.concatenate([oracle.sinusoid(p, WIDTH // 2, position.base, halves) for p in (x, y)])
    return np.zeros(WIDTH)


def _grid_angles(problem: Problem, place: int, head_size: int) -> list[float]:
    if place == 0:
        return [0.0] * (head_size // 2)
    y, x = divmod(place - 1, problem.grid[1])
    quarter = head_size // 4
    speeds = [problem.position.base ** (-2 * j / (head_size // 2)) for j in range(quarter)]
    return [x * c for c in speeds] + [y * c for c in speeds]
