"""Fuzzing: random damage to everything that a stranger can give to Regard.

    PYTHONPATH=src python bench/fuzz.py [--seed 1] [--inputs 100000] [--only TARGET] [--from INDEX] [--out result.json]

A target makes one input from a random generator and uses it as a verb would. An input may succeed or be refused by a
`RegardError` (for the server: any status below 500). Every other exception is a traceback, more than `SECONDS` is a
hang, and a process that ends is a crash; each is printed with the index that repeats it:
`--only TARGET --from INDEX --inputs 1`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "cases"))

SECONDS, WAITING = 10, 120
"""Processor time for one input, and time on the clock, which other programs make longer."""
SHOWN = 5
"""Failures of a target that are printed."""

Chance = random.Random
Target = Callable[[Chance], None]
"""Makes an input and uses it."""

INTEGERS = [0, 1, -1, 2, 3, 7, 2**15, 2**31, 2**32 - 1, 2**53, 2**63, -(2**63), 2**64, 10**30, 10**400]
VALUES: list[Any] = [
    *INTEGERS, None, True, False, "", "a", "none", "auto", "\0", "ä\u202e\x1b[31m", "9" * 5000, 0.0, -0.5,
    1e-300, 1e308, float("inf"), float("nan"), [], {}, [[]], {"": {}}, [1, "a", None], {"kind": "x"}, "../../x",
    "a" * 20_000, [0] * 1000,
]  # fmt: skip
PIECES = [
    "", " ", "\n", "\r\n", "\t", "\0", "\x1b[31m", "\ufeff", "\u2028", "ä", "犬", "😀", "\ud800", '"', "'", "\\", "[",
    "]", "{", "}", "=", ",", ":", "#", "<", ">", "&lt;", "&#60;", "%", "$", "null", "NaN", "Infinity", "-", "1e999",
    "1" * 5000, "[" * 2000, '{"a":' * 2000, "a." * 300, "a" * 10_000, "\xff", "-0", "0x", "1.2.3", "true",
    "<script>", "</", "{x}",
]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ damage


def damaged(text: str, chance: Chance) -> str:
    """A text with some parts removed, repeated, moved or inserted."""
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        start = chance.randrange(len(text) + 1)
        end = min(start + chance.choice((0, 1, 1, 2, 5, 40)), len(text))
        middle = chance.choice(("", text[start:end] * 2, chance.choice(PIECES), chr(chance.randrange(0x300))))
        text = text[:start] + middle + text[end:]
    return text


def damaged_bytes(data: bytes, chance: Chance) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        if not found:
            break
        place = chance.randrange(len(found))
        match chance.randrange(4):
            case 0:
                found[place] = chance.randrange(256)
            case 1:
                del found[place : place + chance.choice((1, 2, 30))]
            case 2:
                found[place:place] = chance.randbytes(chance.choice((1, 2, 9)))
            case 3:
                del found[place:]
    return bytes(found)


def damaged_value(value: Any, chance: Chance) -> Any:
    """A JSON or TOML value with one part replaced, removed or added."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        match chance.randrange(8):
            case 0:
                return {name: part for name, part in value.items() if name != key}
            case 1:
                return {**value, chance.choice((key + "x", "", "kind", "\x1b")): chance.choice(VALUES)}
        return {**value, key: damaged_value(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        more = [damaged_value(value[place], chance)] * chance.choice((0, 1, 1, 1, 2))
        return value[:place] + more + value[place + 1 :]
    if isinstance(value, str) and chance.random() < 0.3:
        return damaged(value, chance)
    return chance.choice(VALUES)


def damaged_json(value: Any, chance: Chance) -> str:
    for _ in range(chance.choice((1, 1, 2, 3))):
        value = damaged_value(value, chance)
    sys.set_int_max_str_digits(0)
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5)
    sys.set_int_max_str_digits(4300)
    return damaged(text, chance) if chance.random() < 0.2 else text


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


def toml_text(value: Any) -> str:
    import tomli_w

    try:
        return tomli_w.dumps(value)
    except (TypeError, ValueError, AttributeError):
        return str(value)


# ----------------------------------------------------------------------------------------------------------- targets


def settings(folder: Path) -> Target:
    """Recipes and overrides of `regard train`, and counts of models."""
    from regard.cli.terminal import split_words
    from regard.models.count import count
    from regard.models.presets import preset_names
    from regard.settings import read_toml
    from regard.shipped import recipes
    from regard.tasks.recipe import make_job, model_settings

    texts = [path.read_text(encoding="utf-8") for path in recipes().values()]
    keys = [f"{table}.{key}" for text in texts for table, part in read_toml(text).items() if isinstance(part, dict)
            for key in part]  # fmt: skip

    def use(chance: Chance) -> None:
        words = [f"{_key(chance.choice(keys), chance)}={_override(chance)}" for _ in range(chance.choice((0, 0, 1, 2)))]
        changes = split_words(words)[1]
        if chance.random() < 0.4:
            table = {
                "model": {"preset": chance.choice(preset_names()), chance.choice(MODEL_KEYS): chance.choice(VALUES)}
            }
            found = model_settings(table, changes)
            if chance.random() < 0.2:
                count(found)
        else:
            text = chance.choice(texts)
            table = (
                read_toml(damaged(text, chance)) if chance.random() < 0.4 else damaged_value(read_toml(text), chance)
            )
            make_job("fuzz", table if isinstance(table, dict) else {"data": table}, changes)

    return use


MODEL_KEYS = [
    "width",
    "depth",
    "vocabulary",
    "dropout",
    "attention",
    "position",
    "ffn",
    "norm",
    "kind",
    "decoder_depth",
]


def _key(name: str, chance: Chance) -> str:
    return damaged(name, chance) if chance.random() < 0.3 else name


def _override(chance: Chance) -> str:
    value = chance.choice(VALUES)
    return chance.choice(PIECES) if chance.random() < 0.4 else damaged(repr(value)[:6000], chance)


def readers(folder: Path) -> Target:
    """Data files of every kind, compressed and not, reported as `regard data` does."""
    import numpy as np

    from regard.data.report import report_data
    from regard.data.source import READERS
    from regard.tasks.recipe import data_settings

    rows = [("the dog sees a cat", "der Hund sieht eine Katze"), ("a bird", "ein Vogel"), ("it sleeps", "er schläft")]
    tsv = "".join("\t".join(row) + "\n" for row in rows)
    jsonl = "".join(json.dumps({"source": one, "target": two, "text": one, "label": "a"}) + "\n" for one, two in rows)
    asked = {"id": "1", "question": "who?", "answers": [{"text": "the dog", "answer_start": 0}]}
    article = {"context": rows[0][0], "qas": [asked]}
    arrays = io.BytesIO()
    np.savez(arrays, images=np.zeros((3, 4, 4), np.uint8), labels=np.arange(3))
    contents: dict[str, bytes] = {
        **dict.fromkeys(READERS, tsv.encode()),
        **{kind: jsonl.encode() for kind in READERS if kind.endswith("jsonl")},
        **{kind: tsv.replace("\t", ",").encode() for kind in READERS if kind.endswith("csv")},
        "columns": b"the O\ndog B-X\n\na O\nbird B-X\n",
        "squad": json.dumps({"data": [{"title": "t", "paragraphs": [article]}]}).encode(),
        "idx": bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 3]) + bytes(18),
        "npz": arrays.getvalue(),
    }
    labels = bytes([0, 0, 8, 1, 0, 0, 0, 2, 3, 4])
    skipped = ("image-folder", "slots")  # folders; images have a target of their own
    kinds = [kind for kind in READERS if kind not in skipped]

    def use(chance: Chance) -> None:
        kind = chance.choice(kinds)
        data = contents[kind]
        if kind in ("idx", "npz") or chance.random() < 0.5:
            data = damaged_bytes(data, chance)
        else:
            data = damaged(data.decode(), chance).encode("utf-8", "surrogatepass")
        if chance.random() < 0.1:
            data = damaged_bytes(gzip.compress(data), chance)
        files = [str(folder / name) for name in ("a", "b")[: 2 if kind in ("parallel", "idx") else 1]]
        for file in files:
            Path(file).write_bytes(labels if kind == "idx" and file != files[0] else data)
        table = {"kind": kind, "train": files}
        found = data_settings({"data": damaged_value(table, chance) if chance.random() < 0.2 else table})
        if set(found.files("train")) <= set(files):  # no other file of this machine
            report_data(found, ("train",))

    return use


