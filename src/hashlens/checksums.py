"""Checksums: files in, the same files out, or one sentence that names the damaged file and what repairs it.

JSON      `write_sealed` adds the checksum of all other entries; `read_sealed` refuses a file that does not agree.
arrays    The sum of a file is XXH3 (128 bits) of the XXH3 (64 bits) of its blocks of 64 KiB, so that a file can be
          compared as a whole or, where the sums of the blocks are kept too, block by block when they are first touched.
tensors   A safetensors file has the checksum of everything else in its metadata.

They notice damage, not forgery; schema.py decides what a stranger's file may say.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from hashlens.addresses import Place
from hashlens.errors import Damaged
from hashlens.files import json_text, replacing, write_text
from hashlens.schema import conform, optional, parse_json, whole

BLOCK = 1 << 16
READ = 16 * BLOCK  # of a file at a time
XXH3 = re.compile(r"[0-9a-f]{32}")
FILE = {"bytes": whole(1), "xxh3": XXH3}  # what a manifest says of a file
CHECKSUM = "checksum"
BLANK = "0" * 32


def damaged(path: Place, why: object, remedy: str) -> Damaged:
    return Damaged(path, f"is damaged ({why}); {remedy}")


def write_sealed(path: Place, value: dict[str, Any], copy: Path | None = None) -> None:
    """The copy is on disk first, so that a full disk cannot come between the two."""
    text = json_text(value | {CHECKSUM: _seal(value)})
    if copy is not None:
        with copy.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    write_text(path, text)


def read_sealed(path: Place) -> dict[str, Any]:
    """What `write_sealed` wrote; a ValueError if it has changed since.

    A file without a checksum is older than checksums; its reader knows by its format whether that may be.
    """
    value = parse_json(path.read_bytes())
    if type(value) is not dict:
        raise ValueError("it is not a JSON object")
    if CHECKSUM in value and value.pop(CHECKSUM) != _seal(value):
        raise ValueError("it has changed since it was written")
    return value


def _seal(value: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True).encode())


def block_sums(content: Any) -> np.ndarray:
    """(blocks,) uint64 of bytes or an array of bytes."""
    view = memoryview(content)
    sums = [xxhash.xxh3_64_intdigest(view[start : start + BLOCK]) for start in range(0, len(view), BLOCK)]
    return np.array(sums, np.uint64)


def sum_of(blocks: np.ndarray) -> str:
    return xxhash.xxh3_128_hexdigest(blocks.astype("<u8", copy=False).tobytes())


def describe_file(path: Path) -> dict[str, Any]:
    """What a manifest says of a file that has just been written."""
    content = np.memmap(path, np.uint8, "r")
    return {"bytes": len(content), "xxh3": sum_of(block_sums(content))}


def hash_of(content: bytes) -> int:
    """XXH3 (64 bits), as a signed number: the same for the same content."""
    return int.from_bytes(xxhash.xxh3_64_digest(content), "big", signed=True)


def hash_of_file(path: Path | str) -> int:
    """`hash_of` the content of a file."""
    digest = xxhash.xxh3_64()
    with open(path, "rb") as file:  # noqa: PTH123 - most are small
        while chunk := file.read(READ):
            digest.update(chunk)
    return int.from_bytes(digest.digest(), "big", signed=True)


def compare_file(
    path: Path, facts: Mapping[str, Any], remedy: str, pause: Callable[[int], Any] = lambda n_bytes: None
) -> None:
    """Read a file and compare it with its sum; `pause` is called with the number of bytes after every few blocks.

    It is not mapped, since a mapped file that is cut short in the middle of this ends the process.
    """
    sums, n_bytes = [np.empty(0, np.uint64)], 0
    with _readable(path, remedy), path.open("rb") as file:
        while chunk := file.read(READ):
            sums.append(block_sums(chunk))
            n_bytes += len(chunk)
            pause(len(chunk))
    _require_size(path, n_bytes, facts, remedy)
    if sum_of(np.concatenate(sums)) != facts["xxh3"]:
        raise damaged(path, "it has changed since it was written", remedy)


@contextmanager
def _readable(path: Path, remedy: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise Damaged(path, f"is missing; {remedy}") from error
    except OSError as error:
        raise Damaged(path, f"cannot be read ({error.strerror}); {remedy}") from error


def _require_size(path: Path, n_bytes: int, facts: Mapping[str, Any], remedy: str) -> None:
    if n_bytes != facts["bytes"]:
        raise damaged(path, f"it has {n_bytes:,} bytes instead of {facts['bytes']:,}", remedy)


class CheckedFile:
    """A mapped file that is compared with its sum before it is used: all of it, or only what is touched."""

    def __init__(self, path: Path, facts: Mapping[str, Any], remedy: str):
        self.path, self.remedy, self._sum = path, remedy, facts["xxh3"]
        with _readable(path, remedy):
            _require_size(path, path.stat().st_size, facts, remedy)
            self.content: np.ndarray = np.memmap(path, np.uint8, "r")
        self._blocks: np.ndarray | None = None  # their sums, if they are known
        self._good = np.zeros(0, bool)

    def damaged(self, why: object) -> Damaged:
        return damaged(self.path, why, self.remedy)

    def whole(self) -> np.ndarray:
        """All bytes, each of which was compared."""
        found = block_sums(self.content)
        if sum_of(found) != self._sum:
            raise self.damaged("it has changed since it was written")
        self._blocks, self._good = found, np.ones(len(found), bool)
        return self.content

    def release(self) -> None:
        """Let go of the memory of what was compared: the system maps it again where it is used."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.content._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """The array of a .npy file, whose header need not be read: shape and type are known."""
        header = len(self.content) - int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
        if not 0 < header <= 4096 or header % 64:
            raise self.damaged("it is not the array that it should be")
        return self.whole()[header:].view(dtype).reshape(shape)

    def by_blocks(self, sums: CheckedFile) -> None:
        """From now on compare only what is touched, with the sums of blocks that another file has."""
        n = -(-len(self.content) // BLOCK)
        if len(sums.content) != 8 * n or xxhash.xxh3_128_hexdigest(sums.content.data) != self._sum:
            raise sums.damaged("it has changed since it was written")
        self._blocks, self._good = sums.content.view("<u8"), np.zeros(n, bool)

    def part(self, start: int, stop: int) -> np.ndarray:
        """Some of the bytes, each of which was compared."""
        self.require(np.arange(start // BLOCK, -(-stop // BLOCK)))
        return self.content[start:stop]

    def require(self, numbers: np.ndarray) -> None:
        """Compare these blocks, unless they were compared before."""
        if self._blocks is None:
            self.whole()
        assert self._blocks is not None
        for number in np.unique(numbers[~self._good[numbers]]).tolist():
            block = self.content[number * BLOCK : (number + 1) * BLOCK]
            if xxhash.xxh3_64_intdigest(block.data) != self._blocks[number]:
                raise self.damaged(f"block {number} has changed since it was written")
            self._good[number] = True


def write_tensors(path: Path, tensors: Mapping[str, Any], facts: Mapping[str, str] | None = None) -> None:
    """Write tensors of torch and text about them as safetensors that know their own checksum."""
    from safetensors.torch import save

    content = bytearray(save(dict(tensors), {**(facts or {}), CHECKSUM: BLANK}))
    at = _place_of_checksum(content)
    assert at is not None
    content[at : at + len(BLANK)] = xxhash.xxh3_128_hexdigest(content).encode()
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_tensors(path: Path, names: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, str], bool]:
    """The tensors of torch, the text about them, and whether they had a checksum; a ValueError if it is not theirs.

    `names` are those of the text. A file may have no checksum, since older ones have none, but nothing else in its
    place: that would be a checksum whose name is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = bytearray(path.read_bytes())
    conform(_header(content).get("__metadata__", {}), dict.fromkeys(names, str) | {optional(CHECKSUM): XXH3})
    at = _place_of_checksum(content)
    if at is not None:
        found = bytes(content[at : at + len(BLANK)])
        content[at : at + len(BLANK)] = BLANK.encode()
        if found != xxhash.xxh3_128_hexdigest(content).encode():
            raise ValueError("it has changed since it was written")
    try:
        tensors = load(bytes(content))
        facts = _header(content).get("__metadata__", {})
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    facts.pop(CHECKSUM, None)
    return tensors, facts, at is not None


def _header(content: bytearray) -> dict[str, Any]:
    size = int.from_bytes(content[:8], "little")
    header = parse_json(bytes(content[8 : 8 + size])) if size <= len(content) - 8 else None
    if type(header) is not dict:
        raise ValueError("it has no header")
    conform(header.get("__metadata__", {}), dict, "__metadata__")
    return header


def _place_of_checksum(content: bytearray) -> int | None:
    """Where the digits of the checksum are; None in a file that is older than checksums."""
    digits = _header(content).get("__metadata__", {}).get(CHECKSUM)
    if digits is None:
        return None
    conform(digits, XXH3, CHECKSUM)
    return content.index(f'"{CHECKSUM}":"{digits}"'.encode()) + len(f'"{CHECKSUM}":"')
