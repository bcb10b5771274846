"""What every view of the page must do: numbers on screen, changes announced, small screens, keyboard, accessibility."""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Iterator
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from browser_cases import HOSTILE, READY, TEXT, Served, Watched, eventually, wait_for
from tiny_models import WRITERS, write_decoder

import regard
from regard.blocks.settings import Attention
from regard.decoding.settings import Absolute, Rules, Sampling
from regard.look.input import Input
from regard.look.study import Study
from regard.look.views import views_of
from regard.look.views.architecture import architecture
from regard.look.views.compare import compare_runs
from regard.look.views.decode import decode_steps
from regard.models.settings import Decoder, Elmo, Encoder, Masked
from regard.serving.page_file import page_file
from regard.text.settings import ByteBpe, WordPiece
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.weights.directory import save_model

PICTURES = {
    "architecture": ".diagram",
    "words": ".words-map",
    "heads": "#enlarged",
    "walk": ".equation",
    "decode": ".steps",
    "training": ".forcing",
    "attribution": ".scores",
    "lens": "#lens",
    "vectors": ".scatter",
    "positions": "#encodings",
    "compare": "#map-0",
    "image": "#picture",
    "task": ".row-of-tokens",
}
"""The main picture of each view."""
READOUTS = {
    "architecture": ".box.attention",
    "words": ".target",
    "walk": ".matrix.result canvas",
    "lens": "[data-cell]",
    "vectors": ".spot",
    "positions": "#encodings",
    "attribution": ".scores li",
}
"""Where the pointer reads a number, if not on the picture itself."""
ANSWERS = {
    "architecture": ".about-part",
    "decode": ".chosen-step",
    "training": ".outcome",
    "task": ".task td [data-value]",
}
"""What the view tells about it, if not the number under the pointer."""
READ_BY = {
    "walk": ("layer", "head", "token", "step"),
    "decode": ("chosen",),
    "lens": ("row", "column"),
    "vectors": ("depth",),
}
"""The numbers of an address that a view reads, if not layer and head."""
WITHOUT = {"compare", "vectors", "positions", "training"}
"""Views of the model without changed heads."""


def opened(page: Any, view: str) -> None:
    page.locator(f"#tab-{view}").click()
    wait_for(page, f"#view[aria-labelledby=tab-{view}] {READY}")


def inside(page: Any, selector: str) -> bool:
    """Whether an element begins on the screen, and ends there unless it is higher than half of it."""
    box, size = page.locator(selector).first.bounding_box(), page.viewport_size
    assert box is not None, selector
    bottom = min(box["y"] + box["height"], box["y"] + size["height"] / 2)
    across = box["x"] >= 0 and box["x"] + box["width"] <= size["width"] + 1
    return bool(across and box["y"] >= 0 and bottom <= size["height"] + 1)


def reachable(page: Any, view: str, width: int) -> bool:
    """Whether the tab of the open view is in sight."""
    box = page.locator(f"#tab-{view}").bounding_box()
    return bool(-1 <= box["x"] <= width - box["width"] + 1)


def test_pictures_readouts_and_effects_are_on_the_screen(served: dict[str, Served], watched: Watched) -> None:
    state = {"text": TEXT, "target": "a dog runs", "to": "en", "at": "decoder.cross", "step": "decoder.0.cross.weights"}
    own = {
        "encoder": {"text": TEXT, "step": "encoder.0.attention.weights"},
        "vision": {"step": "encoder.0.attention.weights"},
    }
    for family, (width, height) in product(("encoder", "vision", "translator"), ((1280, 720), (1440, 900))):
        one = served[family]
        page = watched.open(one.address, **own.get(family, state))
        page.set_viewport_size({"width": width, "height": height})
        for view in views_of(one.study):
            opened(page, view)
            assert inside(page, PICTURES[view]), (view, width)
            page.locator(READOUTS.get(view, PICTURES[view])).first.hover()
            eventually(lambda page=page, view=view: inside(page, ANSWERS.get(view, "#readout")))
            assert page.evaluate("scrollY") == 0, view
        if family != "translator":
            continue
        opened(page, "training")
        page.locator("#step").click()
        eventually(lambda page=page: page.locator("[data-expected]").count())
        assert inside(page, ".outcome")
        assert inside(page, ".forcing tbody tr:first-child [data-after]")
        opened(page, "walk")
        assert inside(page, ".one-query tr[data-key]"), "the largest weight"
        opened(page, "heads")
        box = page.locator("#enlarged").bounding_box()
        for share in (0.35, 0.9):
            page.mouse.move(box["x"] + 0.55 * box["width"], box["y"] + share * box["height"])
            if page.locator("#readout").is_visible():
                assert inside(page, "#readout"), "the number is next to the pointer"
        page.locator("#silence").click()
        wait_for(page, "#edits:not([hidden])")
        wait_for(page, f"#view {READY}")
        assert page.evaluate("scrollY") == 0
        assert inside(page, ".effect h2"), "the effect of a click is next to the map"
        assert inside(page, ".effect table tbody tr:first-child")


