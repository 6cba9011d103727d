"""Milvus: codes in, neighbours out of a collection on a Milvus server, a cluster, or in a file (milvus-lite).

The search is exact (BIN_FLAT, Hamming). Milvus does not say which of equally near codes it returns and returns 16,384
at most, so ties at the end of a result are asked for by themselves, and what is more than one answer holds is asked for
in ranges of ids: results are complete and ordered by (distance, id), as everywhere.

What this process has written is found at once. What another one is writing is found within about a second. Milvus does
not refuse an id that it has; this is asked before codes are added, so let one process add at a time. Codes go there in
batches: if the connection fails in the middle, the first batches have been added.
"""

from __future__ import annotations

import logging
import os
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pymilvus import DataType, MilvusClient
from pymilvus.exceptions import ConnectionConfigException, MilvusException

from hashlens.codes import Codes
from hashlens.errors import MismatchError, StorageError, UsageError
from hashlens.index.engines import Engine, Found, ordered, refuse, together
from hashlens.threads import blocks

COLLECTION = "hashlens"
MOST = 16_384  # results of one query; Milvus's own limit
SPARE = 256  # results beyond k, so that ties at the end are seldom asked for
ROWS = 10_000  # codes or ids in one message
ANSWERS = 200_000  # results in one message
SECONDS = 60  # for one message
HIGHEST = 2**63 - 1

_users: Counter[Path | None] = Counter()  # how many of this process have a file open

# it prints a traceback for each error, and we say them in a sentence
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)


