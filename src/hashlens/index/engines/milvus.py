"""Milvus: codes with paths and labels in, neighbours out, from collections on a server, a cluster, or in a file.

NAME          id, code, key, path_key, label_keys, item: a JSON object with path, labels, size, mtime, hash and second
NAME_second   id, second code, label_keys, if there are second codes: a search by second
NAME_meta     facts with the next id, and the keys of removed images

The search is exact (BIN_FLAT, Hamming). Milvus does not define which of several equally near codes it returns, and
returns at most 16,384 results. So ties at the end of a result are queried separately, and longer results in ranges of
ids. With `index=ivf` a search by k is approximate once Milvus has sealed and indexed its segments.

Writes of this process are visible at once, those of others within five seconds (Milvus's bounded staleness). Milvus
accepts duplicate ids; we check for them before adding codes, so only one process at a time may add without ids. Codes
are sent in batches, which can safely be sent twice: if the connection fails in the middle, the first batches have been
added, and the same `index add` adds the others.
"""

import logging
import os
import re
import socket
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
from pymilvus import DataType, MilvusClient
from pymilvus.exceptions import ConnectionConfigException, MilvusException

from hashlens.codes import Codes
from hashlens.errors import StorageError, Unreachable, UsageError, to_install
from hashlens.index.base import refuse
from hashlens.index.engines.server import FORMAT, Asked, Engine, item_columns
from hashlens.index.items import ITEMS
from hashlens.index.keys import path_keys
from hashlens.index.order import Found, ordered, together
from hashlens.machine import blocks
from hashlens.settings import setting

MOST = 16_384  # results of one query; Milvus's own limit
SPARE = 256  # results beyond k, so that ties at the end rarely need a second search
ROWS = 10_000  # codes or ids in one message
ANSWERS = 200_000  # results in one message
SECONDS = 60  # per message
LISTS = 1_024  # in an ivf index
LISTED = 100_000  # most images for listing labels
MOST_LABELS = 1_000  # per image
HIGHEST = 2**63 - 1

_users: Counter[Path | None] = Counter()  # open objects per file in this process

# pymilvus logs a traceback for each error; our errors are one sentence
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)