def test_a_model_without_attention(tmp_path: Path, watched: Watched) -> None:
    tokenizer = train_tokenizer(ByteBpe(size=300), [TEXT])
    TokenizerPair.of(tokenizer).save(tmp_path)
    save_model(regard.build(Elmo(vocabulary=tokenizer.size, width=8)), tmp_path)
    one = Served(Study(regard.load(tmp_path, "cpu")))
    page = watched.open(one.address, text=TEXT)
    assert "· elmo · width 8 ·" in page.locator("#model").inner_text()
    one.close()


def test_a_word_of_many_letters_that_is_one_token(tmp_path: Path, watched: Watched) -> None:
    tokenizer = train_tokenizer(WordPiece(size=60), [TEXT])
    TokenizerPair.of(tokenizer).save(tmp_path)
    settings = Encoder(vocabulary=tokenizer.size, width=8, depth=1, attention=Attention(heads=2), heads={"m": Masked()})
    save_model(regard.build(settings), tmp_path)
    one = Served(Study(regard.load(tmp_path, "cpu")))
    for view in views_of(one.study):
        page = watched.open(one.address, text=f"ein {'ß' * 2000}", view=view)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    one.close()


def test_numbers_in_an_address_are_bounded(served: dict[str, Served], watched: Watched) -> None:
    for view in ("heads", "words", "walk", "decode", "lens", "vectors", "compare"):
        for number in ("-1", "1.5", "999", "x"):
            state = dict.fromkeys(READ_BY.get(view, ("layer", "head")), number)
            page = watched.open(served["decoder"].address, text=TEXT, view=view, **state)
            assert page.locator("#status").inner_text() == "", (view, number)
    page = watched.open(served["decoder"].address, chapter="1.5")
    assert page.locator("#chapter .number").inner_text().startswith("2 /")


def test_changed_heads_are_announced_in_every_view(served: dict[str, Served], watched: Watched) -> None:
    for family, head in (("translator", "decoder.0.cross.1"), ("encoder", "encoder.1.attention.0")):
        one = served[family]
        page = watched.open(one.address, text=TEXT, off=head, **({"to": "en"} if family == "translator" else {}))
        for view in views_of(one.study):
            opened(page, view)
            told = page.locator("#edits").inner_text()
            stack, layer, _, number = head.split(".")
            assert f"layer {layer}, head {number}" in told, "the index of the address"
            assert stack in told
            assert ("without this change" if view in WITHOUT else "the changed model") in told, view
        opened(page, "walk")
        page.locator("#edits button").click()
        page.wait_for_selector("#edits", state="hidden")
        assert "off=" not in page.url


