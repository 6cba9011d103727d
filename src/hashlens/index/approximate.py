"""Lists that are searched in part: codes in, most of their nearest neighbours out, sooner than by looking at all codes.

Codes are put into lists around typical codes (an inverted file, faiss's IndexBinaryIVF); a query looks only into the
lists nearest to it, by default an eighth of them. How many of the ten nearest of 48 bits were found then: 0.995 or more
among 60,000 ITQ codes of photographs, 0.85 to 0.93 among 100,000 random codes, which have no structure that lists could
use; the more codes are added at first, the better. `n_probe` is the number of lists that are looked into: with all of
them the search is exact. Under ten million codes the exact index is fast enough and there is no reason to use this one.
Ids are kept in memory, 8 bytes each, beside the lists.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.codes import Codes
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.files import replacing, require_room, write_json
from hashlens.index import HammingIndex
from hashlens.index.engines import Engine, Found, ordered, refuse
from hashlens.threads import n_threads

# with two OpenMPs on busy cores threads that wait must not keep the cores busy: a hundredfold difference
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import faiss

FORMAT = "hashlens lists 1"
MAX_LISTS = 4_096  # learning more takes longer than it saves
TO_LEARN = 39  # codes for each list; with fewer a list is a matter of chance
SAMPLE = 64  # codes for each list that are looked at
SPARE = 64  # results beyond k, so that ties at the end are seldom asked for


class ApproximateIndex(Engine):
    """Approximate search; `where` is a folder in which `flush` keeps the index, or None: only in memory.

    The lists are learned from the first codes and again whenever there are sixteen times as many.
    """

    exact = False

    def __init__(self, n_bits: int, where: str | Path | None = None, *, n_probe: int | None = None):
        super().__init__(n_bits)
        if n_probe is not None and n_probe < 1:
            raise UsageError(f"n_probe must be 1 or more, not {n_probe}")
        self.n_probe = n_probe
        self.folder = None if where is None else Path(where)
        self._lists: Any = None
        self._ids = np.empty(0, np.int64)  # ascending
        if self.folder is not None:
            self._open(self.folder)

    @property
    def n_lists(self) -> int:
        return 0 if self._lists is None else self._lists.nlist

    def __len__(self) -> int:
        return len(self._ids)

    def flush(self) -> None:
        if self.folder is not None and self._lists is not None:
            require_room(self.folder, len(self) * (self._lists.code_size + 8), "the lists")
            write_json(self.folder / "lists.json", {"format": FORMAT, "n_bits": self.n_bits})
            with replacing(self.folder / "lists.bin") as temporary:
                faiss.write_index_binary(self._lists, str(temporary))

    def _open(self, folder: Path) -> None:
        facts = {"format": FORMAT, "n_bits": self.n_bits}
        if not (folder / "lists.json").exists():  # made by `flush`
            return
        try:
            found = json.loads((folder / "lists.json").read_text(encoding="utf-8"))
            if found != facts:
                raise MismatchError(f"{folder} holds {found}, not {facts}; choose another folder")
            if (folder / "lists.bin").exists():
                self._lists = faiss.read_index_binary(str(folder / "lists.bin"))
        except (OSError, ValueError, RuntimeError) as error:
            raise DataError(
                f"the lists in {folder} are damaged; delete that folder and copy the index again"
            ) from error
        self._ids = np.sort(np.concatenate([self._ids, *(ids for ids, _ in self._stored())]))

    def _stored(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The ids and the padded codes of each list."""
        for number in range(self.n_lists):
            lists = self._lists.invlists
            n, n_bytes = lists.list_size(number), self._lists.code_size
            if n:
                codes = faiss.rev_swig_ptr(lists.get_codes(number), n * n_bytes).reshape(n, n_bytes)
                yield faiss.rev_swig_ptr(lists.get_ids(number), n).copy(), codes.copy()

    def _highest(self) -> int:
        return int(self._ids[-1]) if len(self) else -1

    def _known(self, ids: np.ndarray) -> np.ndarray:
        return np.intersect1d(ids, self._ids)

    def _insert(self, codes: Codes, ids: np.ndarray) -> None:
        refuse(self._known(ids))
        padded = _padded(codes)
        if _n_lists(len(self) + len(ids)) >= 4 * self.n_lists:
            pieces = [*self._stored(), (ids, padded)]
            self._lists = _learned(np.concatenate([p for _, p in pieces]), np.concatenate([i for i, _ in pieces]))
        else:
            self._lists.add_with_ids(padded, ids)
        self._ids = np.union1d(self._ids, ids)

    def _delete(self, ids: np.ndarray) -> int:
        there = self._known(ids)
        if len(there):
            self._lists.remove_ids(there)
            self._ids = np.setdiff1d(self._ids, there, assume_unique=True)
        return len(there)

    def _nearest(self, codes: Codes, k: int, among: np.ndarray | None) -> list[Found]:
        if among is not None:
            found = self._only(among).search(codes, min(k, len(among)))
            return [(d[d >= 0], ids[d >= 0]) for d, ids in zip(*found, strict=True)]
        n = min(k + SPARE, len(self))
        if not n:
            return [ordered([], [])] * len(codes)
        answers = []
        for row, (distances, ids) in enumerate(zip(*self._ready().search(_padded(codes), n), strict=True)):
            there = ids >= 0  # the lists that were looked into may hold fewer
            answers.append(ordered(distances[there], ids[there]))
            if there.all() and n < len(self) and distances[-1] == distances[k - 1]:
                answers[row] = self._within(codes[row], int(distances[-1]), None)[0]
        return answers

    def _within(self, codes: Codes, radius: int, among: np.ndarray | None) -> list[Found]:
        if among is not None:
            return self._only(among).within(codes, radius)
        if not len(self):
            return [ordered([], [])] * len(codes)
        ends, distances, ids = self._ready().range_search(_padded(codes), radius + 1)  # this radius is not included
        return [ordered(distances[a:b], ids[a:b]) for a, b in pairwise(int(end) for end in ends)]

    def _ready(self) -> Any:
        self._lists.nprobe = min(self.n_lists, self.n_probe or max(1, self.n_lists // 8))
        faiss.omp_set_num_threads(n_threads())
        return self._lists

    def _only(self, among: np.ndarray) -> HammingIndex:
        """An exact index of these ids: they are in any list, and few as a rule."""
        pieces = []
        for ids, padded in self._stored():
            chosen = among[np.searchsorted(among[:-1], ids)] == ids
            pieces.append((ids[chosen], padded[chosen]))
        index = HammingIndex(self.n_bits)
        if pieces:
            packed = np.concatenate([padded[:, : -(-self.n_bits // 8)] for _, padded in pieces])
            index.add(Codes(packed, self.n_bits), np.concatenate([ids for ids, _ in pieces]))
        return index


def _learned(padded: np.ndarray, ids: np.ndarray) -> Any:
    """Lists around codes that are typical of these, with these in them."""
    n_lists, n_bits = _n_lists(len(padded)), 8 * padded.shape[1]
    lists = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(n_bits), n_bits, n_lists)
    lists.cp.min_points_per_centroid = 1  # we have chosen the number of lists so that there are enough
    faiss.omp_set_num_threads(n_threads())
    sample = np.random.default_rng(0).permutation(len(padded))[: SAMPLE * n_lists]
    lists.train(padded[sample])
    lists.add_with_ids(padded, ids)
    return lists


def _n_lists(n: int) -> int:
    return max(1, min(int(2 * n**0.5), n // TO_LEARN, MAX_LISTS))


def _padded(codes: Codes) -> np.ndarray:
    """Whole words of 8 bytes: lengths that distances are counted fast for."""
    return codes.words().view(np.uint8)
