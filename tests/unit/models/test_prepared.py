"""Models prepared for a CPU: the same scores, the given model untouched, what is the same shared."""

from __future__ import annotations

import gc

import family_cases as cases
import pytest
import torch

from regard.blocks import settings as blocks
from regard.errors import InputError
from regard.models import cpu as prepared_module
from regard.models.build import build
from regard.models.cpu import is_prepared, is_watched, kept_prepared, preparable, prepared
from regard.models.settings import Decoder, EncoderDecoder

SETTINGS = {
    "paper": EncoderDecoder(vocabulary=50, width=32, depth=2, attention=blocks.Attention(heads=4, bias=False)),
    "t5": EncoderDecoder(
        vocabulary=50,
        width=32,
        depth=2,
        attention=blocks.Attention(heads=4, scale=0.3),
        position=blocks.Relative(),
        ffn=blocks.Gated(hidden=40),
        norm=blocks.RmsNorm(),
        norm_place="pre",
        output_scale=0.2,
    ),
    "untied": EncoderDecoder(vocabulary=50, target_vocabulary=60, width=32, depth=1, tied=(), output_bias=True),
    "gpt": Decoder(vocabulary=50, width=32, depth=2, position=blocks.Learned(length=16), norm_place="pre"),
    "llama": Decoder(
        vocabulary=50,
        width=32,
        depth=2,
        attention=blocks.Attention(heads=4, kv_heads=2, bias=False, qk_norm=blocks.RmsNorm()),
        position=blocks.Rotary(),
        ffn=blocks.Gated(hidden=40, bias=False),
    ),
    "xl": Decoder(vocabulary=50, width=32, depth=2, position=blocks.TransformerXL()),
}


def made(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return cases.unsettled(build(SETTINGS[name])).eval()


def answer(model: torch.nn.Module) -> torch.Tensor:
    tokens = torch.randint(0, 50, (3, 7), generator=torch.Generator().manual_seed(0))
    return model(tokens, tokens[:, :5]) if model.settings.kind == "encoder-decoder" else model(tokens)


@pytest.mark.parametrize("name", SETTINGS)
@torch.inference_mode()
def test_the_same_scores(name: str) -> None:
    model = made(name)
    exact = answer(made(name).double())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    float32, int8 = prepared(model), prepared(model, "int8")
    assert type(float32) is type(model)
    scale = exact.abs().max()
    assert torch.allclose(answer(float32).double(), exact, atol=float(1e-5 * scale))
    gap = (answer(int8).double() - exact).square().mean().sqrt() / exact.std()
    assert 1e-6 < gap < 0.1
    assert is_prepared(float32)
    assert not is_prepared(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.allclose(answer(model).double(), exact, atol=float(1e-5 * scale))


def test_what_stays_is_shared() -> None:
    model = made("paper")
    twin = prepared(model)
    assert twin.target.tokens is model.target.tokens
    assert twin.encoder[0].ffn_residual is model.encoder[0].ffn_residual
    assert twin.encoder[0].attention is not model.encoder[0].attention
    assert model.encoder[0].attention.joined is None


def test_refusals() -> None:
    model = made("paper")
    with pytest.raises(InputError, match=r"numbers \(int4\) must be one of float32, int8"):
        prepared(model, "int4")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="prepared already"):
        prepared(prepared(model), "int8")
    with pytest.raises(InputError, match=r"in torch\.float64 on cpu cannot be prepared"):
        prepared(made("paper").double())
    with pytest.raises(InputError, match=r"training mode cannot be prepared; call model.eval\(\)"):
        prepared(made("paper").train())


def test_when_it_is_done_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("paper")
    assert preparable(model)
    assert not preparable(prepared(model))
    assert not preparable(made("paper").double())
    assert not preparable(made("paper").train())
    handle = model.decoder[0].cross.register_forward_pre_hook(lambda *_: None)
    assert is_watched(model)
    assert not preparable(model)
    handle.remove()
    monkeypatch.setattr(prepared_module, "packs", lambda: False)
    assert not preparable(model)
    assert prepared(model) is model


def test_it_is_kept_until_the_weights_change() -> None:
    model = made("paper")
    first = kept_prepared(model)
    assert kept_prepared(model) is first
    with torch.no_grad():
        model.decoder[1].ffn.up.weight[0, 1] += 1.0
    second = kept_prepared(model)
    assert second is not first
    assert torch.allclose(answer(second), answer(model), atol=1e-5)
    model.encoder[0].ffn.up.weight.data.mul_(2.0)  # which PyTorch does not count
    assert kept_prepared(model) is not second
    model.load_state_dict(made("paper").state_dict())
    assert torch.allclose(answer(kept_prepared(model)), answer(made("paper")), atol=1e-5)
    known = len(prepared_module._kept)
    del model
    gc.collect()
    assert len(prepared_module._kept) < known
