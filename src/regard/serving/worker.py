"""The one thread that owns the model: it takes what waits, translates it together, and answers each. No torch in here.

Between two batches it goes on with the streams, for as long as the batch took, so that neither holds up the other.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Condition, Thread

from regard.errors import InputError
from regard.serving.line import Line, Ticket, Turn
from regard.serving.metrics import Metrics
from regard.serving.settings import Serving
from regard.serving.translating import Route, Translated, Translating

LONGEST_RETRY = 60
"""Seconds that a client is asked to stay away at the most."""
STREAM_SECONDS = (0.02, 0.5)
"""The least and the most that streams are given between two batches."""
SMOOTHING = 0.2
"""Weight of the newest batch in the time that a token takes."""


class Busy(Exception):  # noqa: N818
    """The line is full; `seconds` say when it may have moved on."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"busy; try again in {seconds} s")
        self.seconds = seconds


class Stopping(Exception):  # noqa: N818
    """The server ends and takes nothing more."""


class Failed(Exception):  # noqa: N818
    """A text could not be translated, and not for a reason that its sender can mend."""


@dataclass(eq=False)
class Stream:
    """A text that is told piece by piece: `tell` gets each piece, and at last None or what went wrong.

    `tell` is called from the thread that owns the model, and must not raise.
    """

    text: str
    route: Route
    tell: Callable[[str | Exception | None], None]
    pieces: Iterator[str] | None = None
    left: bool = False
    """Whether its client has gone."""


