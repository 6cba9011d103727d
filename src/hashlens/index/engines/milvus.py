"""Milvus: codes in, neighbours out of a collection on a Milvus server, a cluster, or in a file (milvus-lite).

The search is exact (BIN_FLAT, Hamming). Milvus does not define which of equally near codes it returns, and returns at
most 16,384. So ties at the end of a result are queried separately, and longer results in ranges of ids.

What this process writes is found at once, what another one writes within about a second. Milvus accepts an id that it
already has; we check that before adding codes, so only one process may add at a time. Codes are sent in batches: if the
connection fails in the middle, the first batches have been added.
"""

import logging
import os
import re
import time
import warnings
from bisect import bisect_left
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
from hashlens.index.base import refuse
from hashlens.index.engines import Engine
from hashlens.index.order import Found, fill, ordered, together
from hashlens.machine import blocks

MOST = 16_384  # results of one query; Milvus's own limit
SPARE = 256  # results beyond k, so that ties at the end seldom need a second search
ROWS = 10_000  # codes or ids in one message
ANSWERS = 200_000  # results in one message
SECONDS = 60  # per message
HIGHEST = 2**63 - 1

_users: Counter[Path | None] = Counter()  # objects of this process that have a file open

# it logs a traceback for each error; ours are one sentence
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)


