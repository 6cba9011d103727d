"""Decoders: untrusted files in, pixels out, decoded in processes that can be killed and are replaced."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, BinaryIO

from prometheus_client import Counter

from hashlens.search.queries import unreadable
from hashlens.server.limits import busy

READ = 2**18  # bytes of an upload in memory on its way to a decoder
IMAGES = 1_000  # after which a decoder is replaced, in case of leaks
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**20),  # larger blocks are returned to the system once freed
}


class Decoder:
    """One process (`decoder.py`)."""

    def __init__(self, process: asyncio.subprocess.Process):
        assert process.stdin is not None and process.stdout is not None
        self.process, self.stdin, self.stdout = process, process.stdin, process.stdout
        self.n_left = IMAGES

    @classmethod
    async def start(cls, max_pixels: int, seconds: float) -> "Decoder":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hashlens.server.decoder", str(max_pixels), str(seconds)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # libraries print warnings about damaged files there
            env=os.environ | ENVIRONMENT,
        )
        decoder = cls(process)
        try:
            if not await decoder.answer():
                raise RuntimeError("decoders do not start; see: python -m hashlens.server.decoder 25000000 5")
        except BaseException:
            await asyncio.shield(decoder.end())
            raise
        return decoder

    async def answer(self) -> tuple[dict[str, Any], bytes] | None:
        """The answer; None if the process ended instead."""
        try:
            facts = json.loads(await self.stdout.readuntil(b"\n"))
            return facts, await self.stdout.readexactly(facts["n"])
        except asyncio.IncompleteReadError:
            return None

    async def ask(self, task: str, file: BinaryIO, size: int) -> tuple[dict[str, Any], bytes] | None:
        n = file.seek(0, os.SEEK_END)
        file.seek(0)
        self.n_left -= 1
        with suppress(ConnectionError):  # it died, which the empty answer shows
            self.stdin.write(json.dumps({"task": task, "size": size, "n": n}).encode() + b"\n")
            while chunk := await asyncio.to_thread(file.read, READ):
                self.stdin.write(chunk)
                await self.stdin.drain()
        return await self.answer()

    @property
    def alive(self) -> bool:
        return self.process.returncode is None and self.n_left > 0

    async def end(self) -> int:
        """Kill the process; returns its exit code if it had already ended."""
        with suppress(ProcessLookupError):
            if self.process.returncode is None and not self.stdout.at_eof():
                self.process.kill()
        code = await self.process.wait()
        self.process._transport.close()  # type: ignore[attr-defined]  # the pipes would be closed only when collected
        return code


class Decoders:
    """At most `n` processes, started when needed; at most `waiting` images wait for one.

    `seconds` limits the CPU time per image; callers limit the waiting time by cancelling.
    """

    def __init__(self, n: int, waiting: int, max_pixels: int, seconds: float, ended: Counter | None = None):
        self.room = n + waiting
        self.busy = 0  # images decoded or waiting
        self._max_pixels, self._seconds, self._ended = max_pixels, seconds, ended
        self._free = asyncio.Semaphore(n)
        self._idle: list[Decoder] = []
        self._all: set[Decoder] = set()

    async def warm_up(self) -> None:
        async with self._one():
            pass

    async def decode(self, task: str, file: BinaryIO, size: int, name: str) -> tuple[dict[str, Any], bytes]:
        """Facts of the image and the result of a task of `decoder.py`; the file is read when its turn comes."""
        if self.busy >= self.room:
            raise busy("too many images are waiting")
        self.busy += 1
        try:
            async with self._one() as decoder:
                found = await decoder.ask(task, file, size)
                if found is None:
                    raise unreadable(name, await self._why_ended(decoder))
        finally:
            self.busy -= 1
        if "reason" in found[0]:
            raise unreadable(name, found[0]["reason"])
        return found

    @asynccontextmanager
    async def _one(self) -> AsyncIterator[Decoder]:
        """A decoder, which is reused if all went well and killed otherwise."""
        async with self._free:
            decoder = self._idle.pop() if self._idle else None
            if decoder is None or not decoder.alive:
                if decoder is not None:
                    await self._end(decoder)
                decoder = await Decoder.start(self._max_pixels, self._seconds)
                self._all.add(decoder)
            try:
                yield decoder
            except BaseException:
                await asyncio.shield(self._end(decoder))
                raise
            self._idle.append(decoder)

    async def _why_ended(self, decoder: Decoder) -> str:
        code = await self._end(decoder)
        cpu = sys.platform != "win32" and code in (-signal.SIGXCPU, -signal.SIGKILL)
        if self._ended is not None:
            self._ended.labels("time" if cpu else "crash").inc()
        if cpu:
            return f"it takes more than {self._seconds:g} seconds to decode"
        return "damaged (it ended the decoder)"

    async def _end(self, decoder: Decoder) -> int:
        self._all.discard(decoder)
        return await decoder.end()

    async def close(self) -> None:
        for decoder in list(self._all):
            await self._end(decoder)