@dataclass(eq=False)
class MilvusIndex(Engine):
    """Exact search in a Milvus collection.

    `where` is an address such as http://localhost:19530, or a file NAME.db, which milvus-lite manages. User and
    password are taken from the environment: MILVUS_TOKEN=user:password.

    >>> index = MilvusIndex(48, "http://localhost:19530")
    """

    shards: int = setting(1, "parts of a new collection that take writes at the same time", low=1, high=64)
    replicas: int = setting(1, "copies in memory, on as many query nodes", low=1, high=64)
    n_probe: int = setting(16, f"lists searched per query with index=ivf, of {LISTS}", low=1, high=LISTS)

    name = "milvus"
    indexes: ClassVar[tuple[str, ...]] = ("flat", "ivf")
    _closed = False

    def __len__(self) -> int:
        return self._count("")

    def flush(self) -> None:
        with self._sentences():
            for name in self._collections():
                self._client.flush(name, timeout=SECONDS)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._client.close()
        _users[self._file] -= 1
        if self._file is not None and not _users[self._file]:
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(str(self._file))

    def histogram(self, code: Codes, *, label: str | None = None, by: str = "first") -> np.ndarray | None:
        """Counts only if all images fit into one answer of Milvus."""
        (only,) = _filters(Asked(None, label))
        if self._count(only) >= MOST:
            return None
        packed, place, n_bits = self._vectors(code, by)
        distances, _ = self._search(packed, MOST, only, place, all_lists=True)[0]
        return np.bincount(distances, minlength=n_bits + 1)

    def count_at(self, code: Codes, distance: int, *, label: str | None = None, by: str = "first") -> int | None:
        (only,) = _filters(Asked(None, label))
        packed, place, _ = self._vectors(code, by)
        found = len(self._search(packed, MOST, only, place, _between(distance, distance), all_lists=True)[0][1])
        return found if found < MOST else None

    def labels(self, most: int = 1_000) -> list[str]:
        """The labels of a collection of at most 100,000 images, all of which are read."""
        if len(self) > LISTED:
            return []
        counted = Counter(label for _, _, _, _, labels, _ in self.stamps() for label in labels or ())
        return [label for label, _ in counted.most_common(most)]

    def _connect(self, where: str) -> None:
        self._file = _file(where)
        self._shown = re.sub(r"//[^/@]*@", "//", where)  # an address may contain a password
        self._alone = RLock()
        self._n_writes = 0
        self._n_confirmed = -1  # how many of our writes Milvus has confirmed
        self._failing = False
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
                # milvus-lite's process starts slowly on a busy machine
                if self._file is None or time.monotonic() - begin > SECONDS:
                    raise
                time.sleep(0.2)

    def _collections(self) -> list[str]:
        more = ["second", "meta"] if self.facts["second_bits"] else ["meta"]
        return [self.collection, *(f"{self.collection}_{end}" for end in more)]

    def _read_facts(self) -> dict[str, Any] | None:
        row = self._meta()
        return row["facts"] if row else row

    def _meta(self) -> dict[str, Any] | None:
        """Facts and the next id; None if there is no such collection; without a format if it is not ours."""
        place = f"{self.collection}_meta"
        with self._sentences():
            there = self._client.has_collection(place, timeout=SECONDS)
            ours = there and self._client.describe_collection(place, timeout=SECONDS)["description"] == FORMAT
            if not there and self._client.has_collection(self.collection, timeout=SECONDS):
                # half-created, or with codes only, as written by older versions
                found = self._client.describe_collection(self.collection, timeout=SECONDS)["description"]
                return None if found == FORMAT else {"facts": {"format": found}}
            if there and not ours:
                return {"facts": {}}
            if there and "NotLoad" in str(self._client.get_load_state(place)["state"]):
                self._client.load_collection(place, timeout=SECONDS)
        if not there:
            return None
        rows = self._query('name == "facts"', output_fields=["value"], place=place)
        return rows[0]["value"] if rows else None

    def _create(self, facts: dict[str, Any]) -> None:
        length, second = (8 * -(-facts[name] // 8) for name in ("n_bits", "second_bits"))
        labels = {"datatype": DataType.ARRAY, "element_type": DataType.INT64, "max_capacity": MOST_LABELS}
        number = {"datatype": DataType.INT64}
        keys = {"key": number, "path_key": number, "label_keys": labels, "item": {"datatype": DataType.JSON}}
        self._create_one(self.collection, length, "id", number, keys)
        if second:
            self._create_one(f"{self.collection}_second", second, "id", number, {"label_keys": labels})
        name = {"datatype": DataType.VARCHAR, "max_length": 40}
        self._create_one(f"{self.collection}_meta", 8, "name", name, {"value": {"datatype": DataType.JSON}})
        with self._sentences():
            self._client.load_collection(f"{self.collection}_meta", timeout=SECONDS)
        self._write_meta({"facts": facts, "next_id": 0})

    def _create_one(
        self, place: str, n_bits: int, key: str, kind: dict[str, Any], fields: dict[str, dict[str, Any]]
    ) -> None:
        with self._sentences():
            if self._client.has_collection(place, timeout=SECONDS):
                return
            schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False, description=FORMAT)
            schema.add_field(key, is_primary=True, **kind)
            schema.add_field("code", DataType.BINARY_VECTOR, dim=n_bits)
            for field, how in fields.items():
                schema.add_field(field, **how)
            index = self._client.prepare_index_params()
            index.add_index("code", **_index("flat"))
            how = {} if self._file else {"num_shards": self.shards}
            self._client.create_collection(place, schema=schema, index_params=index, timeout=SECONDS, **how)

    def _opened(self) -> None:
        how = {} if self._file else {"replica_number": self.replicas}
        with self._sentences():
            for place in self._collections():
                self._client.load_collection(place, timeout=SECONDS, **how)
        if self.kind == "ivf" and self.facts["index"] != "ivf":
            self.index = None
            raise UsageError(f"{self.path} has no ivf index; build it with: hashlens index build --index ivf")
        len(self)  # waits until Milvus has everything written so far

    def _write_meta(self, meta: dict[str, Any]) -> None:
        self._write("upsert", f"{self.collection}_meta", data=[{"name": "facts", "code": b"\0", "value": meta}])

    def _change_facts(self, **facts: Any) -> None:
        meta = self._meta() or {}
        self._write_meta(meta | {"facts": meta["facts"] | facts})
        self.facts = meta["facts"] | facts

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Lock for one thread at a time, because the next id is read and then written."""
        with self._alone:
            yield

    def _highest(self) -> int:
        self._n_confirmed = -1  # another process may have added images
        return int((self._meta() or {})["next_id"]) - 1

    def _take_ids(self, n: int, given: np.ndarray | None, roots: list[str]) -> np.ndarray:
        self._n_confirmed = -1
        meta = self._meta() or {}
        if given is not None:
            refuse(self._contains(np.sort(given)))
        ids = np.arange(meta["next_id"], meta["next_id"] + n) if given is None else given
        following = max(int(meta["next_id"]), int(ids.max()) + 1)
        if (following, roots) != (meta["next_id"], meta["facts"]["roots"]):
            self._write_meta({"facts": meta["facts"] | {"roots": roots}, "next_id": following})
        return ids

    def _insert_all(self, codes: Codes, ids: np.ndarray, items: pa.Table, keys: np.ndarray, paths: np.ndarray) -> None:
        rows = []
        every = zip(ids.tolist(), codes.packed, keys.tolist(), paths.tolist(), item_columns(items), strict=True)
        for id_, code, key, path_key, item in every:
            named = dict(zip(ITEMS.names, item, strict=True))
            if len(named["labels"] or ()) > MOST_LABELS:
                raise UsageError(f"{named['path']} has more than {MOST_LABELS:,} labels, the most that Milvus takes")
            row = {"id": id_, "code": code.tobytes(), "key": key, "path_key": path_key, "item": named}
            rows.append(row | {"label_keys": _label_keys(named["labels"])})
        if codes.second is not None:
            for row, code in zip(rows, codes.second.packed, strict=True):
                row["item"]["second"] = code.tobytes().hex()
            self._upsert(
                f"{self.collection}_second",
                [
                    {"id": row["id"], "code": code.tobytes(), "label_keys": row["label_keys"]}
                    for row, code in zip(rows, codes.second.packed, strict=True)
                ],
            )
        self._upsert(self.collection, rows)

    def _upsert(self, place: str, rows: list[dict[str, Any]]) -> None:
        for some in blocks(len(rows), ROWS):
            self._write("upsert", place, data=rows[some])

    def _set_mtimes(self, mtimes: dict[int, int]) -> None:
        for some in blocks(len(mtimes), ROWS):
            only = f"id in {list(mtimes)[some]}"
            rows = [dict(row) for row in self._query(only, output_fields=["*"])]
            for row in rows:
                row |= {"code": row["code"][0], "item": row["item"] | {"mtime": mtimes[row["id"]]}}
            self._upsert(self.collection, rows)

    def _delete(self, ids: np.ndarray) -> int:
        n = 0
        for some in blocks(len(ids), ROWS):  # Milvus counts ids to delete, whether or not they exist
            rows = self._query(_among(ids[some]), output_fields=["id", "key", "path_key"])
            keys = {row[name] for row in rows for name in ("key", "path_key")}
            noted = [{"name": f"removed:{key}", "code": b"\0", "value": {}} for key in sorted(keys)]
            there = [row["id"] for row in rows]
            n += len(there)
            if there:
                self._upsert(f"{self.collection}_meta", noted)
                for place in self._collections()[:-1]:
                    self._write("delete", place, ids=there)
        return n

    def _contains(self, ids: np.ndarray) -> np.ndarray:
        # usually all ids are higher than the existing ones, which one query shows
        if not self._query(f"id >= {ids[0]} and id <= {ids[-1]}", limit=1):
            return ids[:0]
        found = [row["id"] for rows in blocks(len(ids), ROWS) for row in self._query(_among(ids[rows]))]
        return np.unique(np.array(found, np.int64))

    def _known(self, column: str, keys: np.ndarray) -> np.ndarray:
        found = [
            row[column]
            for some in blocks(len(keys), ROWS)
            for row in self._query(f"{column} in {keys[some].tolist()}", output_fields=[column])
        ]
        return np.array(found, np.int64)

    def _removed(self, keys: np.ndarray) -> np.ndarray:
        found = []
        for some in blocks(len(keys), ROWS):
            names = ", ".join(f'"removed:{key}"' for key in keys[some].tolist())
            found += self._query(f"name in [{names}]", output_fields=["name"], place=f"{self.collection}_meta")
        return np.array([int(row["name"].partition(":")[2]) for row in found], np.int64)

    def _find(self, codes: Codes, k: int, asked: Asked, by: str) -> list[Found]:
        if k > MOST:
            k = min(k, len(self) if asked.among is None else len(asked.among))
        if k > MOST:
            raise UsageError(f"k must be <= {MOST:,} with Milvus, got {k:,}")
        packed, place, _ = self._vectors(codes, by)
        found = together([self._nearest_of(packed, k, only, place) for only in _filters(asked)])
        if by != "both":
            return found
        for row, (distances, _) in enumerate(found):  # all ties at the end are needed
            farthest = int(distances[:k][-1]) if len(distances) else 0
            found[row] = self._find_within(codes[row], farthest, asked, by)[0]
        return found

    def _nearest_of(self, packed: np.ndarray, k: int, only: str, place: str) -> list[Found]:
        limit = min(k + SPARE, MOST)
        found = self._search(packed, limit, only, place)
        for row, (distances, ids) in enumerate(found):
            if self.exact and len(distances) == limit and distances[-1] == distances[k - 1]:
                nearer = distances < distances[-1]
                tied = int(distances[-1])
                ties = self._lowest(packed[row : row + 1], tied, tied, only, place, k - int(nearer.sum()))
                found[row] = together([[(distances[nearer], ids[nearer])], [ties]])[0]
        return found

    def _find_within(self, codes: Codes, radius: int, asked: Asked, by: str) -> list[Found]:
        packed, place, _ = self._vectors(codes, by)
        found = together(
            [
                [self._lowest(packed[row : row + 1], 0, radius, only, place) for row in range(len(codes))]
                for only in _filters(asked)
            ]
        )
        if by == "both":
            found = [self._order_ties(codes[row], *one) for row, one in enumerate(found)]
        return found

    def _order_ties(self, code: Codes, distances: np.ndarray, ids: np.ndarray) -> Found:
        """Results ordered by both codes."""
        assert code.second is not None
        seconds = {row["id"]: int(row["second"], 16) for row in self._rows(np.sort(ids))}
        there = np.isin(ids, list(seconds))
        distances, ids = distances[there], ids[there]
        own = int.from_bytes(code.second.packed[0].tobytes())
        return ordered(distances, ids, [(seconds[id_] ^ own).bit_count() for id_ in ids.tolist()])

    def _vectors(self, codes: Codes, by: str) -> tuple[np.ndarray, str, int]:
        """The vectors to search with, the collection to search, and its number of bits."""
        if by == "second":
            assert codes.second is not None
            return codes.second.packed, f"{self.collection}_second", self.second_bits
        return codes.packed, self.collection, self.n_bits

    def _lowest(
        self,
        packed: np.ndarray,
        nearest: int,
        farthest: int,
        only: str,
        place: str,
        n: int = HIGHEST,
        span: tuple[int, int] | None = None,
        even: bool = True,
    ) -> Found:
        """The n lowest ids in `span` of codes from `nearest` to `farthest` bits away.

        If there are more than Milvus returns, a lower part of the span is queried first, then the rest. The part is
        chosen to contain a few more than n if ids are spread evenly; it is never more than half.
        """
        limits = [only, f"id >= {span[0]} and id <= {span[1]}" if span else ""]
        among = " and ".join(filter(None, limits))
        distances, ids = self._search(packed, MOST, among, place, _between(nearest, farthest), all_lists=True)[0]
        if len(ids) < MOST:
            lowest = np.argsort(ids)[:n]
            return ordered(distances[lowest], ids[lowest])
        low, high = span or (0, self._highest())
        middle = low + int((high - low) * (min(0.5, 4 * n / MOST) if even else 0.5))
        lower = self._lowest(packed, nearest, farthest, only, place, n, (low, middle), even)
        if len(lower[1]) >= n:
            return lower
        upper = self._lowest(packed, nearest, farthest, only, place, n - len(lower[1]), (middle + 1, high), False)
        return together([[lower], [upper]])[0]

    def _search(
        self,
        packed: np.ndarray,
        limit: int,
        only: str,
        place: str,
        bounds: dict[str, int] | None = None,
        all_lists: bool = False,
    ) -> list[Found]:
        found: list[Found] = []
        lists = {"nprobe": LISTS if all_lists or self.exact else self.n_probe} if self.facts["index"] == "ivf" else {}
        for rows in blocks(len(packed), max(1, ANSWERS // limit)):
            answer = self._read(
                "search",
                place,
                data=[code.tobytes() for code in packed[rows]],
                limit=limit,
                filter=only,
                search_params={"metric_type": "HAMMING", "params": (bounds or {}) | lists},
            )
            found += [ordered(hits.distances, hits.ids) for hits in answer]
        return found

    def _rows(self, ids: np.ndarray) -> list[dict[str, Any]]:
        found = []
        for some in blocks(len(ids), ROWS):
            for row in self._query(_among(ids[some]), output_fields=["id", "code", "item"]):
                item = {name: row["item"].get(name) for name in ("path", "labels", "second")}
                found.append({"id": row["id"], "code": bytes(row["code"][0]).hex(), **item})
        return sorted(found, key=lambda row: row["id"])

    def _page_after(self, id_: int, n: int) -> list[dict[str, Any]]:
        rows = self._query(f"id > {id_}", output_fields=["id", "item"], limit=n)
        return sorted(({"id": row["id"], **row["item"]} for row in rows), key=lambda row: row["id"])

    def _ids_from(self, start: int, n: int) -> list[int]:
        last = -1
        while start + n > 0:
            ids = sorted(row["id"] for row in self._query(f"id > {last}", limit=min(start + n, MOST)))
            if start < len(ids) or len(ids) < MOST:
                return ids[start : start + n]
            start, last = start - len(ids), ids[-1]
        return []

    def _first_from(self, id_: int) -> int | None:
        found = self._query(f"id >= {id_}", limit=1)
        return found[0]["id"] if found else None

    def _ids_labelled(self, label: str) -> np.ndarray:
        (only,) = _filters(Asked(None, label))
        found, last = [], -1
        while ids := sorted(row["id"] for row in self._query(f"{only} and id > {last}", limit=MOST)):
            found += ids
            last = ids[-1]
        return np.array(found, np.int64)

    def _build_index(self, kind: str) -> None:
        if self._file is not None and kind != "flat":
            raise UsageError(f"milvus-lite has no {kind} index; use a Milvus server")
        self.flush()
        how = {"replica_number": self.replicas} if self._file is None else {}
        with self._sentences():
            for place in self._collections()[:-1]:
                index = self._client.prepare_index_params()
                index.add_index("code", **_index(kind))
                self._client.release_collection(place, timeout=SECONDS)
                self._client.drop_index(place, "code", timeout=SECONDS)
                self._client.create_index(place, index, timeout=10 * SECONDS)
                self._client.load_collection(place, timeout=10 * SECONDS, **how)

    def _count(self, only: str) -> int:
        return int(self._query(only, output_fields=["count(*)"])[0]["count(*)"])

    def _query(self, only: str, **options: Any) -> list[dict[str, Any]]:
        place = options.pop("place", self.collection)
        return self._read("query", place, filter=only, **({"output_fields": ["id"]} | options))

    def _read(self, name: str, place: str, **options: Any) -> Any:
        """Read after Milvus has caught up with all our writes, unless it has confirmed that already."""
        n_writes = self._n_writes
        level = "Bounded" if self._n_confirmed == n_writes else "Strong"
        with self._sentences():
            answer = getattr(self._client, name)(place, consistency_level=level, timeout=SECONDS, **options)
        self._n_confirmed = n_writes
        return answer

    def _write(self, name: str, place: str, **options: Any) -> None:
        self._n_writes += 1
        try:
            with self._sentences():
                getattr(self._client, name)(place, timeout=SECONDS, **options)
        finally:
            self._n_writes += 1  # a read that began in the meantime confirms nothing

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        if self._failing:
            self._require_listening()
        try:
            yield
            self._failing = False
        except (MilvusException, grpc.RpcError) as error:
            reason = str(getattr(error, "message", "") or error).strip().splitlines()[0]
            if re.search(r"auth(entication)?\b.*(fail|check)|[Uu]nauthenticated|user(name)?.*password", reason):
                raise StorageError(
                    f"Milvus at {self._shown} does not let us in; check MILVUS_TOKEN=user:password"
                ) from None
            self._failing = True
            raise Unreachable(
                f"Milvus at {self._shown} failed ({reason}); check that it runs and has space, then rerun the same"
                " command"
            ) from error

    def _require_listening(self) -> None:
        """Check a server that did not answer before: callers learn at once, not after a minute, that it is gone."""
        if self._file is not None:
            return
        address = urlsplit(self._shown)
        try:
            socket.create_connection((address.hostname or "", address.port or 19530), 1).close()
        except OSError as error:
            raise Unreachable(f"Milvus at {self._shown} does not answer; check that it runs") from error


def _filters(asked: Asked) -> list[str]:
    """Filter expressions, each with as many ids as Milvus accepts."""
    label = [] if asked.label is None else [f"array_contains(label_keys, {_label_keys([asked.label])[0]})"]
    if asked.among is None:
        return [" and ".join(label)]
    return [" and ".join([*label, _among(asked.among[rows])]) for rows in blocks(len(asked.among), ROWS)]


def _among(ids: np.ndarray) -> str:
    return f"id in {ids.tolist()}"


def _between(nearest: int, farthest: int) -> dict[str, int]:
    """Range parameters: Milvus excludes the radius itself and includes the other bound."""
    return {"radius": farthest + 1, "range_filter": nearest}


def _label_keys(labels: Sequence[str] | None) -> list[int]:
    """Labels as numbers, because text would have to be quoted in filters."""
    return path_keys(pa.chunked_array([pa.array(labels or (), pa.string())])).tolist()


def _index(kind: str) -> dict[str, Any]:
    if kind == "flat":
        return {"index_type": "BIN_FLAT", "metric_type": "HAMMING"}
    return {"index_type": "BIN_IVF_FLAT", "metric_type": "HAMMING", "params": {"nlist": LISTS}}


def _file(where: str) -> Path | None:
    """The file that milvus-lite manages, or None if `where` is an address."""
    if "://" in where:
        return None
    if not where.endswith(".db"):
        raise UsageError(f"{where} is neither an address such as http://localhost:19530 nor a file NAME.db")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from a packaging tool that it imports
            import milvus_lite  # noqa: F401
    except ImportError as error:
        raise UsageError(f"Milvus in a file needs milvus-lite 2.5; run: {to_install('milvus-lite')}") from error
    return Path(where).resolve()