def test_a_forced_token_has_its_own_probability(served: dict[str, Served], watched: Watched) -> None:
    one = served["translator"]
    page = watched.open(one.address, text=TEXT, view="decode", to="en")
    page.locator(".steps tr").first.locator(".options button").nth(3).click()
    page.get_by_role("button", name="Follow the model again").wait_for()
    run = one.study.run(Input(TEXT, to="en"))
    forced = int(page.url.partition("prefix=")[2].partition("&")[0])
    found = decode_steps(one.study, run, Sampling(), Rules(longest=Absolute(tokens=48)), [forced])
    first = found["steps"][0]
    plain = decode_steps(one.study, run, Sampling(), Rules(longest=Absolute(tokens=48)))["steps"][0]
    known = {option["id"]: option for option in plain["options"]}[forced]
    assert first["token"]["model"] == pytest.approx(known["model"], abs=1e-6)
    assert first["token"]["chance"] == pytest.approx(known["chance"], abs=1e-6), "not 1"
    button = page.locator(".options button.forced")
    assert "forced" in button.inner_text()
    assert f"{known['model']:.4f}" in button.inner_text()
    total = float(page.locator("[data-total]").get_attribute("data-total"))
    assert total == pytest.approx(sum(math.log(step["token"]["model"]) for step in found["steps"]), abs=1e-4)


def test_special_tokens_can_be_written_and_unsent_text_is_marked(served: dict[str, Served], watched: Watched) -> None:
    page = watched.open(served["encoder"].address, text="ein ", view="heads")
    field = page.locator("textarea[name=text]")
    field.focus()
    page.keyboard.press("End")
    page.get_by_role("button", name="<mask>").click()
    assert field.input_value() == "ein <mask>"
    assert "not run yet" in page.locator("#unsent").inner_text()
    page.keyboard.press("Enter")
    eventually(lambda: page.locator("#unsent").inner_text() == "")
    wait_for(page, f"#view {READY}")
    study = served["encoder"].study
    tokenizer = study.loaded.tokenizers.source
    assert tokenizer.roles["mask"] in study.run(Input("ein <mask>")).sides["encoder"].ids


def test_indices_are_those_of_addresses(served: dict[str, Served], watched: Watched) -> None:
    page = watched.open(
        served["translator"].address, text=TEXT, view="heads", to="en", at="decoder.cross", layer="0", head="1"
    )
    assert page.locator(".large h2").inner_text() == "Cross-attention · layer 0 · head 1"
    button = page.locator("[data-head='decoder.0.cross.1']")
    assert button.get_attribute("aria-label").startswith("Layer 0, head 1")
    assert page.locator(".maps [role=columnheader]").all_inner_texts() == ["layer", "0", "1"]
    page.locator("#enlarged").focus()
    page.keyboard.press("ArrowRight")
    assert " at 0" in page.locator("#readout").inner_text()
    opened(page, "lens")
    assert page.locator("#lens .name").all_inner_texts()[2].startswith("Layer 0")


def test_masked_cells_scales_and_tokens(served: dict[str, Served], watched: Watched) -> None:
    one = served["decoder"]
    page = watched.open(one.address, text="dog the dog ☃", view="heads")
    assert page.locator(".legend").first.inner_text().split()[:2] == ["0", "1"], "one scale for all maps"
    assert "masked" in page.locator(".large .legend").inner_text()
    assert "read → token written" in page.locator(".large .legend").inner_text()
    page.locator("#enlarged").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("#readout [data-value]").inner_text() == "masked", "not 0"
    page.get_by_role("radio", name="own scale").click()
    eventually(lambda: "largest here" in page.locator(".large .legend").inner_text())
    names = one.study.run(Input("dog the dog ☃")).sides["decoder"].names
    assert "␣d" in names
    assert "d" in names, "with and without a space"
    assert {"‹E2›", "‹98›", "‹83›"} <= set(names), "bytes of a character that the vocabulary lacks"


def test_back_and_forward_move_between_views(served: dict[str, Served], watched: Watched) -> None:
    page = watched.open(served["decoder"].address, text=TEXT, view="heads")
    opened(page, "lens")
    opened(page, "walk")
    page.go_back()
    wait_for(page, f"#view[aria-labelledby=tab-lens] {READY}")
    page.go_back()
    wait_for(page, f"#view[aria-labelledby=tab-heads] {READY}")
    page.go_forward()
    wait_for(page, f"#view[aria-labelledby=tab-lens] {READY}")
    page.locator("textarea[name=text]").fill("the dog")
    page.keyboard.press("Enter")
    wait_for(page, f"#view {READY}")
    page.go_back()
    eventually(lambda: page.locator("textarea[name=text]").input_value() == TEXT)


