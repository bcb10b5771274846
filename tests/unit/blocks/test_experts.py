"""Mixture of experts against a plain loop over tokens, its balance, its layouts and its training."""

from __future__ import annotations

import family_cases as cases
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard.blocks import settings as blocks
from regard.blocks.experts import Experts, grouped
from regard.blocks.layers import build_feed_forward, set_recompute
from regard.blocks.layout import Packed
from regard.blocks.recording import record
from regard.errors import SettingsError
from regard.models.build import build
from regard.training.step import Loss, Objective

KINDS = (
    blocks.Experts(experts=5, active=2, hidden=6),
    blocks.Experts(experts=4, active=1, hidden=6, normalized=False, balance=0.0),
    blocks.Experts(experts=6, active=3, shared=2, hidden=6, scores="sigmoid", scale=2.5, bias_rate=0.01),
)


def random_experts(kind: blocks.Experts, width: int = 8, dtype: torch.dtype = torch.float64) -> Experts:
    made = build_feed_forward(kind, width, 0)
    assert isinstance(made, Experts)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made.to(dtype)


def by_hand(module: Experts, x_ND: Tensor) -> tuple[Tensor, list[list[int]], Tensor]:
    """Token by token, expert by expert: output, selection, scores."""
    kind, rows, chosen = module.routing, [], []
    scores_NX = x_ND @ module.router.T
    scores_NX = scores_NX.sigmoid() if kind.scores == "sigmoid" else scores_NX.softmax(-1)
    for x, scores in zip(x_ND, scores_NX, strict=True):
        ranked = (scores if module.bias is None else scores + module.bias).detach()
        best = sorted(range(kind.experts), key=lambda i: -float(ranked[i]))[: kind.active]
        total = sum(scores[i] for i in best) if kind.normalized else 1.0
        row = torch.zeros_like(x)
        for i in best:
            hidden = torch.nn.functional.silu(module.gate[i] @ x) * (module.up[i] @ x)
            row = row + kind.scale * scores[i] / total * (module.down[i] @ hidden)
        if module.shared is not None:
            row = row + module.shared(x)
        rows.append(row)
        chosen.append(best)
    return torch.stack(rows), chosen, scores_NX


def test_equals_a_loop_over_tokens_and_experts() -> None:
    torch.manual_seed(0)
    for kind in KINDS:
        module, x = random_experts(kind), torch.randn(3, 7, 8, dtype=torch.float64, requires_grad=True)
        wanted = by_hand(module, x.flatten(0, 1))[0].view(3, 7, 8)
        assert_close(module(x), wanted)
        leaves = [x, *(p for p in module.parameters() if p.requires_grad)]
        factor = torch.randn_like(wanted)
        got, other = (torch.autograd.grad((each * factor).sum(), leaves) for each in (module(x), wanted))
        assert_close(got, other)


def test_grouped_products_in_other_precisions_equal_a_loop() -> None:
    torch.manual_seed(0)
    for dtype, atol in ((torch.float32, 1e-5), (torch.bfloat16, 0.2), (torch.float64, 1e-12)):
        x, weight = torch.randn(9, 16).to(dtype), torch.randn(4, 8, 16).to(dtype)
        for sizes in ((3, 0, 5, 1), (0, 0, 9, 0)):
            out = grouped(x, weight, torch.tensor(sizes))
            wanted = torch.cat([part.double() @ w.double().T for part, w in zip(x.split(sizes), weight, strict=True)])
            assert_close(out.double(), wanted, rtol=0, atol=atol)
    module, x = random_experts(KINDS[2], 16, torch.float32), torch.randn(2, 5, 16)
    with torch.autocast("cpu", torch.bfloat16):
        rough = module(x)
    assert_close(rough.float(), module(x), rtol=0, atol=0.05 * module(x).abs().max().item())


def collected(module: Experts, x: Tensor, layout: object) -> tuple[Tensor, Tensor]:
    module.collected = ()
    module.train()(x, layout)  # type: ignore[arg-type]
    ((loss, load),) = module.collected
    return loss, load


def test_the_balance_is_a_sum_over_sequences() -> None:
    """n · X · Σ share of choices · mean score (Fedus et al. 2022, equation 4, times n); padding does not count."""
    torch.manual_seed(0)
    lengths = [5, 1, 7, 3]
    for kind in KINDS:
        module = random_experts(kind)
        sequences = [torch.randn(n, 8, dtype=torch.float64) for n in lengths]
        wanted, loads = 0.0, torch.zeros(kind.experts)
        for x_TD in sequences:
            _, chosen, scores_TX = by_hand(module, x_TD)
            scores_TX = scores_TX / scores_TX.sum(-1, keepdim=True)
            counts = torch.tensor([sum(i in best for best in chosen) for i in range(kind.experts)])
            mean = (counts.double() / (kind.active * len(x_TD)) * scores_TX.detach().mean(0)).sum()
            wanted += kind.balance * len(x_TD) * kind.experts * mean.item()
            loads += counts
        laid = [cases.padded(sequences, room=2, junk=1), *cases.packed(sequences, widths=[9], junk=1)]
        laid[1].layout = with_fillers(laid[1].layout, laid[1].sequences)
        for each in laid:
            loss, load = collected(module, each.tokens, each.layout)
            assert loss.item() == pytest.approx(wanted, rel=1e-9)
            assert torch.equal(load.float(), loads)


