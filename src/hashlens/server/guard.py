"""Guard: refuses requests of another host or of too many bytes, adds security headers and counts answers.

It sees a body as it arrives, so that a large one is refused before it is stored anywhere.
"""

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hashlens.server.limits import Limits
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
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # bounds of the histogram


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: Any, registry: CollectorRegistry, limits: Limits, hosts: tuple[str, ...] | None):
        self.app, self.limits = app, limits
        self.hosts = hosts  # None: all
        self._requests = Counter("hashlens_requests", "Requests answered.", ["path", "status"], registry=registry)
        self._seconds = Histogram(
            "hashlens_request_seconds", "Seconds per request.", ["path"], buckets=SECONDS, registry=registry
        )

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
            await self.app(scope, self._checked(scope, receive), send_guarded)
        except HTTPException as error:
            await problem(error.status_code, error.detail, error.headers)(scope, receive, send_guarded)
        except ClientDisconnect:
            status = 499  # nobody is left to tell
        except Exception:
            logging.getLogger("hashlens").exception("a request failed")
            if started:
                raise
            sentence = "internal error; the server's log has the details, please report it"
            await problem(500, sentence)(scope, receive, send_guarded)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self._requests.labels(path, status).inc()
            self._seconds.labels(path).observe(time.perf_counter() - start)

    def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """Refuse a request by its headers, or while its body arrives."""
        headers = Headers(scope=scope)  # of equal names the first counts, as for the application
        if self.hosts is not None and _without_port(headers.get("host", "").lower()) not in self.hosts:
            # DNS rebinding: a page elsewhere whose name points here could otherwise read everything
            raise HTTPException(421, f"this server answers only under {' and '.join(self.hosts[:2])}")
        with_image = headers.get("content-type", "").lower().startswith("multipart/form-data")
        declared = headers.get("content-length", "")
        self.limits.require_body(int(declared) if declared.isdecimal() else 0, with_image)
        n_bytes = 0

        async def receive_limited() -> MutableMapping[str, Any]:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            self.limits.require_body(n_bytes, with_image)
            return message

        return receive_limited


def _without_port(host: str) -> str:
    """
    >>> _without_port("[::1]:8000"), _without_port("localhost:8000")
    ('::1', 'localhost')
    """
    return host[1 : host.find("]")] if host.startswith("[") else host.rsplit(":", 1)[0]
