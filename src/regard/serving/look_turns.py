"""One thread that works with the model, and a bounded line before it. Who goes away leaves the line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from regard.errors import RecordError, RegardError
from regard.serving.bodies import Gone, Receive, Refused, disconnected
from regard.serving.look_settings import Looking

R = TypeVar("R")
RETRY = {"Retry-After": "1"}


class Turns:
    """Requests, one after the other."""

    def __init__(self, settings: Looking) -> None:
        self.settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="look")
        self._waiting = 0

    async def take(self, work: Callable[[], R], receive: Receive) -> R:
        """The result of some work, when its turn has come; errors that a user can mend become answers.

        Work that has begun is finished, but what nobody waits for any more is not begun. Raises `Gone` then.
        """
        if self._waiting >= self.settings.queue:
            raise Refused(503, "too many requests wait for the model; come again in a second", RETRY)
        self._waiting += 1
        turn = self._thread.submit(work)
        answer = asyncio.wrap_future(turn)
        gone = asyncio.ensure_future(disconnected(receive))
        either: set[asyncio.Future[Any]] = {answer, gone}
        try:
            await asyncio.wait(either, timeout=self.settings.patience, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if gone.done():
                raise Gone
            raise Refused(503, f"no answer within {self.settings.patience:g} s; shorten the input", RETRY)
        except RecordError as error:
            raise Refused(409, str(error)) from None
        except RegardError as error:
            raise Refused(400, str(error)) from None
        finally:
            gone.cancel()
            turn.cancel()
            self._waiting -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
