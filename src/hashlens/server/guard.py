"""Guard: refuses requests that are unauthorised, from other sites, too large or too slow; logs and counts answers.

It checks bodies as they arrive, so that large ones are refused before they are stored anywhere.
"""

import asyncio
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hashlens.server.access import ANYONE, Access
from hashlens.server.limits import BODY_RATE, BODY_SECONDS, SEND_SECONDS, Limits, busy
from hashlens.server.metrics import Metrics
from hashlens.server.problems import printable, problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
ACCESS = logging.getLogger("hashlens.access")  # one line of JSON per request, if it has a handler
ALWAYS = "/healthz"  # answered even when busy
REQUEST = "hashlens.request"  # key of the request in the scope
SAFE = ("GET", "HEAD", "OPTIONS")


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: Any, metrics: Metrics, limits: Limits, access: Access = ANYONE):
        self.app, self.metrics, self.limits, self.access = app, metrics, limits, access
        self._in_progress: Counter[str] = Counter()  # requests per address
        own = HEADERS | ({"cross-origin-resource-policy": "cross-origin"} if access.origins else {})
        self._headers = [(name.encode(), value.encode()) for name, value in own.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive, send, self._headers)
        address = (scope.get("client") or ("",))[0]
        self._in_progress[address] += 1
        try:
            if scope["path"] != ALWAYS:
                self._require_room(address)
            self._check(request, scope)
            inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
            inner[REQUEST] = request
            await self.app(inner, request.receive, request.send)
            scope["route"] = inner.get("route")
        except HTTPException as error:
            await request.refuse(error.status_code, error.detail, error.headers)
        except (ClientDisconnect, TimeoutError):
            request.status = 499  # the client is gone or does not listen
        except Exception:
            logging.getLogger("hashlens").exception("a request failed")
            if request.status:
                raise
            await request.refuse(500, "internal error; the server's log has the details, please report it")
        finally:
            self._in_progress[address] -= 1
            if not self._in_progress[address]:
                del self._in_progress[address]
            self._record(request, scope, address)

    def _require_room(self, address: str) -> None:
        if self._in_progress[address] > self.limits.per_address:
            raise busy("too many requests from this address")
        if self._in_progress.total() > self.limits.max_connections:
            raise busy()

    def _check(self, request: "Request", scope: Scope) -> None:
        """Refuse a request by its headers, or set limits for its body."""
        headers = Headers(scope=scope)  # the first of equal names counts, as in the application
        host, access = headers.get("host", "").lower(), self.access
        if access.hosts is not None and _without_port(host) not in access.hosts:
            # against DNS rebinding: a foreign page whose host name points here could otherwise read everything
            names = " and ".join(access.hosts[:2])
            raise HTTPException(421, f"this server answers only under {names} (server option --hostname)")
        if scope["method"] not in SAFE and _cross_site(headers, host, access.origins):
            # browsers send these with the user's login, whatever page triggers them
            raise HTTPException(403, "requests from other sites are refused (server option --cors)")
        request.user = access.check(scope["method"], scope["path"], headers.get("authorization"))
        with_image = headers.get("content-type", "").lower().startswith("multipart/form-data")
        declared = headers.get("content-length", "")
        self.limits.require_body(int(declared) if declared.isdecimal() else 0, with_image)
        request.limit_body = lambda n_bytes: self.limits.require_body(n_bytes, with_image)

    def _record(self, request: "Request", scope: Scope, address: str) -> None:
        seconds = time.perf_counter() - request.start
        path = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(path, request.status).inc()
        self.metrics.seconds.labels(path).observe(seconds)
        if ACCESS.hasHandlers():
            line = {
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "request": request.id,
                "client": address,
                "user": request.user,
                "method": printable(scope["method"], 20),
                "path": printable(scope["path"], 200),
                "status": request.status,
                "received": request.n_received,
                "sent": request.n_sent,
                "ms": round(1000 * seconds, 2),
                **({"timing_ms": request.timing} if request.timing else {}),
            }
            ACCESS.info(json.dumps(line))


class Request:
    """One request: its body within limits, its answer with our headers, and its log entry."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, headers: list[tuple[bytes, bytes]]):
        self._scope, self._receive, self._send, self._headers = scope, receive, send, headers
        self.id, self.start = secrets.token_hex(8), time.perf_counter()
        self.status = 0  # none yet
        self.user: str | None = None  # name of the token
        self.timing: dict[str, float] = {}
        self.n_received = self.n_sent = 0
        self.limit_body: Callable[[int], None] = lambda n_bytes: None
        self._received = False

    async def receive(self) -> Message:
        if self._received:  # the next message says that the client has gone
            return await self._receive()
        left = self.start + BODY_SECONDS + self.n_received / BODY_RATE - time.perf_counter()
        try:
            async with asyncio.timeout(left):
                message = await self._receive()
        except TimeoutError as error:
            slow = f"the request comes too slowly; the limit is {BODY_RATE:,} bytes per second"
            raise HTTPException(408, slow, {"Connection": "close"}) from error
        self.n_received += len(message.get("body", b""))
        self._received = not message.get("more_body", False)
        self.limit_body(self.n_received)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = [*self._headers, (b"x-request-id", self.id.encode())]
            message["headers"] = [*message.get("headers", []), *own]
        elif self._scope["method"] == "HEAD":
            message["body"] = b""
        self.n_sent += len(message.get("body", b""))
        async with asyncio.timeout(SEND_SECONDS):
            await self._send(message)

    async def refuse(self, status: int, detail: str, headers: Any = None) -> None:
        await problem(status, detail, headers)(self._scope, self._receive, self.send)


def _cross_site(headers: Headers, host: str, origins: tuple[str, ...]) -> bool:
    """Whether a page of another site made a browser send this; other programs send neither header."""
    origin = headers.get("origin")
    if origin is not None and origin in origins:
        return False
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and urlsplit(origin).netloc.lower() != host


def _without_port(host: str) -> str:
    """
    >>> _without_port("[::1]:8000"), _without_port("localhost:8000")
    ('::1', 'localhost')
    """
    return host[1 : host.find("]")] if host.startswith("[") else host.rsplit(":", 1)[0]
