"""Approximate search with faiss: codes in, most of their nearest neighbours out, without reading all codes.

Codes are put into lists around typical codes (an inverted file, faiss's IndexBinaryIVF); a query searches only the
lists nearest to it, by default an eighth of them. The recall of the ten nearest of 48 bits was then 0.995 or more among
60,000 ITQ codes of photographs, 0.85 to 0.93 among 100,000 random codes, which have no structure that lists could use;
it grows with the number of codes in the first addition. `n_probe` is the number of lists searched: with all lists the
search is exact. Below ten million codes the exact index is fast enough. Ids are also kept in memory, 8 bytes each.
"""

import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import InitVar, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.checksums import FILE, compare_file, damaged, describe_file, read_sealed, write_sealed
from hashlens.codes import Codes
from hashlens.errors import MismatchError
from hashlens.files import replacing, require_own, require_room
from hashlens.index.base import Index, refuse
from hashlens.index.memory import HammingIndex
from hashlens.index.order import Found, fill, ordered
from hashlens.machine import n_threads
from hashlens.schema import conform, whole
from hashlens.settings import check, setting

# with two OpenMP runtimes on busy cores, waiting threads must not spin, or searches take a hundred times as long
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import faiss

FORMAT, BEFORE = "hashlens lists 2", "hashlens lists 1"
SCHEMA = {"format": FORMAT, "n_bits": whole(1, 65_536), "file": re.compile(r"lists-[0-9a-f]{32}\.bin"), **FILE}
MAX_LISTS = 4_096  # learning more lists costs more time than it saves
TO_LEARN = 39  # codes per list; with fewer, lists are arbitrary
SAMPLE = 64  # codes per list to learn from
SPARE = 64  # results beyond k, so that ties at the end rarely need a second search


@dataclass(eq=False)
class ApproximateIndex(Index):
    """Approximate search; `where` is a folder in which `flush` stores the index, or None to keep it in memory only.

    The lists are learned from the first codes, and again whenever the number of codes has grown sixteenfold.
    """

    n_bits: InitVar[int]
    where: InitVar[str | Path | None] = None
    n_probe: int | None = setting(None, "lists searched per query; by default an eighth of them", low=1)

    name = "faiss"
    exact = False

    def __post_init__(self, n_bits: int, where: str | Path | None) -> None:
        super().__init__(n_bits)
        check(self)
        self.folder = None if where is None else Path(where)
        self._facts = {"format": FORMAT, "n_bits": n_bits}
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
            name = f"lists-{secrets.token_hex(16)}.bin"
            with replacing(self.folder / name) as temporary:
                faiss.write_index_binary(self._lists, str(temporary))
            # the manifest with checksums is written last and names either the old or the new file
            write_sealed(self.folder / "lists.json", self._facts | {"file": name} | describe_file(self.folder / name))
            for old in self.folder.glob("lists*.bin"):
                if old.name != name:
                    old.unlink()

    def _open(self, folder: Path) -> None:
        place, remedy = folder / "lists.json", "delete that folder and copy the index again"
        if not place.exists():  # only `flush` writes it
            return
        try:
            found = read_sealed(place)
            if found.get("format") == BEFORE:
                raise MismatchError(f"the lists in {folder} are of an older version; {remedy}")
            conform(found, SCHEMA, place.name)
        except (OSError, ValueError) as error:
            raise damaged(place, error, remedy) from error
        if found["n_bits"] != self.n_bits:
            bits = f"codes of {found['n_bits']} bits, not {self.n_bits}"
            raise MismatchError(f"{folder} holds {bits}; choose another folder")
        compare_file(folder / found["file"], found, remedy)
        try:
            self._lists = faiss.read_index_binary(str(folder / found["file"]))
        except RuntimeError as error:
            raise damaged(folder / found["file"], "it is not of this faiss", remedy) from error
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

    def _contains(self, ids: np.ndarray) -> np.ndarray:
        return np.intersect1d(ids, self._ids)

    def _insert(self, codes: Codes, ids: np.ndarray) -> None:
        refuse(self._contains(ids))
        if self.folder is not None:
            require_own(self.folder, ["lists.json"], "a faiss index", "--to")
        padded = _padded(codes)
        if _n_lists(len(self) + len(ids)) >= 4 * self.n_lists:
            pieces = [*self._stored(), (ids, padded)]
            self._lists = _learned(np.concatenate([p for _, p in pieces]), np.concatenate([i for i, _ in pieces]))
        else:
            self._lists.add_with_ids(padded, ids)
        self._ids = np.union1d(self._ids, ids)

    def _delete(self, ids: np.ndarray) -> int:
        there = self._contains(ids)
        if len(there):
            self._lists.remove_ids(there)
            self._ids = np.setdiff1d(self._ids, there, assume_unique=True)
        return len(there)

    def _nearest(self, codes: Codes, k: int, among: np.ndarray | None, distances: np.ndarray, ids: np.ndarray) -> None:
        if among is not None:
            distances[:], ids[:] = self._only(among).search(codes, k)
            return
        n = min(k + SPARE, len(self))
        if n:
            found = zip(*self._ready().search(_padded(codes), n), strict=True)
            fill((self._all_ties(codes[row], k, *nearest) for row, nearest in enumerate(found)), distances, ids)

    def _all_ties(self, code: Codes, k: int, distances: np.ndarray, ids: np.ndarray) -> Found:
        """faiss's results; if the k-th ties with the last, all codes at that distance, as ties are ordered by id."""
        there = ids >= 0  # the searched lists may hold fewer
        if there.all() and len(ids) < len(self) and distances[-1] == distances[k - 1]:
            return self._within(code, int(distances[-1]), None)[0]
        return ordered(distances[there], ids[there])

    def _within(self, codes: Codes, radius: int, among: np.ndarray | None) -> list[Found]:
        if among is not None:
            return self._only(among).within(codes, radius)
        if not len(self):
            return [ordered([], [])] * len(codes)
        ends, distances, ids = self._ready().range_search(_padded(codes), radius + 1)  # faiss excludes the radius
        return [ordered(distances[a:b], ids[a:b]) for a, b in pairwise(int(end) for end in ends)]

    def _ready(self) -> Any:
        self._lists.nprobe = min(self.n_lists, self.n_probe or max(1, self.n_lists // 8))
        faiss.omp_set_num_threads(n_threads())
        return self._lists

    def _only(self, among: np.ndarray) -> HammingIndex:
        """An exact index of these ids, which may be in any list and are usually few."""
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
    """Lists around typical codes, filled with these codes."""
    n_lists, n_bits = _n_lists(len(padded)), 8 * padded.shape[1]
    lists = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(n_bits), n_bits, n_lists)
    lists.cp.min_points_per_centroid = 1  # the number of lists already ensures enough
    faiss.omp_set_num_threads(n_threads())
    sample = np.random.default_rng(0).permutation(len(padded))[: SAMPLE * n_lists]
    lists.train(padded[sample])
    lists.add_with_ids(padded, ids)
    return lists


def _n_lists(n: int) -> int:
    return max(1, min(int(2 * n**0.5), n // TO_LEARN, MAX_LISTS))


def _padded(codes: Codes) -> np.ndarray:
    """Codes padded to words of 8 bytes, for which faiss is fast."""
    return codes.words().view(np.uint8)
