"""Workers: work in, its result out, by a lane of a few threads with a queue of limited length.

Searches by id or code, uploads and writes have separate lanes, so that a full one does not stop the others.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

from hashlens.machine import n_threads
from hashlens.server.limits import busy

Result = TypeVar("Result")


class Workers:
    """As many threads as cores; at most `waiting` tasks wait for one."""

    def __init__(self, waiting: int, threads: int | None = None):
        self.threads = threads or n_threads()
        self.room = self.threads + waiting
        self.busy = 0  # tasks running or waiting
        self.n_reading = 0  # changed by the event loop only
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(self.threads, "serve")

    def require_room(self, n_reading: int = 0) -> None:
        if max(self.busy, n_reading) >= self.room:
            raise busy()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Context for reading a request; the number of readers is limited, because their data is kept in memory."""
        self.require_room(self.n_reading)
        self.n_reading += 1
        try:
            yield
        finally:
            self.n_reading -= 1

    async def run(self, work: Callable[..., Result], *given: Any) -> Result:
        """work(*given) in a thread; abandoned work counts until it ends."""
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