def test_arrows_belong_to_the_view_after_a_click_and_to_the_tabs_by_keyboard(
    served: dict[str, Served], watched: Watched
) -> None:
    page = watched.open(served["decoder"].address, text=TEXT, view="heads")
    opened(page, "walk")
    before = page.locator("[aria-current=step]").get_attribute("data-step")
    page.keyboard.press("ArrowRight")
    eventually(lambda: page.locator("[aria-current=step]").get_attribute("data-step") != before)
    assert "view=walk" in page.url
    step = page.locator("[aria-current=step]").get_attribute("data-step")
    page.locator("#tab-walk").focus()
    page.keyboard.press("ArrowLeft")
    eventually(lambda: "view=words" in page.url)
    assert page.evaluate("document.activeElement.id") == "tab-words"
    assert f"step={step}" in page.url, "the walk has not moved"


@pytest.fixture
def unlike(tmp_path: Any) -> Iterator[Served]:
    """A decoder of two layers, next to one of a single layer."""
    one = regard.load(write_decoder(tmp_path / "one"), "cpu")
    write_decoder(tmp_path / "two")
    model = one.settings
    assert isinstance(model, Decoder)
    save_model(regard.build(model.changed({"depth": 1})), tmp_path / "two")
    made = Served(Study(one, against=regard.load(tmp_path / "two", "cpu")))
    yield made
    made.close()