class MilvusIndex(Engine):
    """Exact search in a Milvus collection, which is created if it is not there.

    `where` is an address such as http://localhost:19530, or a file that ends in .db, which milvus-lite keeps. A user
    and a password are taken from the environment: MILVUS_TOKEN=user:password.

    >>> index = MilvusIndex(48, "http://localhost:19530")
    """

    def __init__(self, n_bits: int, where: str, collection: str = COLLECTION):
        super().__init__(n_bits)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", collection):
            raise UsageError(f"{collection!r} is no name for a collection; use letters, digits and _")
        self.collection = collection
        self._file = _file(where)
        self._shown = re.sub(r"//[^/@]*@", "//", where)  # an address may hold a password
        self._n_bytes = -(-n_bits // 8)
        self._top = -1  # no id above it was seen
        self._caught_up = False  # whether Milvus has shown that it has all we have written
        with self._sentences():
            self._client = self._connect(where)
        _users[self._file] += 1
        self._closed = False
        try:
            self._open()
            len(self)  # waits until Milvus has everything that was written so far
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._query("", output_fields=["count(*)"])[0]["count(*)"]

    def flush(self) -> None:
        with self._sentences():
            self._client.flush(self.collection, timeout=SECONDS)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._client.close()
        _users[self._file] -= 1
        if self._file is not None and not _users[self._file]:
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(str(self._file))

    def _connect(self, where: str) -> MilvusClient:
        begin = time.monotonic()
        while True:
            try:
                return MilvusClient(uri=where, token=os.environ.get("MILVUS_TOKEN", ""), timeout=SECONDS)
            except ConnectionConfigException as error:
                raise StorageError(
                    f"{self._shown} cannot be opened ({error.message}); see that its folder is there and that no other"
                    " process uses it"
                ) from error
            except MilvusException:
                # the process that keeps a file takes its time to start on a busy machine
                if self._file is None or time.monotonic() - begin > SECONDS:
                    raise
                time.sleep(0.2)

    def _open(self) -> None:
        with self._sentences():
            if self._client.has_collection(self.collection, timeout=SECONDS):
                self._require_ours()
                self._client.load_collection(self.collection, timeout=SECONDS)
            else:
                self._create()

    def _create(self) -> None:
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False, description=self._description())
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("code", DataType.BINARY_VECTOR, dim=8 * self._n_bytes)
        index = self._client.prepare_index_params()
        index.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
        self._client.create_collection(self.collection, schema=schema, index_params=index, timeout=SECONDS)

    def _require_ours(self) -> None:
        """Of 12 and of 16 bits are the same to Milvus: two bytes. The description tells them apart."""
        found = self._client.describe_collection(self.collection, timeout=SECONDS)["description"]
        if found != self._description():
            raise MismatchError(
                f"the collection {self.collection} at {self._shown} holds {found or 'something else'!r}, not"
                f" {self._description()!r}; choose another collection, or encode with the same model"
            )

    def _description(self) -> str:
        return f"hashlens codes of {self.n_bits} bits"

    def _highest(self) -> int:
        """Found by asking whether there is an id above some number: Milvus has no maximum."""
        self._caught_up = False  # another process may have added some
        if not self._query(f"id > {self._top}", limit=1):
            return self._top
        step = 1
        while self._query(f"id > {min(self._top + step, HIGHEST)}", limit=1):
            self._top, step = self._top + step, 2 * step
        low, self._top = self._top + 1, min(self._top + step, HIGHEST)
        while low < self._top:
            middle = (low + self._top) // 2
            if self._query(f"id > {middle}", limit=1):
                low = middle + 1
            else:
                self._top = middle
        return self._top

    def _insert(self, codes: Codes, ids: np.ndarray) -> None:
        self._caught_up = False  # another process may have added these
        refuse(self._known(np.sort(ids)))
        packed = np.ascontiguousarray(codes.packed)
        for rows in blocks(len(ids), ROWS):
            pairs = zip(ids[rows].tolist(), packed[rows], strict=True)
            self._write("insert", data=[{"id": id_, "code": code.tobytes()} for id_, code in pairs])
        self._top = max(self._top, int(ids.max()))

    def _delete(self, ids: np.ndarray) -> int:
        there = self._known(ids)  # Milvus counts what it was asked to delete, not what it had
        for rows in blocks(len(there), ROWS):
            self._write("delete", ids=there[rows].tolist())
        return len(there)

    def _known(self, ids: np.ndarray) -> np.ndarray:
        # most are asked for before they are added behind all others, which is seen at one glance
        if not self._query(f"id >= {ids[0]} and id <= {ids[-1]}", limit=1):
            return ids[:0]
        found = [row["id"] for rows in blocks(len(ids), ROWS) for row in self._query(_among(ids[rows]))]
        return np.unique(np.array(found, np.int64))

    def _nearest(self, codes: Codes, k: int, among: np.ndarray | None) -> list[Found]:
        if k > MOST:
            k = max(1, min(k, len(self) if among is None else len(among)))
        if k > MOST:
            raise UsageError(f"Milvus returns at most {MOST:,} results to a query, k is {k:,}; ask for fewer")
        return together([self._nearest_of(codes, k, only) for only in _filters(among)])

    def _nearest_of(self, codes: Codes, k: int, only: str) -> list[Found]:
        limit = min(k + SPARE, MOST)
        found = self._search(codes, limit, only)
        for row, (distances, ids) in enumerate(found):
            if len(distances) == limit and distances[-1] == distances[k - 1]:
                nearer = distances < distances[-1]
                ties = self._lowest(codes[row], int(distances[-1]), int(distances[-1]), only, k - int(nearer.sum()))
                found[row] = together([[(distances[nearer], ids[nearer])], [ties]])[0]
        return found

    def _within(self, codes: Codes, radius: int, among: np.ndarray | None) -> list[Found]:
        return together([self._within_of(codes, radius, only) for only in _filters(among)])

    def _within_of(self, codes: Codes, radius: int, only: str) -> list[Found]:
        found = self._search(codes, MOST, only, _bounds(0, radius))
        for row, (distances, _) in enumerate(found):
            if len(distances) == MOST:
                found[row] = self._lowest(codes[row], 0, radius, only, HIGHEST, (0, self._highest()))
        return found

    def _lowest(
        self, code: Codes, nearest: int, farthest: int, only: str, n: int, span: tuple[int, int] | None = None
    ) -> Found:
        """Of the codes from `nearest` to `farthest` bits away the n with the lowest ids, which are in `span`.

        Where there are more than Milvus returns, first those in the lower half of the span, then those in the upper.
        """
        limits = [only, f"id >= {span[0]} and id <= {span[1]}" if span else ""]
        distances, ids = self._search(code, MOST, " and ".join(filter(None, limits)), _bounds(nearest, farthest))[0]
        if len(ids) < MOST:
            lowest = np.argsort(ids)[:n]
            return ordered(distances[lowest], ids[lowest])
        low, high = span or (0, self._highest())
        middle = (low + high) // 2
        lower = self._lowest(code, nearest, farthest, only, n, (low, middle))
        if len(lower[1]) >= n:
            return lower
        upper = self._lowest(code, nearest, farthest, only, n - len(lower[1]), (middle + 1, high))
        return together([[lower], [upper]])[0]

    def _search(self, codes: Codes, limit: int, only: str, bounds: dict[str, int] | None = None) -> list[Found]:
        found: list[Found] = []
        for rows in blocks(len(codes), max(1, ANSWERS // limit)):
            answer = self._read(
                "search",
                data=[code.tobytes() for code in codes.packed[rows]],
                limit=limit,
                filter=only,
                search_params={"metric_type": "HAMMING", "params": bounds or {}},
            )
            found += [ordered(hits.distances, hits.ids) for hits in answer]
        return found

    def _query(self, only: str, **options: Any) -> list[dict[str, Any]]:
        return self._read("query", filter=only, **({"output_fields": ["id"]} | options))

    def _read(self, name: str, **options: Any) -> Any:
        """Ask so that Milvus first catches up with all that was written, if it has not shown yet that it has."""
        level = "Session" if self._caught_up else "Strong"
        with self._sentences():
            answer = getattr(self._client, name)(self.collection, consistency_level=level, timeout=SECONDS, **options)
        self._caught_up = True
        return answer

    def _write(self, name: str, **options: Any) -> None:
        self._caught_up = False
        with self._sentences():
            getattr(self._client, name)(self.collection, timeout=SECONDS, **options)

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except MilvusException as error:
            reason = str(error.message).strip().splitlines()[0]
            raise StorageError(
                f"Milvus at {self._shown} did not do what it was asked ({reason}); see that it runs and has room, then"
                " run the same command again"
            ) from error


def _bounds(nearest: int, farthest: int) -> dict[str, int]:
    return {"radius": farthest + 1, "range_filter": nearest}  # the radius is not included, the other is


def _filters(among: np.ndarray | None) -> list[str]:
    return [""] if among is None else [_among(among[rows]) for rows in blocks(len(among), ROWS)]


def _among(ids: np.ndarray) -> str:
    return f"id in {ids.tolist()}"


def _file(where: str) -> Path | None:
    """The file of a milvus-lite, or None if `where` is an address."""
    if "://" in where:
        return None
    if not where.endswith(".db"):
        raise UsageError(f"{where} is no address such as http://localhost:19530 and no file that ends in .db")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the packaging tool that it imports
            import milvus_lite  # noqa: F401
    except ImportError as error:
        raise UsageError('Milvus in a file needs milvus-lite 2.5: pip install "hashlens[milvus-lite]"') from error
    return Path(where).resolve()
