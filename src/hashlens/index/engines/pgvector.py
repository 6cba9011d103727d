"""PostgreSQL with pgvector: codes with paths and labels in, neighbours by exact Hamming distance out.

NAME            id bigint, code bit(n), second bit(m), path, labels text[], size, mtime, hash, key, path_key
NAME_meta       one row: facts (jsonb), the next id, the number of images
NAME_removed    keys of removed images

The table can be joined with others by id. Additions and removals are atomic, and several processes can write: they wait
for each other. With `index=hnsw`, a search by k without a label is approximate.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import errors, sql

from hashlens.codes import Codes
from hashlens.errors import MismatchError, StorageError, Unreachable, UsageError
from hashlens.index.base import refuse
from hashlens.index.engines.server import FORMAT, Asked, Engine, item_columns
from hashlens.index.order import Found
from hashlens.settings import setting

SECONDS = 10  # to connect
SPARE = 64  # results of an approximate index beyond k, so that few ties at the end are missed
# a cast distance cannot use an approximate index on the table, so the answer stays exact
REFUSED = re.compile(r"FATAL: .*(does not exist|no pg_hba\.conf entry|permission denied)")
DISTANCE = "({column} <~> %(code)s::bit({n_bits}))::int"
COLUMNS = "id, code, second, path, labels, size, mtime, hash, key, path_key"


@dataclass(eq=False)
class PgvectorIndex(Engine):
    """Exact search in a PostgreSQL table.

    `where` is a connection string or URI as libpq takes it; a password may be in PGPASSWORD or ~/.pgpass instead.

    >>> index = PgvectorIndex(48, "postgresql://localhost/images")
    """

    ef_search: int = setting(100, "candidates that an hnsw index looks at", low=1, high=1_000)

    name = "pgvector"
    indexes: ClassVar[tuple[str, ...]] = ("flat", "hnsw")
    many_writers = True

    def __len__(self) -> int:
        return int(self._ask("SELECT n FROM {meta}")[0][0])

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def histogram(self, code: Codes, *, label: str | None = None, by: str = "first") -> np.ndarray:
        column, n_bits, bits, _ = self._column(code, by)
        only, values = _only(Asked(None, label))
        text = f"SELECT {DISTANCE} AS distance, count(*) FROM {{table}} WHERE {only} GROUP BY distance"
        counts = np.zeros(n_bits + 1, np.int64)
        for distance, n in self._ask(text, column=column, n_bits=n_bits, code=bits[0], **values):
            counts[distance] = n
        return counts

    def count_at(self, code: Codes, distance: int, *, label: str | None = None, by: str = "first") -> int:
        return int(self.histogram(code, label=label, by=by)[distance])

    def labels(self, most: int = 1_000) -> list[str]:
        text = "SELECT label FROM {table}, unnest(labels) AS label GROUP BY label ORDER BY count(*) DESC, min(id)"
        return [label for (label,) in self._ask(text + " LIMIT %(most)s", most=most)]

    def _connect(self, where: str) -> None:
        self._where = where
        self._local = threading.local()  # one connection per thread
        self._connections: list[psycopg.Connection[Any]] = []
        self._connection()

    def _connection(self) -> psycopg.Connection[Any]:
        found: psycopg.Connection[Any] | None = getattr(self._local, "connection", None)
        if found is None or found.closed:
            if found in self._connections:
                self._connections.remove(found)
            with _sentences():
                found = psycopg.connect(self._where, autocommit=True, connect_timeout=SECONDS)
                found.execute(sql.SQL("SET hnsw.ef_search = {}").format(sql.Literal(self.ef_search)))
                found.execute("SET hnsw.iterative_scan = relaxed_order")
            self._connections.append(found)
            self._local.connection = found
        return found

    def _read_facts(self) -> dict[str, Any] | None:
        there = self._ask(
            "SELECT to_regclass(quote_ident(%(table)s)), to_regclass(quote_ident(%(meta)s))",
            table=self.collection,
            meta=f"{self.collection}_meta",
        )[0]
        if there == (None, None):
            return None
        if None in there:
            return {"format": "of codes alone, or of something else"}
        try:
            found: dict[str, Any] = self._ask("SELECT facts FROM {meta}")[0][0]
            return found
        except (errors.UndefinedColumn, IndexError):
            return {}

    def _create(self, facts: dict[str, Any]) -> None:
        columns = (
            "id bigint PRIMARY KEY CHECK (id >= 0), code bit({n_bits}) NOT NULL, second bit({second_bits}),"
            " path text NOT NULL, labels text[], size bigint, mtime bigint, hash bigint, key bigint NOT NULL,"
            " path_key bigint NOT NULL"
        )
        lengths = {"n_bits": facts["n_bits"], "second_bits": facts["second_bits"] or 1}
        with self._writing(lock=False):
            # if two processes create it at the same time, the second waits and finds it
            self._execute("SELECT pg_advisory_xact_lock(hashtext(%(name)s))", name=f"hashlens {self.collection}")
            if self._read_facts() is not None:
                return
            try:
                self._execute("CREATE EXTENSION IF NOT EXISTS vector")
            except psycopg.Error as error:
                raise StorageError(
                    "this database has no pgvector; ask its administrator to install it (github.com/pgvector/pgvector)"
                    " and to run CREATE EXTENSION vector"
                ) from error
            self._execute(f"CREATE TABLE {{table}} ({columns})", **lengths)
            for column in ("key", "path_key"):
                self._execute("CREATE INDEX ON {table} ({column})", column=column)
            self._execute("CREATE INDEX ON {table} USING gin (labels)")
            self._execute("CREATE TABLE {removed} (key bigint PRIMARY KEY)")
            self._execute(
                "CREATE TABLE {meta} (one boolean PRIMARY KEY DEFAULT true CHECK (one), facts jsonb NOT NULL,"
                " next_id bigint NOT NULL DEFAULT 0, n bigint NOT NULL DEFAULT 0)"
            )
            self._execute("INSERT INTO {meta} (facts) VALUES (%(facts)s::jsonb)", facts=json.dumps(facts))

    def _opened(self) -> None:
        asked = "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
        where = "attrelid = to_regclass(quote_ident(%(table)s)) AND attnum > 0 AND NOT attisdropped"
        types = dict(self._ask(f"{asked} WHERE {where}", table=self.collection))
        if types.keys() < set(COLUMNS.split(", ")) or types["code"] != f"bit({self.n_bits})":
            raise MismatchError(
                f"the table {self.collection} has other columns than {FORMAT!r}; choose another collection"
            )
        if self.kind == "hnsw" and self.facts["index"] != "hnsw":
            self.index = None
            raise UsageError(f"{self.path} has no hnsw index; build it with: hashlens index build --index hnsw")

    def _change_facts(self, **facts: Any) -> None:
        self._execute("UPDATE {meta} SET facts = facts || %(facts)s::jsonb", facts=json.dumps(facts))
        self.facts = self.facts | facts

    @contextmanager
    def _writing(self, lock: bool = True) -> Iterator[None]:
        """One transaction; other writers wait for its end."""
        if getattr(self._local, "writing", False):
            yield
            return
        connection = self._connection()
        self._local.writing = True
        try:
            with _sentences(), connection.transaction():
                if lock:
                    self._execute("SELECT 1 FROM {meta} FOR UPDATE")
                yield
        finally:
            self._local.writing = False

    def _highest(self) -> int:
        return int(self._ask("SELECT next_id - 1 FROM {meta}")[0][0])

    def _take_ids(self, n: int, given: np.ndarray | None, roots: list[str]) -> np.ndarray:
        if given is not None:
            refuse(self.contains(given))
        first = self._highest() + 1
        ids = np.arange(first, first + n) if given is None else given
        self._execute(
            "UPDATE {meta} SET next_id = greatest(next_id, %(following)s), n = n + %(n)s, facts = facts ||"
            " %(facts)s::jsonb",
            following=int(ids.max()) + 1,
            n=n,
            facts=json.dumps({"roots": roots}),
        )
        return ids

    def _insert_all(self, codes: Codes, ids: np.ndarray, items: pa.Table, keys: np.ndarray, paths: np.ndarray) -> None:
        seconds: list[str | None] = [None] * len(ids) if codes.second is None else [*_bits(codes.second)]
        copy = self._statement(f"COPY {{table}} ({COLUMNS}) FROM STDIN")
        numbers = zip(ids.tolist(), _bits(codes.first), seconds, keys.tolist(), paths.tolist(), strict=True)
        with self._connection().cursor() as cursor, cursor.copy(copy) as stream:
            for (id_, code, second, key, path), item in zip(numbers, item_columns(items), strict=True):
                stream.write_row((id_, code, second, *item, key, path))

    def _delete(self, ids: np.ndarray) -> int:
        with self._writing():
            gone = self._execute(
                "WITH gone AS (DELETE FROM {table} WHERE id = ANY(%(ids)s::bigint[]) RETURNING key, path_key), noted AS"
                " (INSERT INTO {removed} SELECT key FROM gone UNION SELECT path_key FROM gone ON CONFLICT DO NOTHING)"
                " SELECT count(*) FROM gone",
                ids=ids.tolist(),
            ).fetchall()[0][0]
            self._execute("UPDATE {meta} SET n = n - %(gone)s", gone=gone)
        return int(gone)

    def _set_mtimes(self, mtimes: dict[int, int]) -> None:
        self._execute(
            "UPDATE {table} SET mtime = now.mtime FROM unnest(%(ids)s::bigint[], %(mtimes)s::bigint[])"
            " AS now (id, mtime) WHERE {table}.id = now.id",
            ids=list(mtimes),
            mtimes=list(mtimes.values()),
        )

    def _contains(self, ids: np.ndarray) -> np.ndarray:
        return self._numbers("SELECT id FROM {table} WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id", ids=ids.tolist())

    def _known(self, column: str, keys: np.ndarray) -> np.ndarray:
        text = "SELECT {column} FROM {table} WHERE {column} = ANY(%(keys)s::bigint[])"
        return self._numbers(text, column=column, keys=keys.tolist())

    def _removed(self, keys: np.ndarray) -> np.ndarray:
        return self._numbers("SELECT key FROM {removed} WHERE key = ANY(%(keys)s::bigint[])", keys=keys.tolist())

    def _find(self, codes: Codes, k: int, asked: Asked, by: str) -> list[Found]:
        if self.kind == "hnsw" and asked == Asked() and by != "second":
            return self._approximate(codes, k, by)
        return self._answers(codes, asked, by, k=k)

    def _find_within(self, codes: Codes, radius: int, asked: Asked, by: str) -> list[Found]:
        return self._answers(codes, asked, by, f"{DISTANCE} <= %(radius)s", radius=radius, k=None)

    def _answers(self, codes: Codes, asked: Asked, by: str, near: str = "true", **values: Any) -> list[Found]:
        only, more = _only(asked)
        column, n_bits, bits, seconds = self._column(codes, by)
        tied = ", (second <~> %(second)s::bit({second_bits}))::int" if by == "both" else ""
        text = (
            f"SELECT {DISTANCE} AS distance, id FROM {{table}} WHERE {near} AND {only} ORDER BY distance{tied}, id"
            " LIMIT %(k)s::bigint"
        )
        values |= more | {"column": column, "n_bits": n_bits, "second_bits": self.second_bits or 1}
        return [
            _found(self._ask(text, code=code, second=second, **values))
            for code, second in zip(bits, seconds, strict=True)
        ]

    def _approximate(self, codes: Codes, k: int, by: str) -> list[Found]:
        tied = ", (second <~> %(second)s::bit({second_bits}))::int" if by == "both" else ""
        near = "SELECT id, code, second FROM {table} ORDER BY code <~> %(code)s::bit({n_bits}) LIMIT %(most)s"
        text = f"SELECT {DISTANCE} AS distance, id FROM ({near}) AS near ORDER BY distance{tied}, id LIMIT %(k)s"
        column, n_bits, bits, seconds = self._column(codes, by)
        values = {"column": column, "n_bits": n_bits, "second_bits": self.second_bits or 1, "most": k + SPARE, "k": k}
        return [
            _found(self._ask(text, code=code, second=second, **values))
            for code, second in zip(bits, seconds, strict=True)
        ]

    def _column(self, codes: Codes, by: str) -> tuple[str, int, list[str], list[str | None]]:
        """The column for distances, its length, and the bits of the queries and of their second codes."""
        second = codes.second if by != "first" else None
        seconds: list[str | None] = [None] * len(codes) if second is None else [*_bits(second)]
        if by == "second" and second is not None:
            return "second", self.second_bits, _bits(second), seconds
        return "code", self.n_bits, _bits(codes.first), seconds

    def _rows(self, ids: np.ndarray) -> list[dict[str, Any]]:
        text = "SELECT id, path, labels, code::text, second::text FROM {table} WHERE id = ANY(%(ids)s::bigint[])"
        names = ("id", "path", "labels", "code", "second")
        rows = [dict(zip(names, row, strict=True)) for row in self._ask(f"{text} ORDER BY id", ids=ids.tolist())]
        for row in rows:
            row |= {name: _hex(row[name]) for name in ("code", "second")}
        return rows

    def _page_after(self, id_: int, n: int) -> list[dict[str, Any]]:
        names = ("id", "path", "labels", "size", "mtime", "hash")
        text = f"SELECT {', '.join(names)} FROM {{table}} WHERE id > %(id)s ORDER BY id LIMIT %(n)s"
        return [dict(zip(names, row, strict=True)) for row in self._ask(text, id=id_, n=n)]

    def _ids_from(self, start: int, n: int) -> list[int]:
        text = "SELECT id FROM {table} ORDER BY id OFFSET %(start)s LIMIT %(n)s"
        return [id_ for (id_,) in self._ask(text, start=start, n=n)]

    def _first_from(self, id_: int) -> int | None:
        found = self._ask("SELECT id FROM {table} WHERE id >= %(id)s ORDER BY id LIMIT 1", id=id_)
        return found[0][0] if found else None

    def _ids_labelled(self, label: str) -> np.ndarray:
        only, values = _only(Asked(None, label))
        return self._numbers(f"SELECT id FROM {{table}} WHERE {only} ORDER BY id", **values)

    def _build_index(self, kind: str) -> None:
        with self._writing():
            self._execute("DROP INDEX IF EXISTS {hnsw}")
            if kind == "hnsw":
                self._execute("CREATE INDEX {hnsw} ON {table} USING hnsw (code bit_hamming_ops)")

    def _numbers(self, text: str, **values: Any) -> np.ndarray:
        return np.array(self._ask(text, **values), np.int64).reshape(-1)

    def _ask(self, text: str, **values: Any) -> list[Any]:
        """The rows of a query, which is repeated if the connection was lost outside a transaction."""
        try:
            return self._execute(text, **values).fetchall()
        except Unreachable:
            if getattr(self._local, "writing", False) or not self._local.connection.closed:
                raise
            return self._execute(text, **values).fetchall()

    def _execute(self, text: str, **values: Any) -> psycopg.Cursor[Any]:
        names = {name: values.pop(name) for name in ("n_bits", "second_bits", "column") if name in values}
        connection = self._connection()
        with _sentences():
            return connection.execute(self._statement(text, **names), values)

    def _statement(self, text: str, column: str = "code", **lengths: int) -> sql.Composed:
        names = {end: sql.Identifier(f"{self.collection}_{end}") for end in ("meta", "removed", "hnsw")}
        numbers = {name: sql.Literal(value) for name, value in lengths.items()}
        return sql.SQL(text).format(
            table=sql.Identifier(self.collection), column=sql.Identifier(column), **names, **numbers
        )


def _only(asked: Asked) -> tuple[str, dict[str, Any]]:
    conditions, values = ["true"], dict[str, Any]()
    if asked.among is not None:
        conditions.append("id = ANY(%(ids)s::bigint[])")
        values["ids"] = asked.among.tolist()
    if asked.label is not None:
        conditions.append("labels @> ARRAY[%(label)s::text]")
        values["label"] = asked.label
    return " AND ".join(conditions), values


def _found(rows: list[tuple[int, int]]) -> Found:
    found = np.array(rows, np.int64).reshape(-1, 2)
    return found[:, 0].astype(np.int32), found[:, 1]


def _bits(codes: Codes) -> list[str]:
    """Codes in PostgreSQL's notation, such as 0110."""
    return [bits.tobytes().decode() for bits in (codes.signs() > 0).astype(np.uint8) + ord("0")]


