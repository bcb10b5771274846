"""Sentences, protected items, stand-ins and numbers."""

from __future__ import annotations

import time

import pytest

from regard.use.documents import (
    Item,
    cut_spans,
    find_items,
    line_spans,
    missing_numbers,
    pieces_of,
    protect,
    sentence_spans,
    unknown_items,
    without_overlap,
)

SPLIT = [
    "Er kam.|Sie ging.",
    "Kommt er?|Ja!|Gut.",
    "Er sagte: „Komm!“|Dann ging er.",
    '"It works."|He smiled.',
    "Das war 2010.|Dann kam er.",
    "Wait...|What?",
    "Er ging…|Und sie blieb.",
    "(Er ging.)|Sie blieb.",
    "Das ist so.|Er mag mich.|Komm mit mir.|Nein.",
    "He said no.|Then he left.",
    "Siehe www.example.com.|Dort steht es.",
    "¿Qué?|¡Nada!",
    "Komm!|– Nein.",
    "これは犬です。|猫も「好き」です！|本当？",
    "यह कुत्ता है।|वह बिल्ली है।",
    "هل هذا كلب؟|نعم.",
    "Eins.|2 sind mehr.",
]
WHOLE = [
    "Das ist z. B. ein Hund.",
    "Das ist z.B. Unsinn.",
    "Er kommt, d. h. Peter kommt.",
    "Dr. Meier und Prof. Schmidt kamen.",
    "Mr. Smith met Mrs. Jones.",
    "Some animals, e.g. Dogs, bark.",
    "J. R. R. Tolkien wrote it.",
    "Am 3. Mai kam er.",
    "Im 19. Jahrhundert war das so.",
    "Wilhelm II. Kaiser von Preußen.",
    "1. Erstens",
    "Siehe Nr. 5 und S. 12.",
    "See no. 5 and fig. 2.",
    "Es kostet 3.50 Euro.",
    "Auf https://example.com/a.B?c=1 steht es.",
    "Das ist ... Unsinn.",
    "Er kam! und ging.",
    "„Komm!“, sagte er.",
    '"Stop!" he said.',
    "The U.S. Army came.",
    "Version 2.0 ist da",
]


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text)]


def test_sentences() -> None:
    for text in SPLIT:
        wanted = text.split("|")
        assert sentences(("" if "。" in text else " ").join(wanted)) == wanted
    for text in WHOLE:
        assert sentences(text) == [text]
    assert sentences("\t Null. \u00a0 Eins.\n\n  Zwei. Drei\u2028vier\r\n") == [
        "Null.",
        "Eins.",
        "Zwei.",
        "Drei",
        "vier",
    ]
    assert sentences("a\nb\x85c\u2028d\re") == ["a", "b", "c", "d", "e"]
    for text in ("", " ", "\n\n"):
        assert sentence_spans(text) == line_spans(text) == []
    assert line_spans(" a. B\n\nc ") == [(1, 5), (7, 8)]


def test_long_sentences_are_cut_near_the_middle() -> None:
    def parts(text: str, most: int) -> list[str]:
        spans = cut_spans(text, (0, len(text)), lambda span: span[1] - span[0] <= most)
        return [text[start:end] for start, end in spans]

    assert parts("one two three", 20) == ["one two three"]
    assert parts("one two, three four; five six", 20) == ["one two, three four;", "five six"]
    assert parts("one two, three four five six", 20) == ["one two,", "three four five six"]
    assert parts("one two three four five six", 15) == ["one two three", "four five six"]
    assert parts("abcdefgh", 4) == ["abcd", "efgh"]


