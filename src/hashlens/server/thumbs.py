"""Ids and their paths in, small JPEGs out, the last ones used kept in memory."""

from __future__ import annotations

import io
from collections import OrderedDict
from threading import Lock

from hashlens.thumbnails import Pictures


class Thumbs:
    """Thumbnails by id and size, `most` bytes of them at a time."""

    def __init__(self, pictures: Pictures, most: int):
        self.pictures, self.most = pictures, most
        self.n_bytes = 0
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._lock = Lock()

    def kept(self, id_: int, size: int) -> bytes | None:
        with self._lock:
            if (id_, size) in self._kept:
                self._kept.move_to_end((id_, size))
            return self._kept.get((id_, size))

    def make(self, id_: int, path: str, size: int) -> bytes | None:
        """The picture at `path` as JPEG; None if it is gone."""
        image = self.pictures.thumbnail(path, size)
        if image is None:
            return None
        file = io.BytesIO()
        image.save(file, "JPEG", quality=80)
        content = file.getvalue()
        with self._lock:
            self.n_bytes += len(content) - len(self._kept.pop((id_, size), b""))
            self._kept[id_, size] = content
            while self.n_bytes > self.most:
                self.n_bytes -= len(self._kept.popitem(last=False)[1])
        return content
