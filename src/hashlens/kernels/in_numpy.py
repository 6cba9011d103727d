"""The kernels in numpy: the reference for tests of the compiled ones, and the fallback without them."""

from __future__ import annotations

import numpy as np

from hashlens.kernels import LANES, Rows, View

BLOCKS = 16_384  # blocks per count of distances


class Numpy:
    """The same methods as `Compiled`."""

    name = "numpy"

    def nearest(
        self,
        view: View,
        queries: np.ndarray,
        n_bits: int,
        distances: np.ndarray,
        ids: np.ndarray,
        share: int = 0,
        n_shares: int = 1,
        seconds: np.ndarray | None = None,
        second_bits: int = 0,
    ) -> int:
        """The nearest k of each query, (n_queries, k), in one of `n_shares` shares of the rows; padded with -1.

        If queries have second codes, a distance is first * (second_bits + 1) + second.
        """
        k, width = distances.shape[1], second_bits + 1 if seconds is not None else 1
        distances[:], ids[:] = -1, -1
        for row, query in enumerate(queries):
            apart, theirs = [np.empty(0, np.uint16)], [np.empty(0, np.int64)]
            for rows in view.rows:
                n_blocks = len(rows.blocks)
                begin, end = n_blocks * share // n_shares, n_blocks * (share + 1) // n_shares
                d, places = _distances(rows, begin, end, query)
                if seconds is not None:
                    assert rows.second is not None
                    of_second = Rows(rows.second, rows.n, 0)
                    of_second.alive = rows.alive
                    d = d * np.uint16(width) + _distances(of_second, begin, end, seconds[row])[0]
                apart.append(d)
                theirs.append(rows.ids(places))
            d = np.concatenate(apart)
            counts = np.bincount(d, minlength=(n_bits + 1) * width)
            limit = np.searchsorted(np.cumsum(counts), k)  # nothing farther can be among the nearest k
            near = np.flatnonzero(d <= limit)
            best = near[np.argsort(d[near], kind="stable")[:k]]
            distances[row, : len(best)], ids[row, : len(best)] = d[best], np.concatenate(theirs)[best]
        return 0

    def within(self, rows: Rows, query: np.ndarray, n_bits: int, radius: int) -> tuple[np.ndarray, np.ndarray]:
        """Distances and ids of the codes at most `radius` away."""
        d, places = _distances(rows, 0, len(rows.blocks), query)
        near = d <= radius
        return d[near], rows.ids(places[near])

    def histogram(self, rows: Rows, begin: int, end: int, query: np.ndarray, counts: np.ndarray) -> None:
        """Count the codes of some blocks by distance, added to `counts`."""
        counts += np.bincount(_distances(rows, begin, end, query)[0], minlength=len(counts))

    def rank(
        self,
        blocks: np.ndarray,
        n: int,
        queries: np.ndarray,
        query_labels: np.ndarray,  # (q, label_words) uint64
        labels: np.ndarray,  # (label_words, n_blocks * 64) uint64
        label_sets: bool,
        cutoffs: np.ndarray,  # (c,) int64, ascending
        topk: int,
        items: np.ndarray,  # (q, n_bits + 1) int64
        hits: np.ndarray,  # (q, n_bits + 1) int64
        found: np.ndarray,  # (q, c) int64
        precision_sum: np.ndarray,  # (q,) float64
    ) -> None:
        """Count the items and hits of each query's ranking by (distance, position); see codes/hamming.py."""
        rows = Rows(blocks, n, 0)
        for i, query in enumerate(queries):
            d, _ = _distances(rows, 0, len(blocks), query)
            own = query_labels[i][:, None]
            relevant = ((labels & own) != 0).any(axis=0)[:n] if label_sets else labels[0, :n] == own[0]
            items[i] = np.bincount(d, minlength=items.shape[1])
            hits[i] = np.bincount(d[relevant], minlength=items.shape[1])
            places = np.flatnonzero(relevant[np.argsort(d, kind="stable")])
            found[i] = np.searchsorted(places, cutoffs)
            places = places[places < topk] + 1
            precision_sum[i] = (np.arange(1, len(places) + 1) / places).sum()

    def look_up(
        self,
        rows: Rows,
        query: np.ndarray,
        radius: int,
        radii: np.ndarray,
        masks: np.ndarray,
        ends: np.ndarray,
        starts: np.ndarray,
        places: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same as `within`, using the tables of index/radius.py."""
        pieces = np.pad(query, (0, len(query) % 2)).view(np.uint16)
        found = [np.empty(0, np.uint32)]
        for piece in np.flatnonzero(radii >= 0):
            values = (pieces[piece] ^ masks[: ends[radii[piece]]]).astype(np.int64)
            bounds = zip(starts[piece, values], starts[piece, values + 1], strict=True)
            found += [places[piece, start:stop] for start, stop in bounds if start < stop]
        candidates = np.unique(np.concatenate(found)).astype(np.int64)
        if rows.alive is not None:
            candidates = candidates[rows.alive[candidates]]
        d = np.bitwise_count(rows.codes(candidates) ^ query).sum(axis=1, dtype=np.uint16)
        near = d <= radius
        return d[near], rows.ids(candidates[near])


def _distances(rows: Rows, begin: int, end: int, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances and positions of the codes of some blocks that were not removed, ordered by position."""
    d = np.empty((end - begin, LANES), np.uint16)
    for start in range(begin, end, BLOCKS):
        chunk = rows.blocks[start : min(start + BLOCKS, end)]
        np.sum(np.bitwise_count(chunk ^ query[:, None]), axis=1, dtype=np.uint16, out=d[start - begin :][: len(chunk)])
    places = np.arange(begin * LANES, min(end * LANES, rows.n))
    d = d.ravel()[: len(places)]
    if rows.alive is None:
        return d, places
    alive = rows.alive[places]
    return d[alive], places[alive]
