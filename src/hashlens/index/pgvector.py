"""PostgreSQL with pgvector: codes in, neighbours out of a table (id bigint, code bit(n)), by exact Hamming distance.

The table is an ordinary one, to be joined with others by id. Additions and removals are whole or not there at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg
from psycopg import errors, sql

from hashlens.codes import Codes
from hashlens.errors import MismatchError, StorageError, UsageError
from hashlens.index.engines import Engine, Found, refuse

TABLE = "hashlens"
SECONDS = 10  # to connect

# a cast distance is one that no approximate index on the table serves, so that the answer stays exact
DISTANCE = "(code <~> %(code)s::bit({n_bits}))::int"
COPY_BEGIN, COPY_END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"


class PgvectorIndex(Engine):
    """Exact search in a table of PostgreSQL, which is created if it is not there.

    `where` is a connection string or URI as libpq takes it; a password may be in PGPASSWORD or ~/.pgpass instead.

    >>> index = PgvectorIndex(48, "postgresql://localhost/pictures")
    """

    def __init__(self, n_bits: int, where: str, collection: str = TABLE):
        super().__init__(n_bits)
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", collection):
            raise UsageError(f"{collection!r} is no name for a table; use small letters, digits and _, 63 at most")
        self.collection = collection
        self._where = where
        self._connection = self._connect()
        try:
            self._create()
            self._require_ours()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._ask("SELECT count(*) FROM {table}")[0][0]

    def close(self) -> None:
        self._connection.close()

    def _create(self) -> None:
        if self._ask("SELECT 1 FROM pg_extension WHERE extname = 'vector'") == []:
            self._switch_on()
        with _sentences():
            self._connection.execute(
                self._statement(
                    "CREATE TABLE IF NOT EXISTS {table}"
                    " (id bigint PRIMARY KEY CHECK (id >= 0), code bit({n_bits}) NOT NULL)"
                )
            )

    def _switch_on(self) -> None:
        try:
            self._connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except errors.InsufficientPrivilege as error:
            raise StorageError(
                "pgvector is not switched on in this database; ask its administrator for: CREATE EXTENSION vector"
            ) from error
        except psycopg.Error as error:
            raise StorageError(
                "this PostgreSQL has no pgvector; install it there (github.com/pgvector/pgvector), or use another"
            ) from error

    def _require_ours(self) -> None:
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
        connection = self._open()
        try:
            copy = self._statement("COPY {table} (id, code) FROM STDIN (FORMAT BINARY)")
            with _sentences(), connection.cursor() as cursor, cursor.copy(copy) as stream:
                stream.write(COPY_BEGIN)
                stream.write(_rows(codes, ids))
                stream.write(COPY_END)
        except errors.UniqueViolation:
            refuse(self.known(ids))
            raise

    def _delete(self, ids: np.ndarray) -> int:
        connection = self._open()
        with _sentences():
            statement = self._statement("DELETE FROM {table} WHERE id = ANY(%s::bigint[])")
            return connection.execute(statement, [ids.tolist()]).rowcount

    def _known(self, ids: np.ndarray) -> np.ndarray:
        found = self._ask("SELECT id FROM {table} WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id", ids=ids.tolist())
        return np.array(found, np.int64).reshape(-1)

    def _nearest(self, codes: Codes, k: int, among: np.ndarray | None) -> list[Found]:
        return self._answers(codes, among, [], k=k)

    def _within(self, codes: Codes, radius: int, among: np.ndarray | None) -> list[Found]:
        return self._answers(codes, among, [f"{DISTANCE} <= %(radius)s"], radius=radius, k=None)

    def _answers(self, codes: Codes, among: np.ndarray | None, conditions: list[str], **values: Any) -> list[Found]:
        if among is not None:
            conditions, values = [*conditions, "id = ANY(%(ids)s::bigint[])"], values | {"ids": among.tolist()}
        only = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        text = f"SELECT {DISTANCE} AS distance, id FROM {{table}} {only} ORDER BY distance, id LIMIT %(k)s::bigint"
        answers = []
        for bits in (codes.signs() > 0).astype(np.uint8) + ord("0"):
            found = np.array(self._ask(text, code=bits.tobytes().decode(), **values), np.int64).reshape(-1, 2)
            answers.append((found[:, 0].astype(np.int32), found[:, 1]))
        return answers

    def _ask(self, text: str, **values: Any) -> list[Any]:
        connection = self._open()
        with _sentences():
            return connection.execute(self._statement(text), values).fetchall()

    def _statement(self, text: str) -> sql.Composed:
        return sql.SQL(text).format(table=sql.Identifier(self.collection), n_bits=sql.Literal(self.n_bits))

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection.closed:  # lost since it was last used
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> psycopg.Connection[Any]:
        with _sentences():
            return psycopg.connect(self._where, autocommit=True, connect_timeout=SECONDS)


def _rows(codes: Codes, ids: np.ndarray) -> bytes:
    """The rows of a binary COPY: the number of fields, then each field behind its length; a bit string is its number of
    bits and its bytes, first bit highest, as codes are."""
    n_bytes = codes.packed.shape[1]
    row = np.dtype([
        ("fields", ">i2"), ("id_length", ">i4"), ("id", ">i8"),
        ("code_length", ">i4"), ("n_bits", ">i4"), ("code", "u1", (n_bytes,)),
    ])  # fmt: skip
    rows = np.zeros(len(ids), row)
    rows["fields"], rows["id_length"], rows["id"] = 2, 8, ids
    rows["code_length"], rows["n_bits"], rows["code"] = 4 + n_bytes, codes.n_bits, codes.packed
    return rows.tobytes()


@contextmanager
def _sentences() -> Iterator[None]:
    """Turn what PostgreSQL says into one sentence; ids that are there already are the caller's to name."""
    try:
        yield
    except errors.UniqueViolation:
        raise
    except psycopg.OperationalError as error:
        reason = f"{error}".strip().splitlines()[0]
        raise StorageError(f"PostgreSQL does not answer ({reason}); see that it runs and can be reached") from error
    except psycopg.Error as error:
        reason = f"{error}".strip().splitlines()[0]
        raise StorageError(f"PostgreSQL did not do what it was asked ({reason}); check the connection") from error
