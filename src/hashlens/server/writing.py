"""Writing: clients' additions and removals of images in, answers out once the change is on disk.

An added image is kept in a folder of the server, under a name made from its content; the file is written before the
index names it. Adding the same image again finds the first one.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa
from starlette.exceptions import HTTPException

from hashlens.clicks.file import append_clicks, triplets_of
from hashlens.codes import Codes
from hashlens.codes.encode import stamps_of
from hashlens.codes.folder import STAMPS
from hashlens.errors import Busy, HashlensError, OtherModel, UsageError
from hashlens.files import replacing, storage_errors, sync
from hashlens.index.engines.server import Engine
from hashlens.index.folder import IndexFolder
from hashlens.search import NoSuchImage, Searcher
from hashlens.search.queries import QueryImage
from hashlens.server.limits import busy

ENDINGS = {b"\xff\xd8": "jpg", b"\x89PNG": "png", b"RIFF": "webp", b"BM": "bmp", b"GIF8": "gif"}  # else TIFF
WAIT_SECONDS = 5.0  # to wait for another process that changes the index
Result = TypeVar("Result")


class Writer:
    """Changes one index; called by one thread at a time."""

    def __init__(self, searcher: Searcher, folder: Path | None):
        self.searcher = searcher
        self.folder = None if folder is None else folder.absolute()

    def require_folder(self) -> Path:
        if self.folder is None:
            raise UsageError("this server takes no new images; start it with --add-to FOLDER")
        return self.folder

    def add(self, file: BinaryIO, query: QueryImage, labels: list[str]) -> tuple[dict[str, Any], bool]:
        """The item of an image, and whether it is new."""
        now, folder = self.searcher.now(), self.require_folder()
        self._require_index(now)
        code = now.encode(query).code
        path = folder / _name(file)
        if (item := self.searcher.on_disk(lambda now: _item(now, code, path.as_posix()))) is not None:
            return item, False
        existed = path.exists()
        if not existed:
            _keep(file, path)
        stamps = {name: [value] for name, value in zip(STAMPS, stamps_of(path.as_posix()), strict=True)}
        shown = {"path": [path.as_posix()], "labels": pa.array([labels or None], pa.list_(pa.string()))}
        items = pa.table(shown | stamps)
        try:
            (id_,) = self._change(lambda index: index.add(code, items, join=False), now.index.model).tolist()
        except BaseException:
            if not existed:
                path.unlink(missing_ok=True)
            raise
        return self.searcher.on_disk(lambda now: now.item(id_)), True

    def remove(self, id_: int) -> None:
        """Remove an image from the index, and its file if it was added here."""
        now = self.searcher.now()
        self._require_index(now)
        path = Path(self.searcher.on_disk(lambda now: now.item(id_))["path"])

        def remove(index: IndexFolder | Engine) -> int:
            """Remove the id, unless another index with other images has replaced this one."""
            item = index.lookup([id_]).get(id_)
            return index.remove([id_]) if item is not None and Path(item["path"]) == path else 0

        if not self._change(remove):
            raise NoSuchImage(f"the index has no image {id_}; it was removed, or never added")
        if self.folder is not None and path.is_relative_to(self.folder):
            path.unlink(missing_ok=True)

    def require_clicks(self, now: Searcher) -> Path:
        """The folder of the index, where clicks are kept; refuses if clicks are impossible."""
        if now.engine is not None or not isinstance(now.index, IndexFolder):
            raise UsageError(
                "clicks are kept beside an index folder that is searched here; build one with: index build"
            )
        return now.index.path

    def click(self, query: int, more: list[int], less: list[int]) -> dict[str, int]:
        """Save marks on the results of a query; returns the numbers of new triplets and of all."""
        now = self.searcher.now()
        folder = self.require_clicks(now)
        path, near, far = (
            [now.item(id_)["path"] for id_ in ids] for ids in ([query], more, less)
        )  # refuses ids that are not in the index
        triplets = triplets_of(path[0], near, far)
        return {"triplets": len(triplets), "total": append_clicks(folder, triplets)}

    def join_parts(self) -> None:
        """Join the parts that additions have made; if that is impossible now, the next call does it."""
        with suppress(HashlensError, HTTPException):
            index = self.searcher.now().index
            if isinstance(index, IndexFolder) and not index.is_tidy:
                self._change(IndexFolder.join)

    def _require_index(self, now: Searcher) -> None:
        if isinstance(now.index, Engine):
            if not now.index.many_writers:
                raise UsageError(
                    f"only one process may add to {now.index.name}; use: hashlens index add, or index sync"
                )
            return
        if now.engine is not None or not isinstance(now.index, IndexFolder):
            raise UsageError("only an index folder or PostgreSQL can be changed here, not a codes folder or a copy")
        if source := now.index.facts.get("source"):
            raise UsageError(f"this index follows {source}; add and remove images there")

    def _change(self, change: Callable[[Any], Result], model: dict[str, str] | None = None) -> Result:
        """Change a separate copy of the index, which then replaces the searched one; `model` made the codes to add."""
        if isinstance(self.searcher.index, Engine):
            return change(self.searcher.index)
        end = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                with self.searcher.loading, self._changing():
                    before = self.searcher.index
                    index = IndexFolder.open(before.path, before)
                    if len({one["fingerprint"] for one in (index.model, before.model, model or before.model)}) > 1:
                        raise OtherModel(f"another model has taken over {index.path}; try again")
                    result = change(index)
                    self.searcher.index, self.searcher.stale = index, None
                    return result
            except Busy as error:
                if time.monotonic() > end:
                    raise busy("another process is changing the index", 5) from error
                time.sleep(0.05)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Context in which searches use the index before the change and do not wait."""
        self.searcher.changing = True
        try:
            yield
        finally:
            self.searcher.changing = False


def _name(file: BinaryIO) -> str:
    file.seek(0)
    start = file.read(8)
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(2**20):
        digest.update(chunk)
    ending = next((ending for sign, ending in ENDINGS.items() if start.startswith(sign)), "tif")
    if start[4:] == b"ftyp":
        ending = "heic"
    return f"{digest.hexdigest()[:2]}/{digest.hexdigest()[:40]}.{ending}"


def _keep(file: BinaryIO, path: Path) -> None:
    file.seek(0)
    with replacing(path) as temporary, temporary.open("wb") as copy:
        shutil.copyfileobj(file, copy)
    with storage_errors(path):
        sync(path.parent)
        sync(path.parent.parent)


def _item(now: Searcher, code: Codes, path: str) -> dict[str, Any] | None:
    """The image with this code and path, if it is in the index."""
    ids = now.index.within(code, 0)[0][1]
    return next((item for item in now.index.lookup(ids).values() if os.fspath(item["path"]) == path), None)
