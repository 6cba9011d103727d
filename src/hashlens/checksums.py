"""Checksums: files in, the same files out, or one sentence that names the damaged file and what repairs it.

JSON      `write_sealed` adds the checksum of all other entries; `read_sealed` refuses a file that does not match.
arrays    The sum of a file is XXH3 (128 bits) of the XXH3 (64 bits) of its blocks of 64 KiB, so that a file can be
          verified as a whole or, if block sums are stored too, block by block on first use.
tensors   A safetensors file has the checksum of everything else in its metadata.

They detect damage, not forgery; schema.py decides what an untrusted file may contain.
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
READ = 16 * BLOCK  # bytes of a file at a time
XXH3 = re.compile(r"[0-9a-f]{32}")
FILE = {"bytes": whole(1), "xxh3": XXH3}  # entry of a file in a manifest
CHECKSUM = "checksum"
BLANK = "0" * 32


def damaged(path: Place, why: object, remedy: str) -> Damaged:
    return Damaged(path, f"is damaged ({why}); {remedy}")


def write_sealed(path: Place, value: dict[str, Any], copy: Path | None = None) -> None:
    """Write JSON with its checksum. The copy is written first, so that a full disk cannot prevent only the copy."""
    text = json_text(value | {CHECKSUM: _seal(value)})
    if copy is not None:
        with copy.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    write_text(path, text)


def read_sealed(path: Place) -> dict[str, Any]:
    """Read a file of `write_sealed`; a ValueError if it has changed since.

    A file without a checksum predates them; the caller can tell by its format whether that is valid.
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
    """(blocks,) uint64: the sums of the blocks of bytes or a byte array."""
    view = memoryview(content)
    sums = [xxhash.xxh3_64_intdigest(view[start : start + BLOCK]) for start in range(0, len(view), BLOCK)]
    return np.array(sums, np.uint64)


def sum_of(blocks: np.ndarray) -> str:
    return xxhash.xxh3_128_hexdigest(blocks.astype("<u8", copy=False).tobytes())


def describe_file(path: Path) -> dict[str, Any]:
    """The manifest entry of a file that was just written."""
    content = np.memmap(path, np.uint8, "r")
    return {"bytes": len(content), "xxh3": sum_of(block_sums(content))}


def hash_of(content: bytes) -> int:
    """XXH3 (64 bits) of the content, as a signed number."""
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
    """Read a file and compare it with its sum; `pause(n_bytes)` is called after every few blocks.

    The file is not mapped, because truncating a mapped file would kill the process.
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
    """A mapped file that is verified before use: as a whole, or only the blocks that are used."""

    def __init__(self, path: Path, facts: Mapping[str, Any], remedy: str):
        self.path, self.remedy, self._sum = path, remedy, facts["xxh3"]
        with _readable(path, remedy):
            _require_size(path, path.stat().st_size, facts, remedy)
            self.content: np.ndarray = np.memmap(path, np.uint8, "r")
        self._blocks: np.ndarray | None = None  # the sums of its blocks, if known
        self._good = np.zeros(0, bool)

    def damaged(self, why: object) -> Damaged:
        return damaged(self.path, why, self.remedy)

    def whole(self) -> np.ndarray:
        """All bytes, verified."""
        found = block_sums(self.content)
        if sum_of(found) != self._sum:
            raise self.damaged("it has changed since it was written")
        self._blocks, self._good = found, np.ones(len(found), bool)
        return self.content

    def release(self) -> None:
        """Release the memory used for verification; the system maps pages again on use."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.content._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """The array of a .npy file, without reading its header, because shape and type are known."""
        header = len(self.content) - int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
        if not 0 < header <= 4096 or header % 64:
            raise self.damaged("it is not the array that it should be")
        return self.whole()[header:].view(dtype).reshape(shape)

    def by_blocks(self, sums: CheckedFile) -> None:
        """From now on verify only blocks that are used, with the block sums in another file."""
        n = -(-len(self.content) // BLOCK)
        if len(sums.content) != 8 * n or xxhash.xxh3_128_hexdigest(sums.content.data) != self._sum:
            raise sums.damaged("it has changed since it was written")
        self._blocks, self._good = sums.content.view("<u8"), np.zeros(n, bool)

    def part(self, start: int, stop: int) -> np.ndarray:
        """Some of the bytes, verified."""
        self.require(np.arange(start // BLOCK, -(-stop // BLOCK)))
        return self.content[start:stop]

    def require(self, numbers: np.ndarray) -> None:
        """Verify these blocks, unless already verified."""
        if self._blocks is None:
            self.whole()
        assert self._blocks is not None
        for number in np.unique(numbers[~self._good[numbers]]).tolist():
            block = self.content[number * BLOCK : (number + 1) * BLOCK]
            if xxhash.xxh3_64_intdigest(block.data) != self._blocks[number]:
                raise self.damaged(f"block {number} has changed since it was written")
            self._good[number] = True


def write_tensors(path: Path, tensors: Mapping[str, Any], facts: Mapping[str, str] | None = None) -> None:
    """Write torch tensors, and text about them, as a safetensors file that contains its own checksum."""
    from safetensors.torch import save

    content = bytearray(save(dict(tensors), {**(facts or {}), CHECKSUM: BLANK}))
    at = _place_of_checksum(content)
    assert at is not None
    content[at : at + len(BLANK)] = xxhash.xxh3_128_hexdigest(content).encode()
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_tensors(path: Path, names: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, str], bool]:
    """The torch tensors, the text about them, and whether the file had a checksum; a ValueError if it does not match.

    `names` are the names of the text. Older files have no checksum, but an unknown name is refused: it could be a
    checksum with a damaged name.
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
    """The position of the checksum's digits; None in a file that predates checksums."""
    digits = _header(content).get("__metadata__", {}).get(CHECKSUM)
    if digits is None:
        return None
    conform(digits, XXH3, CHECKSUM)
    return content.index(f'"{CHECKSUM}":"{digits}"'.encode()) + len(f'"{CHECKSUM}":"')
