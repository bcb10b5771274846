"""Which parameters belong together, and that the optimisers do what they are named for."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from regard.blocks.settings import Attention, Learned2d, Relative, RmsNorm, TransformerXL
from regard.models.build import build
from regard.models.settings import Decoder, Encoder, EncoderDecoder, Masked, Vision
from regard.training.optimizers import Ema, build_optimizers, group_parameters
from regard.training.optimizers import Muon as Grouped
from regard.training.settings import Adam, AdamW, Muon, Optimizer, Sgd

SMALL = {"width": 16, "depth": 2, "attention": Attention(heads=2)}


def names(model: nn.Module, parameters: list[nn.Parameter]) -> set[str]:
    wanted = {id(parameter) for parameter in parameters}
    return {name for name, parameter in model.named_parameters() if id(parameter) in wanted}


def test_every_parameter_has_its_group() -> None:
    inner = (".q.", ".k.", ".v.", ".out.", ".up.", ".down.", ".dense.", ".project.")
    tables = ("tokens", "segments", "position", "output", "patches")
    for settings in (
        EncoderDecoder(vocabulary=20, **SMALL, position=Relative()),
        Encoder(vocabulary=20, **SMALL, segments=2, embedding_norm=True, heads={"words": Masked(tied=False)}),
        Decoder(vocabulary=20, **SMALL, tied=False, norm=RmsNorm(), position=TransformerXL(), layer_scale=0.1),
        Vision(image=(8, 8), patch=4, **SMALL, position=Learned2d()),
    ):
        model = build(settings)
        matrices, rest = group_parameters(model)
        assert len({id(p) for p in (*matrices, *rest)}) == len(matrices) + len(rest) == len(list(model.parameters()))
        for name in names(model, matrices):
            assert name.endswith(".weight")
            assert any(part in name for part in inner), name
        for name, parameter in model.named_parameters():
            if name in names(model, rest):
                assert parameter.dim() == 1 or "relative" in name or any(part in name for part in tables), name
    model.requires_grad_(False)
    assert group_parameters(model) == ([], [])


def test_layers_have_their_own_rates() -> None:
    model = build(EncoderDecoder(vocabulary=20, **SMALL, decoder_depth=3, norm_place="pre"))
    for optimizer in (AdamW(rate=0.5), Muon(rate=0.5, rest=AdamW(rate=0.5))):
        optimizers = build_optimizers(optimizer, model, 0.1)
        by_parameter = {
            id(parameter): group["lr"] / 0.5
            for part in optimizers.parts
            for group in part.param_groups
            for parameter in group["params"]
        }
        rates = {name: by_parameter[id(parameter)] for name, parameter in model.named_parameters()}
        assert optimizers.rate == 0.5
        for start, expected in (
            ("encoder.0.", 0.1),
            ("encoder.1.", 1),
            ("decoder.0.", 0.01),
            ("decoder.2.", 1),
            ("source.tokens", 0.001),  # below three layers
            ("encoder.norm", 1),
        ):
            found = {rate for name, rate in rates.items() if name.startswith(start)}
            assert [*found] == [pytest.approx(expected)], start
    plain = build_optimizers(AdamW(), model)
    assert [group["lr"] for part in plain.parts for group in part.param_groups] == [1e-3, 1e-3]


def one_step(optimizer: Optimizer, factor: float = 1.0) -> tuple[nn.Module, nn.Module]:
    """A small decoder before and after one update."""
    torch.manual_seed(0)
    model = build(Decoder(vocabulary=20, **SMALL, dropout=0.0)).double()
    before = copy.deepcopy(model)
    optimizers = build_optimizers(optimizer, model)
    optimizers.set_factor(factor)
    model(torch.arange(8)[None]).square().mean().backward()
    for twin, parameter in zip(before.parameters(), model.parameters(), strict=True):
        assert parameter.grad is not None
        twin.grad = parameter.grad.clone()
    for part in optimizers.parts:
        part.step()
    return before, model


def test_adamw_by_its_formula() -> None:
    optimizer = AdamW(rate=0.01, decay=0.1)
    before, after = one_step(optimizer, factor=0.5)
    rate = 0.005
    for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True):
        assert old.grad is not None
        decayed = old * (1 - rate * 0.1) if name in names(before, group_parameters(before)[0]) else old
        # After one step the bias-corrected means are the gradient and its square.
        expected = decayed - rate * old.grad / (old.grad.abs() + optimizer.eps)
        torch.testing.assert_close(new, expected, rtol=1e-9, atol=1e-9)


def test_sgd_by_its_formula_and_adam_decays_through_the_gradient() -> None:
    before, after = one_step(Sgd(rate=0.1))
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        assert old.grad is not None
        torch.testing.assert_close(new, old - 0.1 * old.grad, rtol=0, atol=1e-12)
    _, plain = one_step(Adam(rate=0.01))
    before, decayed = one_step(Adam(rate=0.01, decay=0.5))
    matrices = names(before, group_parameters(before)[0])
    for (name, a), b in zip(plain.named_parameters(), decayed.parameters(), strict=True):
        assert torch.equal(a, b) is (name not in matrices)


def test_muon_takes_pytorchs_steps() -> None:
    """Matrices of one shape together or one by one: the same bits, over several steps, with decay and momentum."""
    torch.manual_seed(3)
    shapes = [(8, 8), (16, 8), (8, 8), (8, 16), (16, 8), (5, 3)]
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    rates = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}
    mine, reference = Grouped(ours, **rates), torch.optim.Muon(theirs, **rates)
    for _ in range(6):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        mine.step()
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)  # 16 bits within, in an order of its own


def test_weights_and_averages_change_places_exactly() -> None:
    model = nn.Linear(7, 5)
    parameters = dict(model.named_parameters())
    ema = Ema(0.9, parameters)
    with torch.no_grad():
        model.weight.mul_(torch.randn(5, 7))
        model.bias[0] = float("nan")
        model.bias[1] = -0.0
    weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    averages = {name: tensor.clone() for name, tensor in ema.tensors().items()}
    places = [parameter.data_ptr() for parameter in parameters.values()]

    def evaluate() -> None:
        with ema.swapped():
            for name, parameter in parameters.items():
                assert same_bits(parameter, averages[name])
            raise KeyboardInterrupt  # whatever happens in there

    with pytest.raises(KeyboardInterrupt):
        evaluate()
    for name, parameter in parameters.items():
        assert same_bits(parameter, weights[name])
        assert same_bits(ema.tensors()[name], averages[name])
        assert parameter.requires_grad
    assert [parameter.data_ptr() for parameter in parameters.values()] == places


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.detach().view(torch.int32), right.detach().view(torch.int32))


def test_half_swapped_is_swapped_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may run out on the way, and the loop then goes on with smaller batches."""
    weights = {"a": torch.ones(2), "b": torch.ones(2)}
    ema = Ema(0.9, weights)
    for tensor in weights.values():
        tensor.zero_()
    plain = Ema._swap

    def fail(self: Ema, name: str) -> None:
        if name == "b":
            raise torch.OutOfMemoryError
        plain(self, name)

    monkeypatch.setattr(Ema, "_swap", fail)
    with pytest.raises(torch.OutOfMemoryError), ema.swapped():
        pass
    assert [tensor.tolist() for tensor in weights.values()] == [[0, 0], [0, 0]]
    assert [tensor.tolist() for tensor in ema.tensors().values()] == [[1, 1], [1, 1]]