def test_pieces_of_marked_up_text() -> None:
    def pieces(text: str, split: bool = True) -> list[str]:
        return [text[start:end] for start, end in pieces_of(text, find_items(text), split)]

    assert pieces("<p>Eins. Zwei.</p><p>Drei</p>") == ["Eins.", "Zwei.", "Drei"]
    assert pieces("<b>Eins.</b> <i>Zwei <b>drei.</b></i>") == ["Eins.", "Zwei <b>drei."]
    assert pieces("Siehe <a href='x. Y'>hier. Dort</a> auch.") == ["Siehe <a href='x. Y'>hier.", "Dort</a> auch."]
    assert pieces("Auf {a. B} steht {{x. Y}} es. <!-- A. B --> Ja.") == ["Auf {a. B} steht {{x. Y}} es.", "Ja."]
    assert pieces("Eins. Zwei.\nDrei.", split=False) == ["Eins. Zwei.", "Drei."]
    assert pieces("<br/> <b></b> ") == []


def test_placeholders() -> None:
    names = "{name} {0} {0:.2f} {} {{x}} {{user.name}} ${var} $name %s %1$s %(name)s %{count} #{x} __VAR__ %@ %1"
    for item in [*names.split(), "{{ user name }}", "%d", "%i", "%5.2f", "%03d", "%u", "%ld"]:
        for text in (f"Hello {item}, and so on", f"({item})"):
            assert [(found.text, found.kind) for found in find_items(text)] == [(item, "other")], text


def test_addresses() -> None:
    cases = {
        "See https://a.org/b?c=d&e#f.": "https://a.org/b?c=d&e#f",
        "(see http://a.org/b_(c)).": "http://a.org/b_(c)",
        "www.a.de, or": "www.a.de",
        "mail a.b+c@d-e.co.uk!": "a.b+c@d-e.co.uk",
        "<a.b@c.org>": "<a.b@c.org>",
        "example.com/path is": "example.com/path",
        "„https://ä.de/ü“": "https://ä.de/ü",
    }
    for text, address in cases.items():
        assert [item.text for item in find_items(text)] == [address]