def test_models_of_different_depth_are_compared(unlike: Served, watched: Watched) -> None:
    page = watched.open(unlike.address, text=TEXT, view="compare")
    assert page.locator("#status").inner_text() == ""
    assert page.locator("#map-2").count() == 1
    assert page.locator('select[aria-label="Layer of the other"] option').count() == 1
    study = unlike.study
    weights = study.tensor(study.run(Input(TEXT)).key, "decoder.1.attention.weights")[0]
    page.locator("#map-0").focus()
    for key in ("ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    shown = [float(text) for text in page.locator("#readout [data-value]").all_inner_texts()[:2]]
    assert shown[0] == pytest.approx(float(weights[1, 0]), abs=1e-4), "the map of the first model is its own"
    page.locator("[data-head='decoder.0.attention.1']").click()
    eventually(lambda: "layer 0 · head 1" in page.locator("#compare-maps h2").inner_text())
    html = page_file(unlike.study, unlike.study.run(Input(TEXT)), ["compare"]).html
    assert "compare" in html


def test_a_server_that_dies_or_restarts(served: dict[str, Served], browser: Any) -> None:
    study, other = served["decoder"].study, Watched(browser)
    one = Served(study)
    page = other.open(one.address, text=TEXT, view="heads")
    port = one.socket.getsockname()[1]
    one.close()
    page.locator("#tab-lens").click()
    wait_for(page, "#status.error")
    assert "does not answer" in page.locator("#status").inner_text()
    again = Served.__new__(Served)
    study._runs.clear()
    original = socket.create_server
    socket.create_server = lambda address, **more: original((address[0], port), **more)  # type: ignore[assignment]
    try:
        again.__init__(study)  # type: ignore[misc]
    finally:
        socket.create_server = original
    wait_for(page, f"#view[aria-labelledby=tab-lens] {READY}")
    assert page.locator("#status").inner_text() == ""
    study._runs.clear()  # as after a restart between two clicks
    opened(page, "walk")
    assert page.locator("#status").inner_text() == ""
    other.context.close()
    again.close()


def test_the_diagram_is_the_model(served: dict[str, Served], watched: Watched) -> None:
    one = served["translator"]
    page = watched.open(one.address, text=TEXT, target="a dog", to="en")
    assert "view=architecture" in page.url or page.locator("#tab-architecture").get_attribute("aria-selected") == "true"
    found = architecture(one.study, one.study.run(Input(TEXT, "a dog", "en")))
    parts = [part for stack in found["stacks"] for part in (*stack["before"], *stack["after"])]
    parts += [part for stack in found["stacks"] for group in stack["groups"] for part in group["parts"]]
    assert page.locator(".box").count() == len(parts)
    shapes = page.locator(".diagram .shape").all_text_contents()
    assert {"5 × 16", "13 × 16"} <= set(shapes), "the target with its start token, and the source"
    cross = next(part for part in parts if part["kind"] == "cross")
    page.locator(".box.cross").click()
    assert f"{cross['parameters']:,}" in page.locator(".about-part").inner_text()
    assert f"{cross['flops']:,}" in page.locator(".about-part").inner_text()
    page.get_by_role("button", name="▶ Play").click()
    eventually(lambda: page.locator(".box.lit").count() == 1)
    page.get_by_role("button", name="■ Stop").click()
    page.locator("[data-open=walk]").click()
    wait_for(page, f"#view[aria-labelledby=tab-walk] {READY}")
    assert page.locator("[aria-current=step]").get_attribute("data-step") == "decoder.0.cross.out"
    page.go_back()
    wait_for(page, f"#view[aria-labelledby=tab-architecture] {READY}")


def test_lines_between_words_are_the_weights(served: dict[str, Served], watched: Watched) -> None:
    one = served["decoder"]
    text = "the dog and the cat and it"
    page = watched.open(one.address, text=text, view="words", layer="1", head="1")
    study = one.study
    run = study.run(Input(text))
    weights = study.tensor(run.key, "decoder.1.attention.weights")[1]
    page.locator("[data-word='3']").click()
    page.locator(".target").nth(2).hover()
    assert abs(float(page.locator("#readout [data-value]").inner_text()) - float(weights[3, 2])) < 1e-4
    page.keyboard.press("ArrowDown")
    eventually(lambda: "from=4" in page.url)
    expected = compare_runs(study, run, ["decoder.1.attention.1"])["answers"][0]["figures"]["divergence"]
    eventually(lambda: page.locator("[data-effect]").count())
    assert float(page.locator("[data-effect]").get_attribute("data-effect")) == pytest.approx(expected, abs=1e-4)
    assert page.locator("[data-random]").count() == 1
    page.get_by_role("radio", name="Their mean").click()
    mean = study.tensor(run.key, "decoder.1.attention.weights").mean(0)[4]
    best = page.locator(".about-part td[data-value]").first.get_attribute("data-value")
    assert float(best) == pytest.approx(float(mean.max()), abs=1e-4)


def test_the_lectures_example_by_hand(served: dict[str, Served], watched: Watched) -> None:
    page = watched.open(served["decoder"].address, text=TEXT, view="walk", step="decoder.0.attention.weights")
    page.locator(".by-hand summary").click()
    rows = [row.inner_text().split() for row in page.locator(".by-hand tr").all()]
    assert [row[-2:] for row in rows] == [["112", "96"], ["14", "12"], ["0.88", "0.12"]]
    page.locator("input[name=scores]").fill("0, 0, 0")
    assert page.locator(".by-hand tr").last.inner_text().split()[-3:] == ["0.33", "0.33", "0.33"]


def test_a_lecture_goes_on_by_the_right_arrow_alone(served: dict[str, Served], watched: Watched) -> None:
    guide = Path(__file__).parents[2] / "docs" / "looking.md"
    listed = dict(re.findall(r"^\| .+ \| (.+) \| `(view=.+)` \|$", guide.read_text(), re.M))
    assert len(listed) > 25
    reached: dict[str, str] = {}
    for one in served.values():
        page = watched.open(one.address, chapter="0")
        page.set_viewport_size({"width": 1280, "height": 720})
        about = page.evaluate("fetch('api/about').then(answer => answer.json())")
        chapters, page_family = about["chapters"], about["family"]
        count, titles = len(chapters), set()
        for number, chapter in enumerate(chapters):
            page.get_by_text(f"{number + 1} / {count}", exact=True).wait_for()
            wait_for(page, f"#view {READY}")
            assert page.locator("#status.error").count() == 0, page.locator("#status").inner_text()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            if "needs another model" not in page.locator("#chapter").inner_text():
                view, part = chapter["state"]["view"], chapter["state"].get("part")
                picture = f".{part}" if part else ".drawn" if view == "walk" else PICTURES[view]
                assert inside(page, picture), (chapter["title"], "the picture is in sight")
                assert inside(page, "#chapter"), (chapter["title"], "and so is the sentence")
                reached.setdefault(chapter["title"], page.url.partition("#")[2])
            titles.add(page.locator("#chapter h2").inner_text())
            elsewhere = chapter["model"] is not None and chapter["family"] != page_family
            assert (f"/{chapter['model']}/" in page.url) == elsewhere, "a chapter on BERT shows the shipped encoder"
            page.keyboard.press("ArrowRight")
        assert {"Why attention", "Softmax", "Decoding", "BERT", "GPT", "ViT"} <= titles
        page.keyboard.press("Escape")
        assert not page.locator("#chapter").is_visible()
        assert page.locator("#input").is_visible()
    for title, address in listed.items():
        assert dict(parse_qsl(address)).items() <= dict(parse_qsl(reached[title])).items(), "the picture of the list"


@pytest.mark.slow
@pytest.mark.parametrize("family", list(WRITERS))
def test_no_sideways_scroll_and_nothing_serious_for_axe(
    served: dict[str, Served], watched: Watched, family: str
) -> None:
    one, axe = served[family], resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    page = watched.open(one.address, text=HOSTILE)
    page.evaluate(axe)
    for view in (*views_of(one.study), "lecture"):
        for width in (1440, 1280, 768, 390):
            page.set_viewport_size({"width": width, "height": 844})
            if view == "lecture":
                page.evaluate(
                    "document.body.classList.contains('lecture') || document.getElementById('lecture').click()"
                )
                wait_for(page, f".lecture #view {READY}")
            elif width in (1440, 390):
                opened(page, view)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (view, width)
            if view != "lecture":
                eventually(lambda view=view, width=width: reachable(page, view, width))
        found = page.evaluate("axe.run().then(found => found.violations)")
        serious = [
            (each["id"], [node["html"][:120] for node in each["nodes"]][:3])
            for each in found
            if each["impact"] in ("serious", "critical")
            or each["id"] in ("landmark-one-main", "heading-order", "region")
        ]
        assert serious == [], view


def test_walk_names_rows_and_columns_and_shows_the_row_that_is_looked_up(
    served: dict[str, Served], watched: Watched
) -> None:
    """Every matrix of a step shows the chosen token, with its own name and number."""
    one, text = served["decoder"], "the dog and the cat and it " * 8
    page = watched.open(one.address, text=text, view="walk", step="embeddings", token="60")
    side = one.study.run(Input(text)).sides["decoder"]

    def read(symbol: str, row: int) -> str:
        box = page.locator(f'[data-symbol="{symbol}"] canvas').bounding_box()
        page.mouse.move(box["x"] + box["width"] - 8, box["y"] + box["height"] - 14 * row - 8)
        return str(page.locator("#readout").inner_text())

    assert f"id, {side.names[60]} at 60" in read("id", 7)
    assert read("id", 7).startswith(f"{side.ids[60]} ")
    assert f"e, {side.names[60]} at 60" in read("e", 7)
    assert any(f"E, {side.ids[60]} at" in read("E", row) for row in range(16))
    page.locator("[data-step='decoder.0.attention.concat']").click()
    assert page.locator(".matrix").count() == 3, "both heads, and the row of all"
    assert page.locator(".formula").inner_text() == "c = concat(head₀, head₁)"
    for symbol in ("head₀", "head₁", "c"):
        assert f"{side.names[60]} at 60" in read(symbol, 7)
    page.locator("[data-step='decoder.0.attention.residual']").click()
    assert "←" in page.locator(".formula").inner_text() or "norm" in page.locator(".panel h2").inner_text().lower()
    page.locator("[data-step='decoder.0.attention.product']").click()
    assert page.locator('[data-symbol="Kᵀ"] figcaption').inner_text().startswith(f"Kᵀ 8 × {len(side.names)}")


def test_analogies_and_channels_are_drawn(served: dict[str, Served], watched: Watched) -> None:
    page = watched.open(served["decoder"].address, view="vectors", analogy="dog,the,cat")
    wait_for(page, ".analogy .scatter .arrow")
    names = {text.strip("\u2068\u2069") for text in page.locator(".analogy .scatter .label text").all_text_contents()}
    assert {"dog", "the", "cat"} <= names
    page = watched.open(served["decoder"].address, view="positions")
    assert page.locator("#waves").count() == 1
