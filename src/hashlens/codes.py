"""Relaxed outputs or signs in, packed binary codes out: `Codes`, the one type for codes everywhere.

Rules, decided here once: bit 1 where u > 0, so an exact zero becomes bit 0 (the paper's sgn); bits are packed
in the order of np.packbits (first bit highest); padding bits are zero; indexing by rows gives `Codes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.files import replacing

FORMAT = "hashlens codes 1"


@dataclass(frozen=True, eq=False)
class Codes:
    """Codes of n items, packed eight bits to a byte; bits past n_bits are zero."""

    packed: np.ndarray  # (n, ceil(n_bits / 8)) uint8
    n_bits: int

    def __post_init__(self) -> None:
        if isinstance(self.n_bits, bool) or not isinstance(self.n_bits, int | np.integer) or self.n_bits < 1:
            raise UsageError(f"n_bits is {self.n_bits!r}; a code needs a whole number of bits, 1 or more")
        object.__setattr__(self, "n_bits", int(self.n_bits))
        n_bytes = -(-self.n_bits // 8)
        if not isinstance(self.packed, np.ndarray) or self.packed.dtype != np.uint8:
            found = getattr(self.packed, "dtype", type(self.packed).__name__)
            raise DataError(f"packed codes are {found}; give a uint8 array or use Codes.from_signs")
        if self.packed.ndim != 2 or self.packed.shape[1] != n_bytes:
            raise DataError(f"packed codes have shape {self.packed.shape}; {self.n_bits} bits need (n, {n_bytes})")
        padding = 0xFF >> (self.n_bits % 8) if self.n_bits % 8 else 0
        if (self.packed[:, -1] & padding).any():
            raise DataError(
                f"packed codes have bits set past bit {self.n_bits}; check n_bits and the bit order"
                " (first bit highest, as np.packbits writes)"
            )

    @classmethod
    def from_relaxed(cls, u: Any) -> Codes:
        """Bit 1 where u > 0, else bit 0; `u` is (n, n_bits) of real values."""
        u = np.asarray(u)
        if u.ndim != 2 or u.shape[1] == 0:
            raise DataError(f"relaxed outputs have shape {u.shape}; give (n, n_bits) with n_bits 1 or more")
        if u.dtype.kind not in "biuf":
            raise DataError(f"relaxed outputs are {u.dtype}; give real numbers")
        # NaN > 0 is False: without this check a diverged model would give tidy-looking codes
        n_bad = int(np.isnan(u).any(axis=1).sum()) if u.dtype.kind == "f" else 0
        if n_bad:
            raise DataError(f"{n_bad} of {len(u)} rows of relaxed outputs hold NaN; check the model or its input")
        return cls(np.packbits(u > 0, axis=1), u.shape[1])

    @classmethod
    def from_signs(cls, signs: Any) -> Codes:
        """The codes whose `signs()` are `signs`, an (n, n_bits) array of -1 and +1."""
        signs = np.asarray(signs)
        wrong = (signs != 1) & (signs != -1)
        if wrong.any():
            raise DataError(f"signs hold {signs[wrong][0]}; only -1 and +1 are signs (real values: from_relaxed)")
        return cls.from_relaxed(signs)

    @classmethod
    def concatenate(cls, parts: Sequence[Codes]) -> Codes:
        """The rows of all `parts`, in order."""
        if not parts:
            raise UsageError("there are no codes to concatenate; give at least one")
        lengths = sorted({part.n_bits for part in parts})
        if len(lengths) > 1:
            raise MismatchError(f"codes of {lengths} bits cannot be concatenated; encode all with one model")
        return cls(np.concatenate([part.packed for part in parts]), lengths[0])

    def signs(self) -> np.ndarray:
        """(n, n_bits) int8 of -1 and +1."""
        return np.unpackbits(self.packed, axis=1, count=self.n_bits).astype(np.int8) * 2 - 1

    def words(self) -> np.ndarray:
        """(n, ceil(n_bits / 64)) uint64, zero-padded: the same bits, for counting 64 at a time."""
        return self._in_units(8).view(np.uint64)

    def pieces(self) -> np.ndarray:
        """(n, ceil(n_bits / 16)) uint16, zero-padded: the same bits, as an index keeps them."""
        return self._in_units(2).view(np.uint16)

    def _in_units(self, n_bytes: int) -> np.ndarray:
        padded = np.zeros((len(self), n_bytes * -(-self.n_bits // (8 * n_bytes))), np.uint8)
        padded[:, : self.packed.shape[1]] = self.packed
        return padded

    @classmethod
    def from_pieces(cls, pieces: np.ndarray, n_bits: int) -> Codes:
        """The codes whose `pieces()` are `pieces`."""
        packed = np.ascontiguousarray(pieces).view(np.uint8)
        return cls(np.ascontiguousarray(packed[:, : -(-n_bits // 8)]), n_bits)

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: Any) -> Codes:
        """The codes of some rows: a slice, an array of row numbers, a bool mask, or one number."""
        if isinstance(rows, int | np.integer):
            rows = np.array([rows])
        return Codes(self.packed[rows], self.n_bits)

    def equals(self, other: Codes) -> bool:
        return self.n_bits == other.n_bits and np.array_equal(self.packed, other.packed)

    def save(self, path: Path | str) -> None:
        """Write to `path` as safetensors: no pickle, and whole or not at all."""
        with replacing(Path(path)) as temporary:
            # safetensors writes the buffer as it lies in memory, so a sliced array must be copied first
            packed = np.ascontiguousarray(self.packed)
            save_file({"packed": packed}, temporary, metadata={"format": FORMAT, "n_bits": str(self.n_bits)})

    @classmethod
    def load(cls, path: Path | str) -> Codes:
        path = Path(path)
        if not path.is_file():
            raise DataError(f"there is no codes file {path}; write one with Codes.save or hashlens encode")
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                found = metadata.get("format", "other tensors")
                if found != FORMAT:
                    raise MismatchError(f"{path} holds {found!r}, not {FORMAT!r}; encode again")
                return cls(file.get_tensor("packed"), int(metadata["n_bits"]))
        except (SafetensorError, KeyError, ValueError) as error:
            raise DataError(f"{path} is damaged or not a codes file ({error}); encode again") from error