def _hex(bits: str | None) -> str | None:
    if bits is None:
        return None
    return np.packbits(np.frombuffer(bits.encode(), np.uint8) - ord("0")).tobytes().hex()


@contextmanager
def _sentences() -> Iterator[None]:
    """Turn PostgreSQL's errors into one sentence, without the connection string, which may have a password."""
    try:
        yield
    except errors.UndefinedColumn:
        raise
    except psycopg.OperationalError as error:
        reason = f"{error}".strip().splitlines()[0]
        remedy = "check that it runs, and its address"
        if "authentication" in f"{error}" or "password" in f"{error}":
            reason, remedy = "it refuses this user and password", "check the connection, PGPASSWORD or ~/.pgpass"
            raise StorageError(f"PostgreSQL does not let us in ({reason}); {remedy}") from None
        if REFUSED.search(reason):  # it answers, and retrying will not help
            said = reason.rpartition("FATAL:")[2].strip()
            raise StorageError(f"PostgreSQL does not let us in ({said}); check user and database of --at") from error
        if (error.sqlstate or "").startswith("53"):  # it answers, but has no disk, memory or connections left
            raise StorageError(f"PostgreSQL has no room ({reason}); free some, then rerun the same command") from error
        raise Unreachable(f"PostgreSQL does not answer ({reason}); {remedy}") from error
    except psycopg.ProgrammingError as error:
        if error.sqlstate is None:  # nothing was sent yet: libpq quotes input that it cannot parse
            raise UsageError(
                "that is no connection to PostgreSQL; give one such as postgresql://localhost/images"
            ) from None
        raise StorageError(f"PostgreSQL failed ({_first_line(error)}); check its rights and its log") from error
    except psycopg.Error as error:
        raise StorageError(f"PostgreSQL failed ({_first_line(error)}); check its log") from error


def _first_line(error: psycopg.Error) -> str:
    return f"{error}".strip().splitlines()[0]
