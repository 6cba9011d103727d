"""Service, shared by all requests: the searcher, a lane for each kind of work, the thumbnail cache and the counters."""

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cachetools import LRUCache
from PIL import Image
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from hashlens.codes import Codes
from hashlens.data.images import MAX_PIXELS
from hashlens.errors import HashlensError, OtherModel
from hashlens.machine import n_threads
from hashlens.search import Searcher
from hashlens.search.queries import QueryImage
from hashlens.server.decoders import Decoders
from hashlens.server.jobs import Job, find_duplicates, find_groups
from hashlens.server.limits import USUAL, Limits
from hashlens.server.metrics import Metrics
from hashlens.server.problems import printable
from hashlens.server.scrub import Scrub
from hashlens.server.workers import Result, Workers
from hashlens.server.writing import Writer

PROBE_SECONDS = 1.0


@dataclass
class Service:
    searcher: Searcher
    limits: Limits = USUAL
    images: Path | None = None  # the folder the images of the index were moved to
    add_to: Path | None = None  # the folder for images that clients add
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        limits = self.limits
        self.searcher.max_pixels = min(self.searcher.max_pixels, limits.max_pixels)
        # searches by id or code, and facts about images; waiting for the disk does not stop the others
        self.searches = Workers(limits.max_waiting, threads=max(4, n_threads()))
        self.uploads = Workers(limits.max_waiting)  # encoding of images
        self.writes = Workers(limits.max_waiting, threads=1)
        self.writer = Writer(self.searcher, self.add_to)
        self.jobs = [Job("duplicates", self.searcher, find_duplicates), Job("groups", self.searcher, find_groups)]
        self.thumbs: LRUCache[Any, bytes] = LRUCache(limits.thumbnail_cache, getsizeof=len)
        self.scrub = Scrub(self.searcher, limits.scrub_seconds, self.metrics)
        gauge = self.metrics.gauge
        gauge("hashlens_images", "Images in the index.", lambda: len(self.searcher.index))
        gauge("hashlens_busy", "Searches running or waiting for a thread.", lambda: self.searches.busy)
        gauge("hashlens_uploads", "Images being encoded or waiting for a thread.", lambda: self.uploads.busy)
        gauge("hashlens_decoding", "Images being decoded or waiting for a decoder.", lambda: self.decoders.busy)
        gauge("hashlens_thumbnail_bytes", "Bytes of cached thumbnails.", lambda: self.thumbs.currsize)
        gauge("hashlens_stale", "1 if the index on disk could not be loaded.", lambda: self.searcher.stale is not None)

    async def start(self) -> None:
        """Load, compile and start everything that the first requests would otherwise wait for."""
        limits = self.limits
        how = limits.decode_seconds, self.metrics.decoders_ended
        # they belong to the event loop that starts them
        self.decoders = Decoders(n_threads(), limits.max_waiting, limits.max_pixels, *how)
        self.thumbnailers = Decoders(
            n_threads(), limits.max_waiting, MAX_PIXELS, *how
        )  # images of the index may be larger than uploads
        ready = [self.searches.run(self.searcher.warm_up), self.thumbnailers.warm_up()]
        if self.searcher.takes_images:
            ready.append(self.decoders.warm_up())
        await asyncio.gather(*ready)
        gc.collect()
        gc.freeze()  # long-lived objects are not scanned again, which would pause all searches
        self.scrub.start()

    async def close(self) -> None:
        self.scrub.end()
        for job in self.jobs:
            job.end()
        self.searches.close()
        self.uploads.close()
        self.writes.close()
        await self.decoders.close()
        await self.thumbnailers.close()

    async def query(self, upload: UploadFile) -> QueryImage:
        """An uploaded image, decoded in another process and cropped for the model."""
        name, size = printable(upload.filename or ""), self.searcher.image_size()
        facts, content = await self.decoders.decode("pixels", upload.file, size, name or "given")
        pixels = np.frombuffer(content, np.uint8).reshape(size, size, 3)
        query = QueryImage(Image.fromarray(pixels), name=name or None)
        query.facts |= {"width": facts["width"], "height": facts["height"]}
        query.seconds, query.cropped_to = facts["seconds"], size
        return query

    async def on_image(self, lane: Workers, upload: UploadFile, work: Callable[[QueryImage], Result]) -> Result:
        """work(the uploaded image) in a lane; repeated if another model takes over meanwhile."""
        try:
            return await lane.run(work, await self.query(upload))
        except OtherModel:
            return await lane.run(work, await self.query(upload))

    async def require_ready(self) -> None:
        """Search for a code like a client; refuse if that takes too long or the index on disk is a different one."""
        why = f"a search took more than {PROBE_SECONDS:g} s"
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self.searches.run(self._probe)
            why = self.searcher.stale or ""
        except TimeoutError:
            pass
        except HashlensError as error:
            why = error.message
        if why:
            raise HTTPException(503, f"not ready: {why}", {"Retry-After": "5"})

    def _probe(self) -> None:
        index = self.searcher.now().index
        if len(index):
            self.searcher.search(Codes(np.zeros((1, -(-index.n_bits // 8)), np.uint8), index.n_bits), 1)