def images(folder: Path) -> Target:
    """Image files of several formats in folders by class."""
    from PIL import Image

    from regard.data.report import report_data
    from regard.tasks.recipe import data_settings

    place = folder / "images" / "class"
    place.mkdir(parents=True)
    contents = []
    for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        made = io.BytesIO()
        Image.new("RGB", (5, 4), (200, 10, 10)).save(made, form)
        contents.append(made.getvalue())
    (place / "good.png").write_bytes(contents[0])
    found = data_settings({"data": {"kind": "image-folder", "train": [str(place.parent)]}})

    def use(chance: Chance) -> None:
        (place / "bad.png").write_bytes(damaged_bytes(chance.choice(contents), chance))
        report_data(found, ("train",))

    return use


def translate(folder: Path) -> Target:
    """Texts and options of a translator; its model is a function that copies, so that the text work is tested."""
    from scripted_translator import scripted

    from regard.decoding.settings import TranslateOptions
    from regard.use.documents import sections

    models = [scripted(script) for script in (str, lambda text: text[::-1], lambda text: " ".join(text.split()[::2]))]
    options = ["beam", "nbest", "must", "must_not", "prefix", "align", "details", "split", "keep", "sampling", "length"]
    words = [
        "Der Hund. ",
        "a@b.de ",
        "www.x.de/ö ",
        "3,5 ",
        "1.000 ",
        "<b>",
        "</b>",
        "<!--",
        "{n}",
        "%s",
        "z. B. ",
        "&amp;",
    ]

    def use(chance: Chance) -> None:
        text = "".join(
            chance.choice((chance.choice(words), chance.choice(PIECES)[:300])) for _ in range(chance.randrange(9))
        )
        given: dict[str, Any] = {"beam": 1}
        if chance.random() < 0.4:
            value = chance.choice((*VALUES[:40], ["Hund"], [text[:9]], text[:9]))
            given[chance.choice(options)] = 4 if isinstance(value, int) and value > 4 else value
        chosen = TranslateOptions().changed(given)
        model = chance.choice(models)
        model.translations([text], chosen)
        if not given.keys() - {"beam"}:
            "".join(part for part in sections(text, 40))

    return use


