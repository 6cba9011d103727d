"""Work in, its result out: a few threads for decoding and searching, and a queue that is refused when it is full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

from hashlens.server.problems import Problem
from hashlens.threads import n_threads

Result = TypeVar("Result")

BUSY = "the server is busy; try again in a second"


class Workers:
    """As many threads as cores; `waiting` pieces of work may wait for one."""

    def __init__(self, waiting: int, threads: int | None = None):
        self.threads = threads or n_threads()
        self.room = self.threads + waiting
        self.busy = 0  # being worked on, or waiting
        self.n_reading = 0  # only the event loop counts these
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(self.threads, "serve")

    def require_room(self) -> None:
        if self.busy >= self.room:
            raise Problem(503, BUSY, {"Retry-After": "1"})

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Within, a request is read; there are never more of them than may wait, since what they send is kept."""
        self.require_room()
        if self.n_reading >= self.room:
            raise Problem(503, BUSY, {"Retry-After": "1"})
        self.n_reading += 1
        try:
            yield
        finally:
            self.n_reading -= 1

    async def run(self, work: Callable[..., Result], *given: Any) -> Result:
        """work(*given) in a thread; work that nobody waits for any more still counts until it has ended."""
        with self._lock:
            self.require_room()
            self.busy += 1
        future = self._pool.submit(work, *given)
        future.add_done_callback(self._done)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _done(self, future: Any) -> None:
        with self._lock:
            self.busy -= 1
