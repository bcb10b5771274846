"""DeiT, DINOv2 and CLIP's vision tower against transformers, read and written; timm's names against a ViT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    DeiTConfig,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    DeiTModel,
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
)

import regard
from regard.blocks.recording import record
from regard.errors import WeightsError
from regard.models.settings import Vision
from regard.tasks.recipe import job_model, read_job
from regard.weights.convert import convert
from regard.weights.directory import save_model
from regard.weights.huggingface.directory import read_pretrained, write_pretrained

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4}
RECIPES = Path(__file__).parents[2] / "recipes"
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def random_model(kind: Any, config: Any) -> Any:
    torch.manual_seed(0)
    model = kind(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def images(config: Any) -> Tensor:
    size = config.image_size
    return torch.randn(2, config.num_channels, *([size, size] if isinstance(size, int) else size))


@torch.no_grad()
def test_deit(tmp_path: Path) -> None:
    for number, changes in enumerate(({"image_size": 8}, {"image_size": 12, "num_labels": 5, "qkv_bias": False})):
        for kind in (DeiTForImageClassification, DeiTForImageClassificationWithTeacher):
            config = DeiTConfig(**SIZES, intermediate_size=24, **changes)
            model, batch = random_model(kind, config), images(config)
            place = tmp_path / f"{kind.__name__}{number}"
            model.save_pretrained(place / "theirs")
            ours = read_pretrained(place / "theirs")
            found = ours.heads["classification"](ours(batch))
            torch.testing.assert_close(found, model(batch).logits, **CLOSE)
            write_pretrained(ours, place / "ours")
            back = kind.from_pretrained(place / "ours").eval()
            torch.testing.assert_close(back(batch).logits, model(batch).logits, **CLOSE)
            if kind is DeiTForImageClassification:
                continue
            for pooling in (True, False):
                base = random_model(lambda each, pooling=pooling: DeiTModel(each, add_pooling_layer=pooling), config)
                base.save_pretrained(place / "base")
                write_pretrained(read_pretrained(place / "base"), place / "again")
                back = DeiTModel.from_pretrained(place / "again", add_pooling_layer=pooling).eval()
                for found, wanted in zip(back(batch).to_tuple(), base(batch).to_tuple(), strict=True):
                    torch.testing.assert_close(found, wanted, **CLOSE)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    [answer] = regard.load(place / "theirs", "cpu").predict([pixels])
    shares = model(torch.from_numpy(pixels).permute(2, 0, 1)[None] / 127.5 - 1).logits.softmax(-1)[0]
    assert answer["label"] == f"LABEL_{int(shares.argmax())}"
    assert [*answer["probabilities"].values()] == pytest.approx(shares.tolist(), abs=1e-5)


@torch.no_grad()
def test_dinov2(tmp_path: Path) -> None:
    for number, (kind, config) in enumerate(
        (
            (Dinov2Model, Dinov2Config(**SIZES, image_size=8)),
            (Dinov2Model, Dinov2Config(**SIZES, image_size=12, use_swiglu_ffn=True, mlp_ratio=3)),
            (Dinov2WithRegistersModel, Dinov2WithRegistersConfig(**SIZES, image_size=8, num_register_tokens=3)),
            (Dinov2WithRegistersModel, Dinov2WithRegistersConfig(**SIZES, image_size=8, use_swiglu_ffn=True)),
        )
    ):
        model, batch = random_model(kind, config), images(config)
        model.save_pretrained(tmp_path / f"theirs{number}")
        ours = read_pretrained(tmp_path / f"theirs{number}")
        torch.testing.assert_close(ours(batch), model(batch).last_hidden_state, **CLOSE)
        write_pretrained(ours, tmp_path / f"ours{number}")
        back = AutoModel.from_pretrained(tmp_path / f"ours{number}").eval()
        torch.testing.assert_close(back(batch).last_hidden_state, model(batch).last_hidden_state, **CLOSE)


@torch.no_grad()
def test_clip(tmp_path: Path) -> None:
    for number, changes in enumerate(({}, {"hidden_act": "gelu", "image_size": 12})):
        config = CLIPVisionConfig(**{**SIZES, "image_size": 8, "intermediate_size": 24, **changes})
        model, batch = random_model(CLIPVisionModel, config), images(config)
        model.save_pretrained(tmp_path / f"theirs{number}")
        ours = read_pretrained(tmp_path / f"theirs{number}")
        with record(ours, "encoder.1.residual") as seen:
            pooled = ours.heads["pooling"](ours(batch))
        torch.testing.assert_close(pooled, model(batch).pooler_output, **CLOSE)
        torch.testing.assert_close(seen["encoder.1.residual"], model(batch).last_hidden_state, **CLOSE)
        write_pretrained(ours, tmp_path / f"ours{number}")
        back = CLIPVisionModel.from_pretrained(tmp_path / f"ours{number}").eval()
        torch.testing.assert_close(back(batch).pooler_output, model(batch).pooler_output, **CLOSE)


def timm_forward(state: dict[str, Tensor], x: Tensor, heads: int) -> Tensor:
    """The published computation of timm's VisionTransformer, in plain operations, with timm's names."""
    from torch.nn import functional

    x = functional.conv2d(x, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=4)
    x = x.flatten(2).mT
    first = [state[name].expand(len(x), -1, -1) for name in ("cls_token", "reg_token", "dist_token") if name in state]
    x = torch.cat([*first, x], 1) + state["pos_embed"]
    width = x.shape[-1]
    for number in range(2):
        at = f"blocks.{number}."
        y = functional.layer_norm(x, (width,), state[at + "norm1.weight"], state[at + "norm1.bias"], 1e-6)
        y = functional.linear(y, state[at + "attn.qkv.weight"], state.get(at + "attn.qkv.bias"))
        q, k, v = y.view(*y.shape[:2], 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y = functional.linear(y, state[at + "attn.proj.weight"], state[at + "attn.proj.bias"])
        x = x + y * state.get(at + "ls1.gamma", torch.ones(()))
        y = functional.layer_norm(x, (width,), state[at + "norm2.weight"], state[at + "norm2.bias"], 1e-6)
        y = functional.gelu(functional.linear(y, state[at + "mlp.fc1.weight"], state[at + "mlp.fc1.bias"]))
        y = functional.linear(y, state[at + "mlp.fc2.weight"], state[at + "mlp.fc2.bias"])
        x = x + y * state.get(at + "ls2.gamma", torch.ones(()))
    x = functional.layer_norm(x, (width,), state["norm.weight"], state["norm.bias"], 1e-6)
    if "cls_token" not in state:
        return functional.linear(x.mean(1), state["head.weight"], state["head.bias"])
    logits = functional.linear(x[:, 0], state["head.weight"], state["head.bias"])
    if "head_dist.weight" in state:
        return (logits + functional.linear(x[:, 1], state["head_dist.weight"], state["head_dist.bias"])) / 2
    return logits


@torch.no_grad()
def test_timm(tmp_path: Path) -> None:
    head = {"kind": "classification", "classes": 3}
    for number, changes in enumerate(
        (
            {},
            {"registers": 2, "layer_scale": 0.1, "attention.bias": False, "attention.output_bias": True},
            {"registers": 1, "heads.label": {**head, "distilled": True}},
            {"class_token": False, "heads.label": {**head, "pooling": "mean"}, "image": (8, 12)},
        )
    ):
        base = {"width": 24, "depth": 2, "attention.heads": 3, "patch": 4, "image": (8, 8), "norm_place": "pre"}
        base |= {"ffn.hidden": 36, "ffn.activation": "gelu", "norm.eps": 1e-6, "heads.label": head, "dropout": 0.0}
        model = random_model(regard.build, Vision().changed({**base, **changes}))
        save_model(model, tmp_path / f"run{number}")
        convert(tmp_path / f"run{number}", tmp_path / f"timm{number}", "timm")
        state = load_file(tmp_path / f"timm{number}" / "model.safetensors")
        batch = torch.randn(2, 3, *model.settings.image)
        expected = model.heads["label"](model(batch))
        torch.testing.assert_close(timm_forward(state, batch, 3), expected, **CLOSE)
        # A file of timm has positions of all learned tokens, and often a config without sizes.
        if "pos_embed" in state:
            state["pos_embed"] = torch.randn_like(state["pos_embed"])
        save_file(state, tmp_path / f"timm{number}" / "model.safetensors")
        ours = read_pretrained(tmp_path / f"timm{number}")
        found = ours.heads["classification"](ours(batch))
        torch.testing.assert_close(found, timm_forward(state, batch, 3), **CLOSE)
    # timm builds a model from these, as found with timm 1.0.31: without them it refuses the last model above.
    made = json.loads((tmp_path / "timm3" / "config.json").read_text())["model_args"]
    assert (made["global_pool"], made["fc_norm"], made["class_token"], made["no_embed_class"]) == (
        "avg",
        *[False] * 2,
        True,
    )
    config = json.loads((tmp_path / "timm0" / "config.json").read_text())
    del config["model_args"]
    config["architecture"], config["pretrained_cfg"]["mean"] = "vit_tiny_patch4_8", [0.485, 0.456, 0.406]
    (tmp_path / "timm0" / "config.json").write_text(json.dumps(config))
    read = read_pretrained(tmp_path / "timm0").settings
    assert isinstance(read, Vision)
    assert (read.width, read.depth, read.attention.heads, read.mean) == (24, 2, 3, (0.485, 0.456, 0.406))
    # The names decide the heads, where no sizes are given.
    for name, message in (
        ("vit_base_patch16_gap_224", r"width \(24\) must be a multiple of heads \(16\)"),
        ("vit_so400m_patch14_224", "does not tell the number of heads; add num_heads"),
        ("vit_base_patch32_siglip_gap_256", "only plain Vision Transformers"),
    ):
        (tmp_path / "timm0" / "config.json").write_text(json.dumps(config | {"architecture": name}))
        with pytest.raises(WeightsError, match=message):
            read_pretrained(tmp_path / "timm0")
    (tmp_path / "timm0" / "config.json").write_text(json.dumps(config | {"architecture": "deit3_medium_patch4_8"}))
    assert read_pretrained(tmp_path / "timm0").settings.attention.heads == 8  # type: ignore[union-attr]
    config["architecture"] = "resnet50"
    (tmp_path / "timm0" / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=r"resnet50.*only plain Vision Transformers"):
        read_pretrained(tmp_path / "timm0")


def test_models_of_recipes_can_be_written(tmp_path: Path) -> None:
    for name, form in (("cifar10", "timm"), ("fashion-mnist", "timm"), ("mnist", "huggingface")):
        model = regard.build(job_model(read_job(RECIPES / f"{name}.toml")))
        save_model(model, tmp_path / name)
        convert(tmp_path / name, tmp_path / form / name, form)
        read = read_pretrained(tmp_path / form / name).settings
        assert isinstance(read, Vision)
        assert isinstance(model.settings, Vision)
        assert (read.grid, read.depth, read.norm) == (model.settings.grid, model.settings.depth, model.settings.norm)