def tokenizers(folder: Path) -> Target:
    """Damaged tokenizer.json files, and texts for those that load."""
    from regard.text import settings as kinds
    from regard.text.tokenizer import Tokenizer
    from regard.text.train import train_tokenizer

    corpus = ["the dog sees a cat", "der Hund sieht eine Katze", "a bird sleeps"] * 3
    types = (kinds.Bpe, kinds.ByteBpe, kinds.Unigram, kinds.WordPiece, kinds.Words, kinds.Characters, kinds.Bytes)
    made = [json.loads(train_tokenizer(kind(**({"size": 300} if "size" in kind.model_fields else {})), corpus).json)
            for kind in types]  # fmt: skip
    place = folder / "tokenizer.json"

    def use(chance: Chance) -> None:
        write(place, damaged_json(chance.choice(made), chance))
        found = Tokenizer.load(place)
        text = damaged("the dog sees\n<s> a cat", chance)
        found.decode(found.ids([text])[0])

    return use


def models(folder: Path) -> Target:
    """Model directories with damaged configs, checksums, labels and weights, ours and Hugging Face's."""
    import torch
    from tiny_translator import write_translator

    import regard
    from regard.weights.convert import convert

    torch.manual_seed(1)
    ours = write_translator(folder / "ours", both=False)
    theirs = folder / "theirs"
    convert(ours, theirs, "huggingface")
    files = [path for place in (ours, theirs) for path in sorted(place.iterdir()) if path.is_file()]
    whole = {path: path.read_bytes() for path in files}

    def use(chance: Chance) -> None:
        path = chance.choice(files)
        if path.suffix == ".json" and chance.random() < 0.7:
            write(path, damaged_json(json.loads(whole[path]), chance))
        elif path.suffix == ".toml":
            write(path, damaged(whole[path].decode(), chance))
        else:
            path.write_bytes(damaged_bytes(whole[path], chance))
        try:
            regard.load(path.parent, device="cpu")
        finally:
            path.write_bytes(whole[path])

    return use