def test_tags() -> None:
    text = '<b>x</b> <a href="a b">y</a><br><img src="z"/> <1>t</1> <g:x id="1"/> <!-- c > --> <pre>p <b></pre>'
    assert [(item.text, item.kind) for item in find_items(text)] == [
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
    # İ has two characters in lower case.
    assert [item.text for item in find_items("İİ <code>x</CODE> y")] == ["<code>x</CODE>"]
    for text, wanted in {
        "<script> a": "<script>",
        "a <pre> b": "<pre>",
        "<!-- never closed": "<!--",
        "a <b and {c}> d": "<b|{c}|>",
        "<script=x y>": "<script=x|>",
        """<a title="1 > 0" b='<i>'>""": """<a title="1 > 0" b='<i>'>""",
        "<a b=don't>": "<a b=don't>",
        "x &lt;b c=&quot;d&quot;&gt; &#60;/b&#x3e;": "&lt;b c=&quot;d&quot;&gt;|&#60;/b&#x3e;",
        "a &lt;b and c&gt; d": "&lt;|&gt;",
        "&#600; &LT &#123; &eacute; &amp; &amp;lt; &#10;": "&LT|&#123;|&amp;lt;|&#10;",
    }.items():
        assert [item.text for item in find_items(text)] == wanted.split("|"), text


def test_ordinary_text_has_no_items() -> None:
    texts = ["50% der Leute", "100%ig sicher", "50 % davon", "a < b and c > d", "I <3 you", "AT&T"]
    texts += ["it costs $5", "Er kam. Dann ging er.", "z.B. so", "{das ist ein Satz}", "a@b"]
    for text in texts:
        assert find_items(text) == [], text


SIGNS = "<!-- --> <script> a. { {{ % @ a@a. www. < http:// &a $_ 1. x1 a@ <a/ <code>x</CODE> \u0301 😀 שלום ."
HOSTILE = [*SIGNS.split(), "<a\xa0", "1 ", "000 ", ". ", '."', "。", "A. B", "no. ", "\n", "a\u0301"]


@pytest.mark.parametrize("part", HOSTILE)
def test_hostile_texts_take_little_time(part: str) -> None:
    began = time.perf_counter()
    text = "-->" + part * 15_000
    pieces_of(text, find_items(text), split=True)
    cut_spans(text, (0, len(text)), lambda span: span[1] - span[0] < 1_000)
    for filling in " a.\n_1":
        find_items(part + filling * 50_000)
    assert time.perf_counter() - began < 10  # quadratic time would take minutes


def test_stand_ins() -> None:
    sentence = "X1 {a} {b} 5"
    items = [*find_items(sentence), Item(11, 12, "5", "number")]
    first, second = (protect(sentence, items, level, lambda word: True) for level in (0, 1))
    assert first is not None
    assert second is not None
    assert (first.text, second.text) == ("X1 Y1 Z1 3", "X1 212 323 3")
    assert protect(sentence, items, 0, lambda word: word.isdigit()) is None
    assert protect("{a} " * 9, find_items("{a} " * 9), 0, lambda word: True) is None


def test_lost_repeated_and_moved_stand_ins() -> None:
    single = protect("{a}", find_items("{a}"), 0, lambda word: True)
    assert single is not None
    for written in ["a", "X1 X1", "X12", "aX1", "X1s"]:
        assert single.restore(written) is None
    number = protect("{a}", find_items("{a}"), 1, lambda word: True)
    assert number is not None
    assert number.restore("b 212.") == "b {a}."
    for written in ["a 1,212", "a 212.5"]:
        assert number.restore(written) is None
    both = protect("<b>a</b> {x}", find_items("<b>a</b> {x}"), 0, lambda word: True)
    assert both is not None
    assert both.text == "X1 a Y1 Z1"
    assert both.restore("Z1 X1 a Y1") == "{x} <b>a</b>"
    assert both.restore("Y1 a X1 Z1") is None  # tags must keep their order


def test_unknown_signs_are_left_out_and_put_back_after_the_same_share_of_words() -> None:
    for source, read, written, whole in (
        ("Hallo 😀 Welt!", "Hallo Welt!", "Hello world!", "Hello 😀 world!"),
        ("😀 Danke 😀.", "Danke.", "Thank you.", "😀 Thank you 😀."),
        ("Das {n} 😀 ist 🎉", "Das X1 ist", "This X1 is", "This {n} 😀 is 🎉"),
    ):
        unknown = [(at, at + 1) for at, character in enumerate(source) if character in "😀🎉"]
        items = without_overlap(find_items(source), unknown_items(source, unknown))
        protected = protect(source, items, 0, lambda word: True)
        assert protected is not None
        assert (protected.text, protected.restore(written)) == (read, whole)


def test_entities() -> None:
    text = "Tom &amp; J&eacute;r&#244;me&#39s &lt;3 &#34;Hi&#34;"
    protected = protect(text, find_items(text), 0, lambda word: True)
    assert protected is not None
    assert protected.text == """Tom & Jérôme's X1 3 "Hi\""""
    assert protected.restore("""Jérôme's & Tom X1 3 > "x\"""") == "Jérôme&#39;s &amp; Tom &lt;3 > &#34;x&#34;"
    plain = protect("AT&T; a && b", [], 0, lambda word: True)
    assert plain is not None
    assert plain.plain


def test_numbers() -> None:
    same = [("3,5", "3.5"), ("1.000.000", "1,000,000"), ("1.000.000", "1000000"), ("10 000", "10,000")]
    same += [("1.234,56", "1,234.56"), ("3.5.2024", "3.5.2024"), ("٣", "3"), ("1'000", "1.000")]
    for one, other in same:
        assert missing_numbers(f"a {one} b", f"c {other}") == []
    for one, other in [("3,5", "35"), ("3", "4"), ("3.5.2024", "3.52024"), ("1990", "199"), ("2", "two")]:
        assert missing_numbers(one, other) == [one]
    assert missing_numbers("7 7 8", "8 7") == ["7"]
    assert missing_numbers("1990, 3,5 and 1.000.000; 10\u00a0000, 3.5.2024, B2B, 15:30", "") == [
        "1990", "3,5", "1.000.000", "10\u00a0000", "3.5.2024", "2", "15", "30",
    ]  # fmt: skip
