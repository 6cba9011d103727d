"""Threads: work on parts in, results out. Python's threads over compiled code that releases the GIL.

A second OpenMP beside torch's would make both slow.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

from hashlens.errors import UsageError

Part = TypeVar("Part")
Result = TypeVar("Result")


def n_threads() -> int:
    """HASHLENS_THREADS if set, else the number of cores this process may use."""
    wanted = os.environ.get("HASHLENS_THREADS")
    if wanted is None:
        # a container often allows fewer cores than the machine has
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not wanted.isdecimal() or int(wanted) < 1:
        raise UsageError(f"HASHLENS_THREADS is {wanted!r}; set it to a whole number, 1 or more, or unset it")
    return int(wanted)


def in_threads(work: Callable[[Part], Any], parts: Iterable[Part]) -> None:
    """work(part) for all parts. Not to be called from within `work`: its threads would wait for each other."""
    parts = list(parts)
    if len(parts) == 1:  # to wake a thread and wait for it would only take time
        work(parts[0])
    else:
        list(_pool(n_threads()).map(work, parts))  # list, so that an exception in a thread is raised here


def shares(n: int) -> list[slice]:
    """n rows cut into one part for each thread."""
    threads = n_threads()
    return [slice(a, b) for a, b in pairwise(n * i // threads for i in range(threads + 1))]


def blocks(n: int, size: int) -> list[slice]:
    """n rows cut into parts of `size`, the last one shorter."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def work_ahead(work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
    """work(part) of each part, in order; the next ones are worked on while the caller uses the last."""
    threads = max(2, n_threads())
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, "ahead") as pool:
        for part in parts:
            pending.append(pool.submit(work, part))
            if len(pending) > threads:  # no more: results that wait take memory
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@lru_cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "hashlens")