def doctor(folder: Path) -> Target:
    """Damaged logs, states and configs of a run, for `regard doctor` and `regard runs`."""
    from run_cases import healthy_log, write_run

    from regard.cli.train import _row
    from regard.training.doctor import RunHistory, diagnose

    run = write_run(folder / "run", healthy_log(300))
    whole = {path: path.read_bytes() for path in run.iterdir()}

    def use(chance: Chance) -> None:
        path = chance.choice(list(whole))
        text = whole[path].decode()
        if path.suffix == ".jsonl":
            lines = text.splitlines()
            for _ in range(chance.choice((1, 3, 20))):
                place = chance.randrange(len(lines))
                with contextlib.suppress(ValueError, RecursionError):
                    lines[place] = damaged_json(json.loads(lines[place]), chance)
            text = "\n".join(lines) + "\n"
        elif path.suffix == ".json" and chance.random() < 0.8:
            text = damaged_json(json.loads(text), chance)
        else:
            text = damaged(text, chance)
        write(path, text)
        try:
            history = RunHistory(run)
            diagnose(history)
            _row("run", history)
        finally:
            path.write_bytes(whole[path])

    return use


def http(folder: Path) -> Target:
    """Damaged requests, as bytes on a socket, to a server that runs in a thread."""
    from serving_cases import Parrot

    from regard.serving.app import create_app
    from regard.serving.http import listen, make_server
    from regard.serving.settings import Serving
    from regard.serving.translation import TranslationService

    errors: list[str] = []
    app = create_app([TranslationService(Parrot())], Serving(api_keys=("key",)), errors.append)  # type: ignore[arg-type]
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = make_server(app, 100, 2.0, 1)
    threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True).start()
    fields = {"q": ["ein Hund", "<b>x</b>"], "source": "auto", "target": "en", "format": "html", "api_key": "key"}
    kinds = ["application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "a/b", ""]
    heads = ["Authorization: Bearer key", "Origin: null", "Host: x", "Expect: 100-continue",
             "Transfer-Encoding: chunked", "Content-Encoding: gzip", "Accept: text/event-stream", "Connection: close",
             "Content-Length: -1"]  # fmt: skip
    paths = ["/translate", "/translate/stream", "/detect", "/languages", "/metrics", "/docs", "/health", "/x"]

    def body(kind: str, chance: Chance) -> bytes:
        if "json" in kind:
            return damaged_json(fields, chance).encode("utf-8", "surrogatepass")
        if "multipart" in kind:
            text = "--x\r\nContent-Disposition: form-data; name=q\r\n\r\nein Hund\r\n--x--\r\n"
        else:
            text = "q=ein+Hund&source=de&target=en&api_key=key&alternatives=1"
        return damaged(text, chance).encode("utf-8", "surrogatepass")

    def use(chance: Chance) -> None:
        kind = chance.choice(kinds)
        content = body(kind, chance)
        lines = [f"{chance.choice(('POST', 'POST', 'POST', 'GET', 'PUT', 'x'))} {chance.choice(paths)} HTTP/1.1"]
        lines += ["Host: localhost", f"Content-Type: {kind}", f"Content-Length: {len(content)}"]
        lines += [damaged(chance.choice(heads), chance)[:2000] for _ in range(chance.choice((0, 0, 1, 2)))]
        raw = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + content
        if chance.random() < 0.3:
            raw = damaged_bytes(raw, chance)
        with socket.create_connection(("127.0.0.1", port), WAITING) as client:
            client.settimeout(WAITING)
            with contextlib.suppress(ConnectionError):
                client.sendall(raw)
                client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                head = client.recv(12)
                assert not head.startswith(b"HTTP/1.1 5"), (head, raw[:2000], errors)
        assert not errors, (errors, raw[:2000])

    return use


TARGETS: dict[str, tuple[Callable[[Path], Target], float]] = {
    "settings": (settings, 0.12),
    "http": (http, 0.12),
    "readers": (readers, 0.15),
    "doctor": (doctor, 0.08),
    "models": (models, 0.02),
    "translate": (translate, 0.25),
    "tokenizers": (tokenizers, 0.18),
    "images": (images, 0.08),
}
"""Targets, and their shares of the inputs."""


# ------------------------------------------------------------------------------------------------------------- runs


class Hang(BaseException):
    """An input took too long. No `except Exception` catches it."""


def run_target(name: str, seed: int, first: int, last: int, state: Path) -> None:
    """Runs inputs in this process. `state` has the next index and the counts, so that a crash can be located."""
    import torch  # here, since an alarm during this import would break it

    from regard.errors import RegardError

    def alarm(*_: object) -> None:
        raise Hang

    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, alarm)
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        use = TARGETS[name][0](Path(folder))
        for index in range(first, last):
            state.write_text(json.dumps([index, counts]))
            signal.setitimer(signal.ITIMER_REAL, WAITING)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                use(Chance(f"{seed} {name} {index}"))
                counts["accepted"] += 1
            except RegardError as error:
                counts["refused"] += 1
                if not str(error).strip():
                    counts["tracebacks"] += 1
                    print(f"{name} {index}: an error without a message: {type(error)}", flush=True)
            except Hang:
                counts["hangs"] += 1
                print(f"{name} {index}: HANG", flush=True)
            except BaseException:
                counts["tracebacks"] += 1
                if counts["tracebacks"] <= SHOWN:
                    print(f"{name} {index}: {_shortened(traceback.format_exc())}", flush=True)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
        state.write_text(json.dumps([last, counts]))


