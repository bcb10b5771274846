"""Who waits, and whose turn it is: requests take turns, text by text. No torch in here.

A request of many texts gives way to others after each of them and so delays nobody; whoever is not served keeps the
place, and the first in line is always served, so nobody starves either. None of this knows of threads: its owner locks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from regard.serving.translating import Route, Translated


@dataclass(eq=False)
class Ticket:
    """A request that waits for its texts to be translated."""

    route: Route
    texts: Sequence[str]
    sizes: Sequence[int]
    answer: Future[list[Translated]] = field(default_factory=Future)
    done: list[Translated | None] = field(init=False)
    next: int = 0
    """The first text that still waits."""

    def __post_init__(self) -> None:
        self.done = [None] * len(self.texts)

    @property
    def waiting(self) -> int:
        """Texts that nobody has taken yet."""
        return len(self.texts) - self.next


@dataclass(frozen=True)
class Turn:
    """One text of a request, taken to be translated."""

    ticket: Ticket
    place: int

    @property
    def text(self) -> str:
        return self.ticket.texts[self.place]

    @property
    def size(self) -> int:
        return self.ticket.sizes[self.place]


class Line:
    """Tickets in the order of their turns."""

    def __init__(self) -> None:
        self._tickets: deque[Ticket] = deque()
        self.texts = 0
        """How many wait."""
        self.tokens = 0
        """Of those texts."""

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def join(self, ticket: Ticket) -> None:
        self._tickets.append(ticket)
        self.texts += len(ticket.texts)
        self.tokens += sum(ticket.sizes)

    def leave(self, ticket: Ticket) -> None:
        """Gives up what of a ticket still waits; nothing happens where nothing does."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)
            self.texts -= ticket.waiting
            self.tokens -= sum(ticket.sizes[ticket.next :])
            ticket.next = len(ticket.texts)

    def take(self, tokens: int) -> list[Turn]:
        """The next texts that can be translated together: those of the first one's route, within so many tokens.

        The first in line is taken whatever its size.
        """
        if not self._tickets:
            return []
        route = self._tickets[0].route
        turns: list[Turn] = []
        used = 0
        round_ = deque(ticket for ticket in self._tickets if ticket.route == route)
        while round_:
            ticket = round_.popleft()
            size = ticket.sizes[ticket.next]
            if turns and used + size > tokens:
                continue
            turns.append(Turn(ticket, ticket.next))
            used += size
            ticket.next += 1
            if ticket.waiting:
                round_.append(ticket)
        self.texts -= len(turns)
        self.tokens -= used
        served = {turn.ticket for turn in turns}
        unserved = [ticket for ticket in self._tickets if ticket not in served]
        unfinished = [ticket for ticket in self._tickets if ticket in served and ticket.waiting]
        self._tickets = deque(unserved + unfinished)
        return turns