def with_fillers(layout: object, real: list[int]) -> Packed:
    """The layout with the same number of sequences in each row: real ones, empty ones, then a filler."""
    assert isinstance(layout, Packed)
    assert layout.width is not None
    ends = layout.offsets_S1.tolist()
    rows: list[list[int]] = []
    most = 4
    for row in range(layout.rows):
        first, last = row * layout.width, (row + 1) * layout.width
        inside = [ends[s + 1] for s in real if first <= ends[s] < last]
        inside = sorted(inside) or [first]
        rows.append([*inside, *[inside[-1]] * (most - len(inside)), last])
    offsets = torch.tensor([0, *(end for row in rows for end in row)], dtype=torch.int32)
    return Packed(layout.tokens, offsets, layout.longest + 9, layout.width, fillers=1)


def test_even_routing_has_the_least_loss() -> None:
    module = random_experts(blocks.Experts(experts=4, active=1, hidden=4, balance=1.0), width=4)
    with torch.no_grad():
        module.router.copy_(torch.eye(4) * 0.01)
    x = torch.eye(4, dtype=torch.float64)[None].repeat(1, 3, 1)
    even, load = collected(module, x, None)
    assert torch.equal(load, torch.full((4,), 3.0, dtype=torch.float64))
    assert even.item() == pytest.approx(12, rel=1e-3)
    assert collected(module, x[:, :1].repeat(1, 12, 1), None)[0].item() > 12


@pytest.mark.parametrize("position", ["rotary", "relative"])
def test_layouts_caches_and_recomputing_agree(position: str) -> None:
    model = cases.unsettled(
        build(cases.decoder(position=cases.TEXT_POSITIONS[position], ffn=KINDS[2], depth=3), dtype=torch.float64)
    )
    sentences = cases.sentences([5, 1, 7, 3])
    one, other = cases.padded(sentences), cases.packed(sentences, widths=[8])[0]
    wanted = one.take(model(one.tokens, one.layout))
    for got, row in zip(other.take(model(other.tokens, other.layout)), wanted, strict=True):
        assert_close(got, row)
    tokens, cache = torch.tensor(sentences[2])[None], model.new_cache(batch=1)
    with torch.no_grad():
        steps = torch.cat([model(tokens[:, t : t + 1], cache=cache) for t in range(7)], dim=1)
    assert_close(steps[0], wanted[2])
    with record(model, "*.ffn.router") as seen:
        model(tokens)
    assert [value.shape for value in seen.values()] == [(1, 7, 6)] * 3


def objective(model: torch.nn.Module) -> Objective:
    class Squares:
        def loss(self, model: torch.nn.Module, batch: tuple[Tensor, object]) -> Loss:
            out = model(*batch)
            real = batch[1].real(out.device)  # type: ignore[attr-defined]
            return Loss((out.square().sum(-1) * (1 if real is None else real)).sum(), torch.tensor(1.0), {})

    return Objective(model, Squares()).train()  # type: ignore[arg-type]


def test_losses_of_parts_add_up_to_those_of_the_batch() -> None:
    """With and without recomputed activations, and compiled: the same loss, load and gradients."""
    torch.manual_seed(0)
    model = cases.unsettled(build(cases.decoder(ffn=KINDS[2], depth=2), dtype=torch.float64))
    sentences = cases.sentences([5, 1, 7, 3])

    def step(parts: list[list[list[int]]], module: Objective) -> tuple[Tensor, ...]:
        model.zero_grad()
        losses = []
        for part in parts:
            laid = cases.padded(part)
            losses.append(Loss(*module((laid.tokens, laid.layout))))
            losses[-1].total.backward()
            assert all(each.collected is None for each in module.experts)
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        sums = [sum(loss.sums[name] for loss in losses) for name in ("plain", "load")]
        return sum(loss.total.detach() for loss in losses), *sums, *gradients  # type: ignore[return-value]

    whole = objective(model)
    wanted = step([sentences], whole)
    assert float(wanted[0] - wanted[1]) > 0.01
    assert torch.equal(wanted[2].sum(1), torch.full((2,), 16.0 * 3, dtype=torch.float64))
    assert_close(step([sentences[:1], sentences[1:]], whole), wanted)
    set_recompute(model, True)
    assert_close(step([sentences], whole), wanted)
    set_recompute(model, False)


def test_wrong_settings_are_refused() -> None:
    for changes, text in (({"active": 9}, "active (9)"), ({"experts": 1}, "experts (1)")):
        with pytest.raises(SettingsError) as caught:
            blocks.Experts(**changes)  # type: ignore[arg-type]
        assert text in str(caught.value)


@pytest.mark.slow
def test_a_compiled_loss_is_one_graph() -> None:
    """In bfloat16, where products are grouped without reading the counts."""
    settings = cases.decoder(depth=1, width=16, ffn=KINDS[2].changed({"hidden": 8}))
    whole = objective(cases.unsettled(build(settings, dtype=torch.bfloat16)))
    laid = cases.padded(cases.sentences([5, 5]), ragged=False)
    wanted = whole((laid.tokens, laid.layout))
    got = torch.compile(whole._plain, backend="aot_eager", fullgraph=True)((laid.tokens, laid.layout))
    assert torch.equal(got.sums["load"], wanted.sums["load"])
    assert_close(got.total, wanted.total, rtol=0.02, atol=0.0)
    torch._dynamo.reset()