def _shortened(text: str) -> str:
    return "\n".join(line[:200] for line in text.splitlines()[-12:])


def measure(name: str, seed: int, first: int, count: int) -> Counter[str]:
    """Runs inputs in a process of their own; starts another one after a crash."""
    total: Counter[str] = Counter(inputs=count, accepted=0, refused=0, tracebacks=0, hangs=0, crashes=0)
    begun, last = time.monotonic(), first + count
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        while first < last:
            words = [__file__, "--process", name, str(seed), str(first), str(last), str(state)]
            done = subprocess.run([sys.executable, "-W", "ignore", *words], check=False, stderr=subprocess.PIPE)
            if not state.exists():
                raise SystemExit(done.stderr.decode())
            first, counts = json.loads(state.read_text())
            total.update(counts)
            if first < last:
                total["crashes"] += 1
                print(f"{name} {first}: CRASH, status {done.returncode}: {done.stderr.decode()[-500:]}", flush=True)
                first += 1
    total["seconds"] = round(time.monotonic() - begun)
    return total


def shares(inputs: int, only: str | None) -> Iterator[tuple[str, int]]:
    for name, (_, share) in TARGETS.items():
        if only in (None, name):
            yield name, inputs if only else round(inputs * share)


def main() -> None:
    if sys.argv[1:2] == ["--process"]:
        name, seed, first, last, state = sys.argv[2:]
        run_target(name, int(seed), int(first), int(last), Path(state))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--only", choices=TARGETS)
    parser.add_argument("--from", type=int, default=0, dest="first", help="index of the first input")
    parser.add_argument("--processes", type=int, default=1, help="targets at the same time")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Counter[str]] = {}
    columns = ("inputs", "accepted", "refused", "tracebacks", "hangs", "crashes", "seconds")
    print(f"{'target':12}" + "".join(f"{column:>12}" for column in columns), flush=True)

    def fuzz(part: tuple[str, int]) -> None:
        name, count = part
        results[name] = measure(name, arguments.seed, arguments.first, count)
        print(f"{name:12}" + "".join(f"{results[name][column]:12,}" for column in columns), flush=True)

    with ThreadPoolExecutor(arguments.processes) as pool:
        list(pool.map(fuzz, shares(arguments.inputs, arguments.only)))
    total = sum(results.values(), Counter())
    print(f"{'total':12}" + "".join(f"{total[column]:12,}" for column in columns))
    if arguments.out:
        from measured import environment

        about = environment() | {"hardware": f"{os.cpu_count()} CPU cores"}
        text = json.dumps({"environment": about, "seed": arguments.seed, "result": results}, indent=1)
        arguments.out.write_text(text + "\n", encoding="utf-8")
    if total["tracebacks"] or total["hangs"] or total["crashes"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