class MilvusIndex(Engine):
    """Exact search in a Milvus collection.

    `where` is an address such as http://localhost:19530, or a file NAME.db, which milvus-lite manages. User and
    password are taken from the environment: MILVUS_TOKEN=user:password.

    >>> index = MilvusIndex(48, "http://localhost:19530")
    """

    _closed = False

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

    def _connect(self, where: str) -> None:
        self._file = _file(where)
        self._shown = re.sub(r"//[^/@]*@", "//", where)  # an address may contain a password
        self._caught_up = False  # whether Milvus has confirmed all our writes
        with self._sentences():
            self._client = self._new_client(where)
        _users[self._file] += 1

    def _new_client(self, where: str) -> MilvusClient:
        begin = time.monotonic()
        while True:
            try:
                return MilvusClient(uri=where, token=os.environ.get("MILVUS_TOKEN", ""), timeout=SECONDS)
            except ConnectionConfigException as error:
                raise StorageError(
                    f"{self._shown} cannot be opened ({error.message}); check that its folder exists and that no other"
                    " process uses it"
                ) from error
            except MilvusException:
                # the process behind a file starts slowly on a busy machine
                if self._file is None or time.monotonic() - begin > SECONDS:
                    raise
                time.sleep(0.2)

    def _open_collection(self) -> None:
        # 12 and 16 bits are the same to Milvus, two bytes: the description tells them apart
        ours = f"hashlens codes of {self.n_bits} bits"
        with self._sentences():
            if not self._client.has_collection(self.collection, timeout=SECONDS):
                schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False, description=ours)
                schema.add_field("id", DataType.INT64, is_primary=True)
                schema.add_field("code", DataType.BINARY_VECTOR, dim=8 * -(-self.n_bits // 8))
                index = self._client.prepare_index_params()
                index.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
                self._client.create_collection(self.collection, schema=schema, index_params=index, timeout=SECONDS)
            found = self._client.describe_collection(self.collection, timeout=SECONDS)["description"]
            if found != ours:
                raise MismatchError(
                    f"the collection {self.collection} at {self._shown} holds {found or 'something else'!r}, not"
                    f" {ours!r}; choose another collection, or encode with the same model"
                )
            self._client.load_collection(self.collection, timeout=SECONDS)
        len(self)  # waits until Milvus has everything written so far

    def _highest(self) -> int:
        """By bisection: Milvus can tell whether an id is above some number, but has no maximum."""
        self._caught_up = False  # another process may have added some
        possible = range(-1, HIGHEST - 1)
        return possible[bisect_left(possible, True, key=lambda id_: not self._query(f"id > {id_}", limit=1))]

    def _insert(self, codes: Codes, ids: np.ndarray) -> None:
        self._caught_up = False  # another process may have added these
        refuse(self._contains(np.sort(ids)))
        packed = np.ascontiguousarray(codes.packed)
        for rows in blocks(len(ids), ROWS):
            pairs = zip(ids[rows].tolist(), packed[rows], strict=True)
            self._write("insert", data=[{"id": id_, "code": code.tobytes()} for id_, code in pairs])

    def _delete(self, ids: np.ndarray) -> int:
        there = self._contains(ids)  # Milvus counts what it was asked to delete, not what it had
        for rows in blocks(len(there), ROWS):
            self._write("delete", ids=there[rows].tolist())
        return len(there)

    def _contains(self, ids: np.ndarray) -> np.ndarray:
        # as a rule they are about to be added after all others, which one query shows
        if not self._query(f"id >= {ids[0]} and id <= {ids[-1]}", limit=1):
            return ids[:0]
        found = [row["id"] for rows in blocks(len(ids), ROWS) for row in self._query(_among(ids[rows]))]
        return np.unique(np.array(found, np.int64))

    def _nearest(self, codes: Codes, k: int, among: np.ndarray | None, distances: np.ndarray, ids: np.ndarray) -> None:
        if k > MOST:
            k = min(k, len(self) if among is None else len(among))
        if k > MOST:
            raise UsageError(f"k must be <= {MOST:,} with Milvus, got {k:,}")
        fill(together([self._nearest_of(codes, k, only) for only in _filters(among)]), distances, ids)

    def _nearest_of(self, codes: Codes, k: int, only: str) -> list[Found]:
        limit = min(k + SPARE, MOST)
        found = self._search(codes, limit, only)
        for row, (distances, ids) in enumerate(found):
            if len(distances) == limit and distances[-1] == distances[k - 1]:
                nearer = distances < distances[-1]
                tied = int(distances[-1])
                ties = self._lowest(codes[row], tied, tied, only, k - int(nearer.sum()))
                found[row] = together([[(distances[nearer], ids[nearer])], [ties]])[0]
        return found

    def _within(self, codes: Codes, radius: int, among: np.ndarray | None) -> list[Found]:
        rows = range(len(codes))
        return together([[self._lowest(codes[row], 0, radius, only) for row in rows] for only in _filters(among)])

    def _lowest(
        self, code: Codes, nearest: int, farthest: int, only: str, n: int = HIGHEST, span: tuple[int, int] | None = None
    ) -> Found:
        """Of the codes from `nearest` to `farthest` bits away, the n with the lowest ids, all in `span`.

        If there are more than Milvus returns, the lower half of the span is queried first, then the upper half.
        """
        limits = [only, f"id >= {span[0]} and id <= {span[1]}" if span else ""]
        # Milvus excludes the radius itself and includes the other bound
        bounds = {"radius": farthest + 1, "range_filter": nearest}
        distances, ids = self._search(code, MOST, " and ".join(filter(None, limits)), bounds)[0]
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
        """Make Milvus catch up with everything written first, unless it has confirmed that already."""
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
                f"Milvus at {self._shown} failed ({reason}); check that it runs and has space, then rerun the same"
                " command"
            ) from error


def _filters(among: np.ndarray | None) -> list[str]:
    return [""] if among is None else [_among(among[rows]) for rows in blocks(len(among), ROWS)]


def _among(ids: np.ndarray) -> str:
    return f"id in {ids.tolist()}"


def _file(where: str) -> Path | None:
    """The file that milvus-lite manages, or None if `where` is an address."""
    if "://" in where:
        return None
    if not where.endswith(".db"):
        raise UsageError(f"{where} is neither an address such as http://localhost:19530 nor a file NAME.db")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from the packaging tool that it imports
            import milvus_lite  # noqa: F401
    except ImportError as error:
        raise UsageError('Milvus in a file needs milvus-lite 2.5: pip install "hashlens[milvus-lite]"') from error
    return Path(where).resolve()
