"""Scrub: slowly rereads the served index from time to time and compares it with its checksums.

Disks can flip bits, and answers would come from the changed mapped file. Damage that could affect searches makes the
index unusable until it is repaired or replaced on disk; damage to index.json, to a copy or to keys (keys.py) only makes
the server not ready.
"""

import logging
import threading
from contextlib import suppress

from hashlens.errors import Damaged, Stopped
from hashlens.index.folder import COPY, KEYS, IndexFolder
from hashlens.search import Searcher
from hashlens.server.metrics import Metrics

RATE = 32e6  # bytes per second
REST = 0.001  # seconds after each file or megabyte, at least


class Scrub:
    """A thread that checks the whole index every `seconds`, a little at a time; 0 means never.

    It has normal priority: a low-priority thread waiting for a core while holding Python's lock would stop all
    searches, for a second or more on a busy machine.
    """

    def __init__(self, searcher: Searcher, seconds: float, metrics: Metrics):
        self._searcher, self._seconds, self._metrics = searcher, seconds, metrics
        self._ending = threading.Event()
        metrics.gauge(
            "hashlens_damaged", "1 if the index is damaged and not answered from.",
            lambda: searcher.index.damage is not None,
        )  # fmt: skip

    def start(self) -> None:
        if self._seconds:
            threading.Thread(target=self._run, daemon=True, name="scrub").start()

    def end(self) -> None:
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.wait(self._seconds):
            with suppress(Stopped):
                result = self._compare()
                self._metrics.scrubs.labels(result).inc()

    def _compare(self) -> str:
        index = self._searcher.index
        if not isinstance(index, IndexFolder):
            return "nothing to do"
        try:
            index.compare_files(self._pause)
        except Damaged as error:
            if index.changed():  # then the files of the old one are deleted
                return "changed"
            if index.damage is None:
                logging.getLogger("hashlens").error("%s", error.message)
            if error.path.name == "index.json" or error.path.name.endswith((COPY, *KEYS)):
                self._searcher.stale = error.message
            else:
                index.damage = error
            return "damaged"
        except Stopped:
            raise
        except Exception:
            logging.getLogger("hashlens").exception("the index could not be compared with its checksums")
            return "failed"
        if index.damage is not None or self._searcher.stale is not None:
            with self._searcher.loading:  # files were restored, but the damaged ones may still be mapped
                self._searcher.load()
        return "intact"

    def _pause(self, n_bytes: int) -> None:
        self._metrics.scrubbed.inc(n_bytes)
        if self._ending.wait(max(n_bytes / RATE, REST)):
            raise Stopped("the server ends")
