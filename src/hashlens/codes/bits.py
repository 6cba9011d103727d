"""Relaxed outputs or signs in, packed binary codes out: `Codes`, the one type for codes everywhere.

Rules, decided here once: bit 1 where u > 0, so an exact zero becomes bit 0 (the paper's sgn); bits are packed
in the order of np.packbits (first bit highest); padding bits are zero; indexing by rows gives `Codes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hashlens.errors import DataError, MismatchError, UsageError


@dataclass(frozen=True, eq=False, repr=False)
class Codes:
    """Codes of n items, packed eight bits to a byte; bits past n_bits are zero."""

    packed: np.ndarray  # (n, ceil(n_bits / 8)) uint8
    n_bits: int

    def __post_init__(self) -> None:
        if isinstance(self.n_bits, bool) or not isinstance(self.n_bits, int | np.integer) or self.n_bits < 1:
            raise UsageError(f"n_bits must be an integer >= 1, got {self.n_bits!r}")
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
            raise DataError(f"relaxed outputs have shape {u.shape}; give (n, n_bits) with n_bits >= 1")
        if u.dtype.kind not in "biuf":
            raise DataError(f"relaxed outputs are {u.dtype}; give real numbers")
        # NaN > 0 is False: without this check a diverged model would give tidy-looking codes
        n_bad = int(np.isnan(u).any(axis=1).sum()) if u.dtype.kind == "f" else 0
        if n_bad:
            raise DataError(f"{n_bad} of {len(u)} rows of relaxed outputs contain NaN; check the model or its input")
        return cls(np.packbits(u > 0, axis=1), u.shape[1])

    @classmethod
    def from_signs(cls, signs: Any) -> Codes:
        """The codes whose `signs()` are `signs`, an (n, n_bits) array of -1 and +1."""
        signs = np.asarray(signs)
        wrong = (signs != 1) & (signs != -1)
        if wrong.any():
            raise DataError(f"signs must be -1 or +1, got {signs[wrong][0]}; for real values use from_relaxed")
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
        padded = np.pad(self.packed, ((0, 0), (0, -self.packed.shape[1] % 8)))
        return np.ascontiguousarray(padded).view(np.uint64)

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: Any) -> Codes:
        """The codes of some rows: a slice, an array of row numbers, a bool mask, or one number."""
        if isinstance(rows, int | np.integer):
            rows = np.array([rows])
        return Codes(self.packed[rows], self.n_bits)

    def equals(self, other: Codes) -> bool:
        return self.n_bits == other.n_bits and np.array_equal(self.packed, other.packed)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """np.asarray(codes) is `signs()`."""
        if copy is False:
            raise ValueError("the signs of packed codes are always a new array")
        signs = self.signs()
        return signs if dtype is None else signs.astype(dtype)

    def __repr__(self) -> str:
        shown = [row.tobytes().hex() for row in self.packed[:3]]
        more = ["…"] if len(self) > 3 else []
        return f"Codes(n={len(self):,}, n_bits={self.n_bits}: {', '.join(shown + more)})"

    def _repr_html_(self) -> str:
        rows = [(i, self.packed[i].tobytes().hex()) for i in range(min(len(self), 10))]
        cells = "".join(f"<tr><td>{i}</td><td><code>{code}</code></td></tr>" for i, code in rows)
        more = "" if len(self) <= 10 else f"<tr><td colspan=2>… {len(self) - 10:,} more</td></tr>"
        return f"<table><caption>{len(self):,} codes of {self.n_bits} bits</caption>{cells}{more}</table>"
