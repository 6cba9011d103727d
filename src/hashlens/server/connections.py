"""Connections: closes idle, slow and excess ones, so that there is always room for the next.

uvicorn limits none of these. A connection counts as waiting until the headers of a request have arrived, and again
after the answer; if all places are taken, a new connection replaces the one that has waited longest.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hashlens.server.limits import HEADER_SECONDS, SEND_SECONDS, Limits

IDLE_SECONDS = 1.0  # after which a waiting connection may be closed for another
SPARE = 50  # connections beyond the limit, which get a message of refusal, or /healthz answered
FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Connection(H11Protocol):
    """One connection of a client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waiting_since: float | None = self.loop.time()  # for headers
        self.sending_since: float | None = None  # since when the client has not taken data
        server: Server = self.config.hashlens_server  # type: ignore[attr-defined]
        if not server.has_room(self):
            transport.write(FULL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.waiting_since = None

    def on_response_complete(self) -> None:
        self.waiting_since = self.loop.time()  # first, because the next request may have arrived already
        super().on_response_complete()
        if self.cycle is not None and not self.cycle.response_complete:
            self.waiting_since = None

    def is_late(self, now: float) -> bool:
        """Whether headers are overdue, or an answer is not taken."""
        if not self.transport.get_write_buffer_size():
            self.sending_since = None
        elif self.sending_since is None:
            self.sending_since = now
        return (self.waiting_since is not None and now - self.waiting_since > HEADER_SECONDS) or (
            self.sending_since is not None and now - self.sending_since > SEND_SECONDS
        )


class Server(uvicorn.Server):
    """uvicorn's server with these limits; `proxy` may have any number of connections, for all its clients."""

    def __init__(self, config: uvicorn.Config, limits: Limits, proxy: str | None):
        super().__init__(config)
        config.hashlens_server = self  # type: ignore[attr-defined]  # all that a connection knows is its config
        self._limits, self._proxy = limits, proxy

    def has_room(self, new: Connection) -> bool:
        """Whether a new connection may stay; if necessary, a waiting one is closed for it.

        An address may have more connections than allowed requests, so that the application can refuse these with a
        message, but not more than half of all connections.
        """
        everyone: Any = self.server_state.connections
        most, address = self._limits.max_connections, _address(new)
        neighbours = [other for other in everyone if _address(other) == address]
        for group, usual, limit in ((neighbours, self._limits.per_address, most // 2), (everyone, most, most + SPARE)):
            if group is neighbours and address == self._proxy:
                continue
            idle = 0 if len(group) > limit else IDLE_SECONDS
            if len(group) > usual and not _close_oldest(group, new, idle) and len(group) > limit:
                return False
        return True

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once a second
            now = asyncio.get_running_loop().time()
            for connection in [one for one in self.server_state.connections if one.is_late(now)]:  # type: ignore[union-attr]
                connection.transport.abort()
        return await super().on_tick(counter)


def _address(connection: Connection) -> str:
    return connection.client[0] if connection.client else ""


def _close_oldest(connections: Any, new: Connection, idle: float) -> bool:
    """Close the connection that has waited longest, if it was idle for that many seconds."""
    waiting = [one for one in connections if one.waiting_since is not None and one is not new]
    oldest = min(waiting, key=lambda one: one.waiting_since, default=None)
    if oldest is None or new.loop.time() - oldest.waiting_since < idle:
        return False
    oldest.transport.abort()
    return True
