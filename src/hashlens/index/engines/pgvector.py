"""PostgreSQL with pgvector: codes in, neighbours out of a table (id bigint, code bit(n)), by exact Hamming distance.

The table can be joined with others by id. Additions and removals are atomic.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg
from psycopg import errors, sql

from hashlens.codes import Codes
from hashlens.errors import MismatchError, StorageError
from hashlens.index.base import refuse
from hashlens.index.engines import Engine
from hashlens.index.order import Found, fill

SECONDS = 10  # to connect

# no approximate index on the table serves a cast distance, so the answer stays exact
DISTANCE = "(code <~> %(code)s::bit({n_bits}))::int"


class PgvectorIndex(Engine):
    """Exact search in a PostgreSQL table.

    `where` is a connection string or URI as libpq takes it; a password may be in PGPASSWORD or ~/.pgpass instead.

    >>> index = PgvectorIndex(48, "postgresql://localhost/images")
    """

    def __len__(self) -> int:
        return self._ask("SELECT count(*) FROM {table}")[0][0]

    def close(self) -> None:
        self._connection.close()

    def _connect(self, where: str) -> None:
        self._where = where
        with _sentences():
            self._connection = psycopg.connect(where, autocommit=True, connect_timeout=SECONDS)

    def _open_collection(self) -> None:
        try:
            self._connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except psycopg.Error as error:
            raise StorageError(
                "this database has no pgvector; ask its administrator to install it (github.com/pgvector/pgvector) and"
                " to run CREATE EXTENSION vector"
            ) from error
        columns = "id bigint PRIMARY KEY CHECK (id >= 0), code bit({n_bits}) NOT NULL"
        self._execute(f"CREATE TABLE IF NOT EXISTS {{table}} ({columns})")
        types = dict(
            self._ask(
                "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
                " WHERE attrelid = to_regclass(%(table)s) AND attname IN ('id', 'code')",
                table=self.collection,
            )
        )
        if types != {"id": "bigint", "code": f"bit({self.n_bits})"}:
            raise MismatchError(
                f"the table {self.collection} holds {types.get('code', 'something else')}, not bit({self.n_bits});"
                " choose another table, or encode with the same model"
            )

    def _highest(self) -> int:
        return self._ask("SELECT coalesce(max(id), -1) FROM {table}")[0][0]

    def _insert(self, codes: Codes, ids: np.ndarray) -> None:
        copy = self._statement("COPY {table} (id, code) FROM STDIN")
        try:
            with self._connected() as connection, connection.cursor() as cursor, cursor.copy(copy) as stream:
                rows = zip(ids.tolist(), _bits(codes), strict=True)
                stream.write("".join(f"{id_}\t{bits}\n" for id_, bits in rows))
        except errors.UniqueViolation:
            refuse(self.contains(ids))
            raise

    def _delete(self, ids: np.ndarray) -> int:
        return self._execute("DELETE FROM {table} WHERE id = ANY(%(ids)s::bigint[])", ids=ids.tolist()).rowcount

    def _contains(self, ids: np.ndarray) -> np.ndarray:
        found = self._ask("SELECT id FROM {table} WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id", ids=ids.tolist())
        return np.array(found, np.int64).reshape(-1)

    def _nearest(self, codes: Codes, k: int, among: np.ndarray | None, distances: np.ndarray, ids: np.ndarray) -> None:
        fill(self._answers(codes, among, "true", k=k), distances, ids)

    def _within(self, codes: Codes, radius: int, among: np.ndarray | None) -> list[Found]:
        return self._answers(codes, among, f"{DISTANCE} <= %(radius)s", radius=radius, k=None)

    def _answers(self, codes: Codes, among: np.ndarray | None, only: str, **values: Any) -> list[Found]:
        if among is not None:
            only, values = f"{only} AND id = ANY(%(ids)s::bigint[])", values | {"ids": among.tolist()}
        text = (
            f"SELECT {DISTANCE} AS distance, id FROM {{table}} WHERE {only} ORDER BY distance, id LIMIT %(k)s::bigint"
        )
        answers = []
        for bits in _bits(codes):
            found = np.array(self._ask(text, code=bits, **values), np.int64).reshape(-1, 2)
            answers.append((found[:, 0].astype(np.int32), found[:, 1]))
        return answers

    def _ask(self, text: str, **values: Any) -> list[Any]:
        return self._execute(text, **values).fetchall()

    def _execute(self, text: str, **values: Any) -> psycopg.Cursor[Any]:
        with self._connected() as connection:
            return connection.execute(self._statement(text), values)

    def _statement(self, text: str) -> sql.Composed:
        return sql.SQL(text).format(table=sql.Identifier(self.collection), n_bits=sql.Literal(self.n_bits))

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        if self._connection.closed:  # it was lost
            self._connect(self._where)
        with _sentences():
            yield self._connection


def _bits(codes: Codes) -> list[str]:
    """Codes as PostgreSQL writes them, such as 0110."""
    return [bits.tobytes().decode() for bits in (codes.signs() > 0).astype(np.uint8) + ord("0")]


@contextmanager
def _sentences() -> Iterator[None]:
    """Turn PostgreSQL's errors into one sentence; the caller names ids that are taken."""
    try:
        yield
    except errors.UniqueViolation:
        raise
    except psycopg.Error as error:
        failed = "does not answer" if isinstance(error, psycopg.OperationalError) else "failed"
        reason = f"{error}".strip().splitlines()[0]
        raise StorageError(f"PostgreSQL {failed} ({reason}); check that it runs and the connection") from error
