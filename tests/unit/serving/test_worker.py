"""The thread that owns the model, without HTTP around it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from queue import Queue

import pytest
from serving_cases import BAD, WRONG, Parrot, said

from regard.errors import InputError
from regard.serving.settings import Serving
from regard.serving.translating import Route
from regard.serving.worker import Busy, Failed, Stopping, Stream, Worker

ROUTE = Route("de", "en")
SECONDS = 10


@pytest.fixture
def parrot() -> Parrot:
    return Parrot()


@pytest.fixture
def reported() -> list[Exception]:
    return []


@pytest.fixture
def worker(parrot: Parrot, reported: list[Exception]) -> Iterator[Worker]:
    made = Worker(parrot, Serving(queue=4, texts=4, batch_tokens=100, wait_ms=0), report=reported.append)
    made.start()
    yield made
    parrot.go.set()
    made.close(SECONDS)


def held(worker: Worker, parrot: Parrot) -> None:
    """A first text is under way and stays so: what comes now waits."""
    parrot.hold()
    worker.submit(["first"], ROUTE)
    assert parrot.begun.wait(SECONDS)


def best(worker: Worker, *texts: str) -> list[str]:
    return [each.versions[0] for each in worker.submit(texts, ROUTE).answer.result(SECONDS)]


def test_what_waits_is_translated_together_and_each_gets_its_own(worker: Worker, parrot: Parrot) -> None:
    held(worker, parrot)
    tickets = [worker.submit([text], ROUTE) for text in ("eins", "zwei", "drei")]
    parrot.go.set()
    answers = [ticket.answer.result(SECONDS)[0].versions[0] for ticket in tickets]
    assert answers == ["de>en:eins", "de>en:zwei", "de>en:drei"]
    assert parrot.batches == [["first"], ["eins", "zwei", "drei"]]


def test_a_full_line_refuses_and_says_when_to_come_again(worker: Worker, parrot: Parrot) -> None:
    held(worker, parrot)
    worker.submit(["a", "b", "c"], ROUTE)
    with pytest.raises(Busy) as caught:
        worker.submit(["d", "e"], ROUTE)
    assert 1 <= caught.value.seconds <= 60
    worker.submit(["d"], ROUTE)
    with pytest.raises(Busy):
        worker.stream(Stream("e", ROUTE, lambda piece: None))


def test_who_leaves_frees_the_place_and_is_not_translated(worker: Worker, parrot: Parrot) -> None:
    held(worker, parrot)
    leaving = worker.submit(["a", "b", "c", "d"], ROUTE)
    worker.leave(leaving)
    staying = worker.submit(["e", "f", "g", "h"], ROUTE)
    parrot.go.set()
    assert len(staying.answer.result(SECONDS)) == 4
    assert leaving.answer.cancelled()
    assert parrot.batches == [["first"], ["e", "f", "g", "h"]]


def test_one_bad_text_harms_no_other(worker: Worker, parrot: Parrot, reported: list[Exception]) -> None:
    held(worker, parrot)
    good, bad, wrong = (worker.submit([text], ROUTE) for text in ("good", BAD, WRONG))
    parrot.go.set()
    assert good.answer.result(SECONDS)[0].versions == ("de>en:good",)
    with pytest.raises(Failed, match="cannot translate") as failed:
        bad.answer.result(SECONDS)
    assert "secret" not in str(failed.value)
    with pytest.raises(InputError, match="mend it"):
        wrong.answer.result(SECONDS)
    assert [type(error) for error in reported] == [RuntimeError]  # what a sender can mend is no news
    assert best(worker, "again") == ["de>en:again"]


def test_a_request_fails_as_a_whole_and_leaves_nothing_behind(worker: Worker, parrot: Parrot) -> None:
    with pytest.raises(Failed):
        best(worker, "good", BAD, "good")
    assert worker.waiting == 0


def test_what_has_begun_is_finished_and_nothing_more_is_taken(worker: Worker, parrot: Parrot) -> None:
    held(worker, parrot)
    waiting = worker.submit(["waiting"], ROUTE)
    parrot.go.set()
    worker.close(SECONDS)
    assert waiting.answer.result(0)[0].versions == ("de>en:waiting",)
    assert not worker.alive
    with pytest.raises(Stopping):
        worker.submit(["late"], ROUTE)


def test_what_does_not_end_in_time_is_given_up(worker: Worker, parrot: Parrot) -> None:
    held(worker, parrot)
    waiting = worker.submit(["waiting"], ROUTE)
    worker.close(0.01)
    with pytest.raises(Stopping):
        waiting.answer.result(SECONDS)


def test_streams_and_batches_do_not_hold_each_other_up(worker: Worker, parrot: Parrot) -> None:
    held(worker, parrot)
    pieces: Queue[str | Exception | None] = Queue()
    worker.stream(Stream("a b c", ROUTE, pieces.put))
    text = worker.submit(["text"], ROUTE)
    parrot.go.set()
    assert text.answer.result(SECONDS)
    told = [pieces.get(timeout=SECONDS) for _ in range(4)]
    assert told == ["de>en:a ", "b ", "c ", None]
    assert worker.waiting == 0


def test_a_stream_that_fails_says_so_and_one_that_is_left_stops(worker: Worker, parrot: Parrot) -> None:
    pieces: Queue[str | Exception | None] = Queue()
    worker.stream(Stream(f"a {BAD} c", ROUTE, pieces.put))
    assert pieces.get(timeout=SECONDS) == "de>en:a "
    assert isinstance(pieces.get(timeout=SECONDS), Failed)

    parrot.hold()
    leaving = Stream("a " * 1000, ROUTE, pieces.put)
    worker.stream(leaving)
    assert parrot.begun.wait(SECONDS)
    worker.leave(leaving)
    parrot.go.set()
    while worker.waiting:
        time.sleep(0.001)
    assert pieces.qsize() <= 1


def test_company_is_waited_for_only_where_there_was_some() -> None:
    parrot = Parrot()
    worker = Worker(parrot, Serving(wait_ms=200, batch_tokens=100))
    worker.start()
    begun = time.monotonic()
    assert best(worker, "alone") == [said("alone", ROUTE)]
    assert best(worker, "alone") == [said("alone", ROUTE)]
    assert time.monotonic() - begun < 0.2
    held(worker, parrot)
    tickets = [worker.submit([text], ROUTE) for text in ("a", "b")]
    parrot.go.set()
    for ticket in tickets:
        ticket.answer.result(SECONDS)
    one = worker.submit(["c"], ROUTE)
    time.sleep(0.02)
    other = worker.submit(["d"], ROUTE)
    one.answer.result(SECONDS)
    other.answer.result(SECONDS)
    assert parrot.batches[-1] == ["c", "d"]
    worker.close(SECONDS)