class Worker:
    """Translates for many at once. All methods but `_run` and what it calls may be called from any thread."""

    def __init__(
        self,
        translating: Translating,
        settings: Serving,
        metrics: Metrics | None = None,
        report: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._translating = translating
        self._settings = settings
        self._metrics = metrics or Metrics()
        self._report = report
        self._changed = Condition()
        self._line = Line()
        self._streams: deque[Stream] = deque()
        self._ending = False
        self._company = 0
        """Requests that the last batch answered: so many may come again at once."""
        self._token_seconds = 0.0
        self._thread = Thread(target=self._run, name="translating", daemon=True)
        self._metrics.waiting = lambda: self._line.texts
        self._metrics.streams = lambda: len(self._streams)

    # ------------------------------------------------------------------------------------------------- from outside

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._ending

    @property
    def waiting(self) -> int:
        """Texts in line, and open streams."""
        return self._line.texts + len(self._streams)

    def close(self, seconds: float) -> None:
        """Takes nothing more and waits for what is under way; what still waits after `seconds` is given up."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join(seconds)
        with self._changed:
            for ticket in list(self._line):
                self._line.leave(ticket)
                _settle(ticket, Stopping())
            for stream in self._streams:
                stream.left = True

    def submit(self, texts: Sequence[str], route: Route) -> Ticket:
        """Joins the line; the ticket's `answer` is a future. Raises `Busy` where there is no room, `Stopping` late."""
        ticket = Ticket(route, texts, self._translating.sizes(texts, route))
        with self._changed:
            self._admit(len(texts))
            self._line.join(ticket)
            self._changed.notify_all()
        return ticket

    def stream(self, stream: Stream) -> None:
        """Writes a stream as soon as it is its turn. Raises `Busy` and `Stopping` as `submit` does."""
        with self._changed:
            self._admit(1)
            self._streams.append(stream)
            self._changed.notify_all()

    def leave(self, one: Ticket | Stream) -> None:
        """A client has gone: its place is free at once, and what is under way for it is told to nobody."""
        with self._changed:
            if isinstance(one, Stream):
                one.left = True
            else:
                self._line.leave(one)
                one.answer.cancel()
            self._changed.notify_all()

    def _admit(self, texts: int) -> None:
        if self._ending:
            raise Stopping
        if self.waiting + texts > self._settings.queue:
            seconds = math.ceil(self._line.tokens * self._token_seconds)
            raise Busy(min(max(seconds, 1), LONGEST_RETRY))

    # --------------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._line or self._streams or self._ending):
                    self._changed.wait()
                if not self._line and not self._streams:
                    return
                self._gather()
                turns = self._line.take(self._settings.batch_tokens)
            spent = self._batch(turns) if turns else 0.0
            self._write_streams(spent)

    def _gather(self) -> None:
        """Waits a little for company, until as many are here as were answered last time."""
        until = time.monotonic() + self._settings.wait_ms / 1000
        while (
            1 < self._company > len(self._line) > 0
            and self._line.tokens < self._settings.batch_tokens
            and not (self._streams or self._ending)
            and (left := until - time.monotonic()) > 0
        ):
            self._changed.wait(left)

    def _batch(self, turns: list[Turn]) -> float:
        """Translates texts together; where that fails, each alone, so that one bad text harms no other."""
        begun = time.monotonic()
        try:
            self._answer(turns, self._translate(turns))
        except Exception:
            for turn in turns:
                try:
                    self._answer([turn], self._translate([turn]))
                except Exception as error:
                    self._fail(turn, error)
        spent = time.monotonic() - begun
        self._company = len({id(turn.ticket) for turn in turns})
        tokens = sum(turn.size for turn in turns)
        rate = spent / max(tokens, 1)
        self._token_seconds += (rate - self._token_seconds) * (SMOOTHING if self._token_seconds else 1)
        return spent

    def _translate(self, turns: list[Turn]) -> Sequence[Translated]:
        begun = time.monotonic()
        found = self._translating.translate([turn.text for turn in turns], turns[0].ticket.route)
        if len(found) != len(turns):
            raise Failed(f"{len(turns)} texts came back as {len(found)}")
        written = sum(each.tokens for each in found)
        self._metrics.batch(len(turns), sum(turn.size for turn in turns), written, time.monotonic() - begun)
        return found

    def _answer(self, turns: list[Turn], found: Sequence[Translated]) -> None:
        for turn, translated in zip(turns, found, strict=True):
            turn.ticket.done[turn.place] = translated
            complete = [each for each in turn.ticket.done if each is not None]
            if len(complete) == len(turn.ticket.texts):
                _settle(turn.ticket, complete)

    def _fail(self, turn: Turn, error: Exception) -> None:
        """A request is one thing to its sender: with one of its texts it fails as a whole."""
        self._metrics.failed()
        with self._changed:
            self._line.leave(turn.ticket)
        _settle(turn.ticket, self._told(error))

    def _told(self, error: Exception) -> Exception:
        """What a sender may know of an error: one in the text; of any other only that it happened."""
        if isinstance(error, InputError):
            return error
        self._report(error)
        return Failed("cannot translate this text")

    def _write_streams(self, spent: float) -> None:
        """Lets the first streams take turns, a piece each, for as long as the batch before took."""
        if not self._streams:
            return
        least, most = STREAM_SECONDS
        until = time.monotonic() + min(max(spent, least), most)
        while self._streams and time.monotonic() < until:
            with self._changed:
                active = list(self._streams)[: self._settings.streams]
            for stream in active:
                if not self._advance(stream):
                    with self._changed:
                        self._streams.remove(stream)

    def _advance(self, stream: Stream) -> bool:
        """The next piece of a stream; False at its end."""
        if stream.left:
            stream.pieces = None
            return False
        try:
            if stream.pieces is None:
                stream.pieces = iter(self._translating.stream(stream.text, stream.route))
            piece = next(stream.pieces, None)
        except Exception as error:
            self._metrics.failed()
            stream.tell(self._told(error))
            return False
        stream.tell(piece)
        return piece is not None


def _settle(ticket: Ticket, outcome: list[Translated] | Exception) -> None:
    """Answers, unless the client has gone or was answered before."""
    if ticket.answer.done() or not ticket.answer.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Exception):
        ticket.answer.set_exception(outcome)
    else:
        ticket.answer.set_result(outcome)
