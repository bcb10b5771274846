"""A model that writes for one direction: texts to tokens, tokens to hypotheses, and the words of wishes to tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from regard.decoding.attention import Look, Weights, cross_weights, look_at
from regard.decoding.decode import BATCH_TOKENS, decode, stream
from regard.decoding.request import Ends, Hypothesis, Wish
from regard.decoding.settings import Greedy, Sampling
from regard.decoding.word_links import written_spans
from regard.errors import InputError
from regard.models.families import EncoderDecoder
from regard.text.protect import Item, find, strange
from regard.text.tokenizer import Span, TokenizerPair
from regard.use.translation import TranslateOptions

ATTEMPTS = 4
"""How often a sentence is written anew, to be rid of special tokens and of words that must not occur."""


@dataclass(frozen=True)
class Frame:
    """How a model was taught to begin and end."""

    ends: Ends
    foreign: bool = False
    """Whether the tokenizer's own frame is put around sources, as Hugging Face does; else an end."""
    prefix: tuple[int, ...] = ()
    """Tokens that every text begins with."""
    never: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that are never written."""
    look: Look | None = None
    """The attention by which words are aligned; none: the usual one."""


class Scribe:
    """Writes as the options say. A value but for what it remembers of words."""

    def __init__(
        self,
        network: EncoderDecoder,
        tokenizers: TokenizerPair,
        frame: Frame,
        tag: str | None,
        options: TranslateOptions,
    ) -> None:
        """`tag` is the language to write, where the model must be told."""
        self.network, self.tokenizers, self.frame, self.tag, self.options = network, tokenizers, frame, tag, options
        target = tokenizers.target
        special = {*target.roles.values(), *target.extra.values()}
        self.special = special - {frame.ends.end} - {*frame.prefix}
        never = (*options.rules.must_not, *frame.never)
        self.rules = options.rules.changed({"must_not": never}) if frame.never else options.rules
        self.wish = Wish(
            must=[self.word(word) for word in options.must],
            must_not=[form for word in options.must_not for form in self._forms(word)],
        )
        self.beginning = Wish(prefix=[*frame.prefix, *self._prefix(options.prefix)])
        self._writable: dict[str, bool] = {}

    # ---------------------------------------------------------------------------------------------------------- reading

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts as the model reads them."""
        if not self.frame.foreign:
            return self.tokenizers.inputs(texts, None if self.tag is None else [self.tag] * len(texts))
        found = [encoding.ids for encoding in self.tokenizers.source.encode_batch(texts)]
        end = self.frame.ends.end
        return [ids if end is None or ids[-1:] == [end] else [*ids, end] for ids in found]

    def read_spans(self, text: str) -> list[Span]:
        """Where each token that `read` gives stands in the text; nowhere: (0, 0)."""
        offsets = self.tokenizers.source.encode(text, framed=self.frame.foreign).offsets
        if self.frame.foreign:
            return [*offsets, *[(0, 0)] * (len(self.read([text])[0]) - len(offsets))]
        return [*[(0, 0)] * (self.tag is not None), *offsets, (0, 0)]

    # ---------------------------------------------------------------------------------------------------------- writing

    def write(self, inputs: Sequence[Sequence[int]], wishes: Sequence[Wish], nbest: int) -> list[list[Hypothesis]]:
        """So many hypotheses of each input, or fewer, none with special tokens or words that must not occur."""
        found = self._decode(inputs, wishes, nbest)
        wishes = list(wishes)
        for _ in range(ATTEMPTS):
            unwanted = {place: words for place, row in enumerate(found) if (words := self._unwanted(row))}
            if not unwanted:
                break
            for place, words in unwanted.items():
                wishes[place] = replace(wishes[place], must_not=[*wishes[place].must_not, *words])
            again = self._decode([inputs[place] for place in unwanted], [wishes[place] for place in unwanted], nbest)
            for place, row in zip(unwanted, again, strict=True):
                found[place] = row
        return found

    def _decode(self, inputs: Sequence[Sequence[int]], wishes: Sequence[Wish], nbest: int) -> list[list[Hypothesis]]:
        must = any(wish.must for wish in wishes)
        search = self.options.search(nbest, must)
        tokens = self.options.batch_tokens or BATCH_TOKENS
        if not isinstance(search, Sampling):
            return decode(self.network, inputs, self.frame.ends, search, self.rules, wishes, tokens)
        # Drawn again it would be another draw, so special tokens are left out from the first.
        each = [(source, self._plain(wish)) for source, wish in zip(inputs, wishes, strict=True) for _ in range(nbest)]
        found = decode(
            self.network, [s for s, _ in each], self.frame.ends, search, self.rules, [w for _, w in each], tokens
        )
        drawn = [row[0] for row in found]
        return [drawn[place * nbest : (place + 1) * nbest] for place in range(len(inputs))]

    def _unwanted(self, found: Sequence[Hypothesis]) -> list[tuple[int, ...]]:
        """What was written, as tokens, and should not have been."""
        words: set[tuple[int, ...]] = set()
        for hypothesis in found:
            if self.special.intersection(hypothesis.tokens):
                words |= {(token,) for token in self.special}
            if self.options.must_not:
                words |= self._forbidden(hypothesis.tokens)
        return sorted(words)

    def _forbidden(self, tokens: Sequence[int]) -> set[tuple[int, ...]]:
        """Tokens that make a word that must not occur, where other pieces than usual were taken for it."""
        text = self.text(tokens)
        places = [
            match.span() for word in self.options.must_not for match in re.finditer(rf"\b{re.escape(word)}\b", text)
        ]
        spans = self.written_spans(tokens) if places else []
        found = set()
        for start, end in places:
            run = [token for token, span in zip(tokens, spans, strict=True) if span[0] < end and span[1] > start]
            found.add(tuple(run))
        return found - {()}

    def stream(self, text: str, wish: Wish) -> Iterator[int]:
        """The tokens of a text, as they are written: at each step the likeliest, or a random one."""
        search = self.options.sampling or Greedy()
        tokens = stream(self.network, self.read([text])[0], self.frame.ends, search, self.rules, self._plain(wish))
        return (token for token, _ in tokens)

    def _plain(self, wish: Wish) -> Wish:
        """A wish without special tokens."""
        return replace(wish, must_not=[*wish.must_not, *((token,) for token in sorted(self.special))])

    # ------------------------------------------------------------------------------------------------------------ looks

    def looks(self, texts: Sequence[str], outputs: Sequence[Sequence[int]]) -> list[Weights]:
        """For each text and its translation, how much each written token looked at each that was read."""
        tokens = self.options.batch_tokens or BATCH_TOKENS
        layer = self.options.layer
        look = self.frame.look if layer is None else look_at(self.network, layer)
        return cross_weights(self.network, self.read(texts), outputs, self.frame.ends, look, tokens)

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizers.target.decode(tokens)

    def written_spans(self, tokens: Sequence[int]) -> list[Span]:
        """Where each token stands in the text."""
        texts = self.tokenizers.target.decode_batch([tokens[: end + 1] for end in range(len(tokens))])
        return written_spans(texts, texts[-1] if texts else "")

    # ------------------------------------------------------------------------------------------------------------ words

    def word(self, word: str) -> list[int]:
        """The tokens of a word inside a sentence, where it must be one that the model can write."""
        tokens = self._inside(word)
        if not tokens or self._unknown in tokens:
            raise InputError(f"must ({word!r}) cannot be written with this model's vocabulary; leave it out")
        return tokens

    def kept(self, text: str) -> list[Item]:
        """What stays as it is, in its order: placeholders and the like, and what the model cannot read."""
        if not self.options.keep:
            return []
        items = find(text)
        unknown = self.tokenizers.source.roles.get("unknown")
        if unknown is None or not self._spells:
            return items
        encoding = self.tokenizers.source.encode(text, framed=False)
        spans = [span for span, token in zip(encoding.offsets, encoding.ids, strict=True) if token == unknown]
        return sorted([*items, *strange(text, spans, items)], key=lambda item: item.start)

    @cached_property
    def _spells(self) -> bool:
        """Whether words that are not in the vocabulary are read letter by letter, and not as one unknown word."""
        unknown = self.tokenizers.source.roles.get("unknown")
        return all(unknown not in ids for ids in self.tokenizers.source.ids(list("aeinrst")))

    def writable(self, word: str) -> bool:
        """Whether both sides know every part of a word, and it comes back as it was."""
        if word not in self._writable:
            source = self.tokenizers.source
            ids = self._inside(word)
            known = bool(ids) and self._unknown not in ids and source.roles.get("unknown") not in source.ids([word])[0]
            self._writable[word] = known and self.text(ids).strip() == word
        return self._writable[word]

    @property
    def _unknown(self) -> int | None:
        return self.tokenizers.target.roles.get("unknown")

    def _inside(self, word: str) -> list[int]:
        """The tokens of a word behind another one, where a space before it may belong to it."""
        before, both, alone = self.tokenizers.target.ids(["a", f"a {word}", word])
        return both[len(before) :] if both[: len(before)] == before else alone

    def _forms(self, word: str) -> list[list[int]]:
        """The tokens of a word inside a sentence and at its beginning."""
        alone = self.tokenizers.target.ids([word])[0]
        forms = [alone, inside] if (inside := self._inside(word)) != alone else [alone]
        return [form for form in forms if form and self._unknown not in form]

    def _prefix(self, prefix: str) -> list[int]:
        tokens = self.tokenizers.target.ids([prefix])[0] if prefix else []
        if self._unknown is not None and self._unknown in tokens:
            raise InputError(f"prefix ({prefix!r}) cannot be written with this model's vocabulary; leave it out")
        return tokens
