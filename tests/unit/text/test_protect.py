"""What must not be changed is found, and what only looks like it is not; numbers are the same in any language."""

from __future__ import annotations

import time

import pytest

from regard.text.numbers import missing, numbers, readings
from regard.text.protect import escape, figures, find, strange, unescape

PLACEHOLDERS = "{name} {0} {0:.2f} {} {{x}} {{user.name}} ${var} $name %s %1$s %(name)s %{count} #{x} __VAR__ %@ %1"


def kinds(text: str) -> dict[str, str]:
    return {item.text: item.kind for item in find(text)}


@pytest.mark.parametrize(
    "item",
    [*PLACEHOLDERS.split(), "{{ user name }}"],
)
def test_placeholders(item: str) -> None:
    assert kinds(f"Hello {item}, and so on") == {item: "placeholder"}
    assert kinds(f"({item})") == {item: "placeholder"}


@pytest.mark.parametrize("item", ["%d", "%i", "%5.2f", "%03d", "%u", "%ld"])
def test_placeholders_of_numbers(item: str) -> None:
    assert kinds(f"You have {item} new ones") == {item: "number"}


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ("See https://a.org/b?c=d&e#f.", "https://a.org/b?c=d&e#f"),
        ("(see http://a.org/b_(c)).", "http://a.org/b_(c)"),
        ("www.a.de, or", "www.a.de"),
        ("mail a.b+c@d-e.co.uk!", "a.b+c@d-e.co.uk"),
        ("<a.b@c.org>", "a.b@c.org"),
        ("example.com/path is", "example.com/path"),
        ("„https://ä.de/ü“", "https://ä.de/ü"),
    ],
)
def test_addresses(text: str, item: str) -> None:
    assert kinds(text) == {item: "address"}


def test_tags() -> None:
    text = '<b>x</b> <a href="a b">y</a><br><img src="z"/> <1>t</1> <g:x id="1"/> <!-- c > --> <pre>p <b></pre>'
    assert [(item.text, item.kind) for item in find(text)] == [
        ("<b>", "open"),
        ("</b>", "close"),
        ('<a href="a b">', "open"),
        ("</a>", "close"),
        ("<br>", "block"),
        ('<img src="z"/>', "empty"),
        ("<1>", "open"),
        ("</1>", "close"),
        ('<g:x id="1"/>', "empty"),
        ("<!-- c > -->", "block"),
        ("<pre>p <b></pre>", "block"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "50% der Leute",
        "100%ig sicher",
        "50 % davon",
        "a < b and c > d",
        "a <b and c> d",
        "I <3 you",
        "it costs $5",
        "Er kam. Dann ging er.",
        "z.B. so",
        "{das ist ein Satz}",
        "a@b",
        "<!-- never closed",
        "AT&T",
    ],
)
def test_what_only_looks_like_it(text: str) -> None:
    assert find(text) == []


def test_items_stand_where_they_say() -> None:
    text = "x {a} <b>y</b> https://z.de."
    assert [text[item.start : item.end] for item in find(text)] == [item.text for item in find(text)]


def test_entities() -> None:
    assert unescape("Tom &amp; J&eacute;r&#244;me &lt;3") == ("Tom & Jérôme <3", (("&", "&amp;"), ("<", "&lt;")))
    assert escape("Tom & Jérôme <3", (("&", "&amp;"), ("<", "&lt;"))) == "Tom &amp; Jérôme &lt;3"
    assert unescape("AT&T; a && b") == ("AT&T; a && b", ())


HOSTILE = (
    "<!--",
    "-->",
    "<script>",
    "<a ",
    "a.",
    "{",
    "{{",
    "%",
    "@",
    "a@a.",
    "www.",
    "<",
    "http://",
    "&a",
    "$_",
    "1.",
    "1 ",
    "x1",
    "000 ",
    "a@",
    "<a/",
    "<code>x</CODE>",
    "\u0301",
    "😀",
    "שלום ",
)
LONG = ("<a{}x>", "<a{}", "1{}", "no. {}", "a{}b", "{}7", "{{{}", "&{};")


@pytest.mark.parametrize("part", HOSTILE)
def test_hostile_texts_take_no_time(part: str) -> None:
    began = time.perf_counter()
    text = "-->" + part * 30_000
    find(text), unescape(text), figures(text, numbers(text)), missing(text, text)
    assert time.perf_counter() - began < 20  # a square of it would take minutes


@pytest.mark.parametrize("around", LONG)
@pytest.mark.parametrize("filling", [" ", "a", ".", "\n", "_", "1"])
def test_long_runs_take_no_time(around: str, filling: str) -> None:
    began = time.perf_counter()
    text = around.format(filling * 100_000)
    find(text), unescape(text), figures(text, numbers(text)), missing(text, text)
    assert time.perf_counter() - began < 20


def test_an_end_in_capitals_is_found_where_it_stands() -> None:
    """In small letters İ is two characters."""
    assert [item.text for item in find("İİ <code>x</CODE> y")] == ["<code>x</CODE>"]


# ------------------------------------------------------------------------------------------------------------- numbers


def test_numbers() -> None:
    assert numbers("1990, 3,5 and 1.000.000; 10\u00a0000, 3.5.2024, B2B, 15:30") == [
        "1990", "3,5", "1.000.000", "10\u00a0000", "3.5.2024", "2", "15", "30",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3,5", "3.5"),
        ("1.000.000", "1,000,000"),
        ("1.000.000", "1000000"),
        ("10 000", "10,000"),
        ("1.234,56", "1,234.56"),
        ("3.5.2024", "3.5.2024"),
        ("٣", "3"),
        ("1'000", "1.000"),
    ],
)
def test_the_same_number(one: str, other: str) -> None:
    assert readings(one) & readings(other)
    assert missing(f"a {one} b", f"c {other}") == []


@pytest.mark.parametrize(
    ("one", "other"), [("3,5", "35"), ("3", "4"), ("3.5.2024", "3.52024"), ("1990", "199"), ("2", "two")]
)
def test_another_number(one: str, other: str) -> None:
    assert missing(one, other) == [one]


def test_each_number_counts_as_often_as_it_stands_there() -> None:
    assert missing("7 7 8", "8 7") == ["7"]


def test_figures_are_taken_with_what_they_are_joined_to() -> None:
    assert [item.text for item in figures("At 15:30 H2O, 3.5 and 7.", ["15", "30", "2", "7"])] == ["15:30", "H2O", "7"]
    assert [item.text for item in figures("5 a 5 b 1 000 c 3er.", ["5", "5", "1 000"])] == ["5", "5", "1 000"]
    text = "5 {a5} 5"
    assert [item.start for item in figures(text, ["5", "5", "5"], find(text))] == [0, 7]


def test_what_a_model_cannot_read() -> None:
    """Letters with their words, signs by themselves, neighbours together, nothing that is kept anyway."""
    text = "ab 😀👍 xéz {é} 5€ é"
    unknown = [(at, at + 1) for at, character in enumerate(text) if ord(character) > 127]
    found = strange(text, unknown, find(text))
    assert [(item.text, item.kind) for item in found] == [
        ("😀👍", "empty"),
        ("xéz", "placeholder"),
        ("€", "empty"),
        ("é", "placeholder"),
    ]
    assert all(text[item.start : item.end] == item.text for item in found)
    assert strange(text, []) == []
