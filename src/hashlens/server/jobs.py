"""Jobs: background work on the whole index, started once; its progress and result can be read any number of times.

Duplicates and groups are the same as in `hashlens duplicates` and `hashlens groups`; images are named by id.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Any

from hashlens.errors import HashlensError, Stopped, UsageError
from hashlens.index.catalog import Catalog
from hashlens.progress import Progress, counted
from hashlens.search import Searcher

MAX_IMAGES = 200_000  # in the index; beyond, use the command line
MAX_GROUPS = 1_000  # in an answer
MAX_MEMBERS = 200  # of a group in an answer

Find = Callable[[str, Progress, Callable[[], bool]], Sequence[dict[str, Any]]]


class Job:
    """One kind of work on one index, done by at most one thread."""

    def __init__(self, name: str, searcher: Searcher, find: Find):
        self.name, self._searcher, self._find = name, searcher, find
        self._lock, self._ending = Lock(), False
        self._watch = Watch()
        self._index: Catalog | None = None  # the index of the result
        self._result: dict[str, Any] | None = None
        self._error: str | None = None
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start, unless already running or the result is still valid."""
        index = self._searcher.now().index
        if not isinstance(index, Catalog):
            raise UsageError(
                f"{self.name} are found in an index folder, not on a server; use: hashlens {self.name} INDEX"
            )
        if len(index) > MAX_IMAGES:
            raise UsageError(
                f"an index of {counted(len(index), 'image')} is too large for the page (limit {MAX_IMAGES:,}); use:"
                f" hashlens {self.name} INDEX"
            )
        if not len(index):
            raise UsageError("the index has no images; nothing to compare")
        with self._lock:
            if self._running or (self._result is not None and self._index is index):
                return
            self._watch, self._error, self._result, self._index = Watch(), None, None, index
            self._thread = Thread(target=self._run, args=(index, self._watch), daemon=True, name=self.name)
            self._thread.start()

    def state(self) -> dict[str, Any]:
        with self._lock:
            if self._running:
                return {"state": "running", **self._watch.facts()}
            if self._error is not None:
                return {"state": "failed", "error": self._error}
            if self._result is None:
                return {"state": "none"}
            stale = self._index is not self._searcher.now().index
            return {"state": "done", "stale": stale, **self._result}

    def end(self) -> None:
        self._ending = True

    @property
    def _running(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and self._result is None and self._error is None

    def _run(self, index: Catalog, watch: Watch) -> None:
        try:
            groups = self._find(os.fspath(index.path), watch, lambda: self._ending)
            ids = _ids(index)
            shown = []
            for group in groups[:MAX_GROUPS]:
                images = [{"id": ids[image["path"]], **image} for image in group["images"] if image["path"] in ids]
                shown.append({**group, "n": len(images), "images": images[:MAX_MEMBERS]})
            self._result = {"n_images": len(index), "n_groups": len(groups), "groups": shown}
        except Stopped:
            self._error = "the server was stopped"
        except HashlensError as error:
            self._error = error.message
        except Exception:
            logging.getLogger("hashlens").exception("%s failed", self.name)
            self._error = "internal error; the server's log has the details, please report it"


class Watch(Progress):
    """Progress that other threads can read."""

    def __init__(self) -> None:
        super().__init__()
        self._now: tuple[str, int, int] = ("", 0, 0)

    def say(self, text: str) -> None:
        pass

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        self._now = what, 0, total

        def advance(n: int) -> None:
            self._now = what, self._now[1] + n, total

        yield advance

    def facts(self) -> dict[str, Any]:
        return dict(zip(("what", "done", "total"), self._now, strict=True))


def _ids(index: Catalog) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in index.parts:
        places = part.still()
        column = part.items().column("path").take(places).to_pylist()
        found |= dict(zip(column, part.ids(places).tolist(), strict=True))
    return found


def find_duplicates(path: str, progress: Progress, stop: Callable[[], bool]) -> list[dict[str, Any]]:
    from hashlens.duplicates.find import find_duplicates as find

    found = find(path, progress=progress, stop=stop)
    facts = ("path", "width", "height", "size")
    return [
        {"name": group.name, "kind": group.kind, "why": group.why}
        | {"images": [{name: getattr(image, name) for name in facts} for image in group.images]}
        for group in found.groups
    ]


def find_groups(path: str, progress: Progress, stop: Callable[[], bool]) -> list[dict[str, Any]]:
    from hashlens.groups import find_groups as find

    found = find(path, progress=progress, stop=stop)
    return [
        {"name": found.name(number), "images": [{"path": one} for one in paths]}
        for number, paths in enumerate(found.groups)
    ]
