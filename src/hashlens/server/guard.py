"""Guard: refuses requests of another host or of too many bytes, adds security headers and counts answers.

It sees a body as it arrives, so that a large one is refused before it is stored anywhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hashlens.server.metrics import Metrics
from hashlens.server.problems import problem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
FORM = 65_536  # bytes of a form besides its image


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: Any, metrics: Metrics, max_upload: int, hosts: tuple[str, ...] | None):
        self.app, self.metrics, self.max_upload = app, metrics, max_upload
        self.hosts = hosts  # None: all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, started = time.perf_counter(), 500, False

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        try:
            if refusal := self._refuse(scope):
                await problem(refusal.status_code, refusal.detail, dict(refusal.headers or {}))(
                    scope, receive, send_guarded
                )
            else:
                await self.app(scope, self._limited(receive), send_guarded)
        except ClientDisconnect:
            status = 499  # nobody is left to tell
        except Exception:
            logging.getLogger("hashlens").exception("a request failed")
            if started:
                raise
            sentence = "internal error; the server's log has the details, please report it"
            await problem(500, sentence)(scope, receive, send_guarded)
        finally:
            route = scope.get("route")
            self.metrics.add(getattr(route, "path", "other"), status, time.perf_counter() - start)

    def _refuse(self, scope: Scope) -> HTTPException | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.hosts is not None and _without_port(host) not in self.hosts:
            # DNS rebinding: a page elsewhere whose name points here could otherwise read everything
            return HTTPException(421, f"this server answers only under {' and '.join(self.hosts[:2])}")
        length = headers.get(b"content-length", b"")
        return self._too_large() if length.isdigit() and int(length) > self.max_upload + FORM else None

    def _limited(self, receive: Receive) -> Receive:
        n_bytes = 0

        async def receive_limited() -> MutableMapping[str, Any]:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > self.max_upload + FORM:
                raise self._too_large()
            return message

        return receive_limited

    def _too_large(self) -> HTTPException:
        return HTTPException(413, too_large(self.max_upload), {"Connection": "close"})


def too_large(max_upload: int) -> str:
    return f"the image is too large; the limit is {max_upload / 1e6:g} MB (server option --max-upload)"


def _without_port(host: str) -> str:
    """
    >>> _without_port("[::1]:8000"), _without_port("localhost:8000")
    ('::1', 'localhost')
    """
    return host[1 : host.find("]")] if host.startswith("[") else host.rsplit(":", 1)[0]
