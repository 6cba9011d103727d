"""Access, who may do what: host names, tokens with scopes, and other sites' pages.

A token is sent as `Authorization: Bearer TOKEN`, or as the password of Basic authentication, which browsers ask for.
"""

import base64
import binascii
import hmac
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from starlette.exceptions import HTTPException

from hashlens.errors import DataError, UsageError

READ, WRITE = "read", "write"  # write includes read
MIN_LENGTH = 16  # minimum characters of a token
LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN = ("/healthz", "/readyz")  # for load balancers, which have no token
CLICKS = "/v1/clicks"
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="hashlens", Basic realm="hashlens", charset="UTF-8"'}


@dataclass(frozen=True)
class Token:
    """The permissions of a token; of its text only the hash is kept."""

    digest: str
    scope: str
    expires: datetime | None = None

    @classmethod
    def of(cls, text: str, scope: str = READ, expires: datetime | None = None) -> "Token":
        if len(text) < MIN_LENGTH or not text.isascii() or not text.isprintable() or " " in text:
            raise UsageError(
                f"a token must have at least {MIN_LENGTH} characters of ASCII without spaces; make one with:"
                " openssl rand -hex 32"
            )
        return cls(sha256(text.encode()).hexdigest(), scope, expires)

    @property
    def name(self) -> str:
        """The name in the log, which does not reveal the token."""
        return self.digest[:8]


@dataclass(frozen=True)
class Access:
    """The rules of one server; `hosts` are the names it answers to, None for any."""

    hosts: tuple[str, ...] | None = LOOPBACK
    tokens: tuple[Token, ...] = ()
    anyone_reads: bool = True  # whether reading needs no token
    origins: tuple[str, ...] = ()  # other sites whose pages may send requests (CORS)
    anyone_clicks: bool = False  # whether clicks need no token, as on your own machine

    @property
    def takes_clicks(self) -> bool:
        """Whether anyone may click."""
        return self.anyone_clicks or any(token.scope == WRITE for token in self.tokens)

    def check(self, method: str, path: str, authorization: str | None) -> str | None:
        """Refuse a request without permission; returns the name of the token."""
        changes = path == "/v1/images" or path.startswith("/v1/images/")
        if path == CLICKS and method not in ("GET", "HEAD", "OPTIONS"):
            if not self.takes_clicks:
                raise HTTPException(403, "this server takes no clicks; start it with --write-token")
            changes = not self.anyone_clicks
        needed = WRITE if changes else READ
        if path in OPEN or method == "OPTIONS" or (needed == READ and self.anyone_reads and authorization is None):
            return None
        token = self._token(authorization)
        if token is None:
            if needed == READ and self.anyone_reads:
                return None
            raise HTTPException(401, "send a token, as: Authorization: Bearer TOKEN", CHALLENGE)
        if token.expires is not None and token.expires <= datetime.now(UTC):
            raise HTTPException(401, "this token has expired; ask for a new one", CHALLENGE)
        if needed == WRITE and token.scope != WRITE:
            raise HTTPException(403, "this token may only read; changing the index needs a token with the scope write")
        return token.name

    def _token(self, authorization: str | None) -> Token | None:
        """The token that was sent; compared with all tokens in constant time."""
        digest = sha256(_sent(authorization or "")).hexdigest()
        found = None
        for token in self.tokens:
            if hmac.compare_digest(digest, token.digest):
                found = token
        return found


ANYONE = Access()


def _sent(authorization: str) -> bytes:
    kind, _, value = authorization.partition(" ")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return value.strip().encode() if kind.lower() == "bearer" else b""


def read_tokens(path: Path) -> list[Token]:
    """Tokens from a file with one per line: the token, read or write, and optionally its last day (UTC).

    3f9a…c1  read
    77b0…42  write  2027-01-31
    """
    try:
        text, mode = path.read_text(encoding="utf-8"), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the token file {path} ({getattr(error, 'strerror', None) or error})") from error
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.S_IRGRP:
        raise UsageError(f"others can read the token file {path}; run: chmod 600 {path}")
    lines = (line.split("#")[0].split() for line in text.splitlines())
    tokens = [_parse(fields, f"{path}, line {number}") for number, fields in enumerate(lines, 1) if fields]
    if not tokens:
        raise DataError(f"the token file {path} has no tokens; write one per line: TOKEN read|write [YYYY-MM-DD]")
    return tokens


def _parse(fields: list[str], place: str) -> Token:
    expected = f"{place}: expected TOKEN read|write [YYYY-MM-DD]"
    if len(fields) not in (2, 3) or fields[1] not in (READ, WRITE):
        raise DataError(expected)
    try:
        last = datetime.fromisoformat(fields[2]) if len(fields) == 3 else None
        token = Token.of(fields[0], fields[1])
    except UsageError as error:
        raise DataError(f"{place}: {error.message}") from error
    except ValueError as error:
        raise DataError(expected) from error
    if last is None:
        return token
    end = last.replace(tzinfo=last.tzinfo or UTC)
    if len(fields[2]) == 10:  # a date: valid to the end of that day
        end = end.replace(hour=23, minute=59, second=59)
    return Token(token.digest, token.scope, end)


def as_tokens(read: Iterable[str], write: Iterable[str], file: Path | None) -> tuple[Token, ...]:
    given = [Token.of(text, READ) for text in read] + [Token.of(text, WRITE) for text in write]
    return (*given, *(read_tokens(file) if file is not None else []))
