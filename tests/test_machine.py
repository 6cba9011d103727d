"""Threads: how many, and that nothing is lost in them."""

import threading

import pytest

from hashlens.errors import UsageError
from hashlens.machine import blocks, in_threads, n_threads, shares, work_ahead


def test_n_threads(monkeypatch):
    monkeypatch.delenv("HASHLENS_THREADS", raising=False)
    assert n_threads() >= 1
    monkeypatch.setenv("HASHLENS_THREADS", "5")
    assert n_threads() == 5
    for wrong in ("0", "-1", "many", ""):
        monkeypatch.setenv("HASHLENS_THREADS", wrong)
        with pytest.raises(UsageError, match="HASHLENS_THREADS"):
            n_threads()


@pytest.mark.parametrize("run", [in_threads, lambda work, parts: list(work_ahead(work, parts))])
def test_an_error_in_a_thread_is_raised(monkeypatch, run):
    monkeypatch.setenv("HASHLENS_THREADS", "2")

    def work(part):
        if part:
            raise ValueError("from a thread")

    with pytest.raises(ValueError, match="from a thread"):
        run(work, range(2))


@pytest.mark.parametrize("n", [0, 1, 2, 6, 7, 8, 35])
def test_parts_cover_all_rows_once(monkeypatch, n):
    monkeypatch.setenv("HASHLENS_THREADS", "3")
    for parts in (blocks(n, 7), shares(n)):
        assert [i for part in parts for i in range(part.start, part.stop)] == list(range(n))
    assert len(shares(n)) == 3 and all(part.stop - part.start <= 7 for part in blocks(n, 7))


def test_work_ahead_keeps_the_order_and_holds_few_results(monkeypatch):
    monkeypatch.setenv("HASHLENS_THREADS", "2")
    started = []
    first_may_end = threading.Event()

    def work(part):
        started.append(part)
        if part == 0:
            first_may_end.wait(5)
        else:
            first_may_end.set()  # the second part is worked on before the first one ends
        return part

    for i, result in enumerate(work_ahead(work, range(20))):
        assert result == i and len(started) <= i + 3
    assert first_may_end.is_set() and sorted(started) == list(range(20))
