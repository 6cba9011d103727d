"""Bits: relaxed outputs or signs in, packed binary codes out, as `Codes`, the only type for codes.

Rules, decided here once: bit 1 where u > 0, so an exact zero becomes bit 0 (the paper's sgn); bits are packed
in the order of np.packbits (first bit highest); padding bits are zero; indexing by rows gives `Codes`.

Codes may carry a second, longer code of the same items, which orders ties of the first or is searched by itself
(index/order.py). Selecting rows always selects them in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hashlens.errors import DataError, MismatchError, UsageError

MOST_LEVELS = 2**16  # pairs of a first and a second distance, which the kernels count in uint16


@dataclass(frozen=True, eq=False, repr=False)
class Codes:
    """Codes of n items, packed eight bits to a byte; bits past n_bits are zero."""

    packed: np.ndarray  # (n, ceil(n_bits / 8)) uint8
    n_bits: int
    second: Codes | None = None  # of the same items

    def __post_init__(self) -> None:
        if isinstance(self.n_bits, bool) or not isinstance(self.n_bits, int | np.integer) or self.n_bits < 1:
            raise UsageError(f"n_bits must be an integer >= 1, got {self.n_bits!r}")
        object.__setattr__(self, "n_bits", int(self.n_bits))
        n_bytes = -(-self.n_bits // 8)
        if not isinstance(self.packed, np.ndarray) or self.packed.dtype != np.uint8:
            found = getattr(self.packed, "dtype", type(self.packed).__name__)
            raise DataError(f"packed codes are {found}; pass a uint8 array or use Codes.from_signs")
        if self.packed.ndim != 2 or self.packed.shape[1] != n_bytes:
            raise DataError(f"packed codes have shape {self.packed.shape}; {self.n_bits} bits need (n, {n_bytes})")
        padding = 0xFF >> (self.n_bits % 8) if self.n_bits % 8 else 0
        if (self.packed[:, -1] & padding).any():
            raise DataError(
                f"packed codes have bits set past bit {self.n_bits}; check n_bits and the bit order"
                " (first bit highest, as np.packbits writes)"
            )
        if self.second is not None:
            if len(self.second) != len(self.packed) or self.second.second is not None:
                raise DataError(
                    f"there are {len(self):,} codes and {len(self.second):,} second codes; pass one for each"
                )
            require_levels(self.n_bits, self.second.n_bits)

    @classmethod
    def from_relaxed(cls, u: Any) -> Codes:
        """Bit 1 where u > 0, else bit 0; `u` is (n, n_bits) of real values."""
        u = np.asarray(u)
        if u.ndim != 2 or u.shape[1] == 0:
            raise DataError(f"relaxed outputs have shape {u.shape}; give (n, n_bits) with n_bits >= 1")
        if u.dtype.kind not in "biuf":
            raise DataError(f"relaxed outputs are {u.dtype}; pass real numbers")
        # NaN > 0 is False: without this check the codes of a diverged model would look valid
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
            raise UsageError("there are no codes to concatenate; pass at least one")
        lengths = sorted({part.n_bits for part in parts})
        if len(lengths) > 1:
            raise MismatchError(f"codes of {lengths} bits cannot be concatenated; encode all with one model")
        if len({part.second_bits for part in parts}) > 1:
            raise MismatchError("codes with and without second codes cannot be concatenated; encode all with one model")
        seconds = [part.second for part in parts if part.second is not None]
        second = cls.concatenate(seconds) if seconds else None
        return cls(np.concatenate([part.packed for part in parts]), lengths[0], second)

    @property
    def first(self) -> Codes:
        """These codes without the second code."""
        return Codes(self.packed, self.n_bits)

    @property
    def second_bits(self) -> int:
        """The length of the second code; 0 without one."""
        return 0 if self.second is None else self.second.n_bits

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
        return Codes(self.packed[rows], self.n_bits, None if self.second is None else self.second[rows])

    def equals(self, other: Codes) -> bool:
        same = self.n_bits == other.n_bits and np.array_equal(self.packed, other.packed)
        if self.second is None or other.second is None:
            return same and self.second is other.second
        return same and self.second.equals(other.second)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """np.asarray(codes) is `signs()`."""
        if copy is False:
            raise ValueError("the signs of packed codes are always a new array")
        signs = self.signs()
        return signs if dtype is None else signs.astype(dtype)

    def __repr__(self) -> str:
        shown = [row.tobytes().hex() for row in self.packed[:3]]
        more = ["…"] if len(self) > 3 else []
        second = f", second_bits={self.second_bits}" if self.second is not None else ""
        return f"Codes(n={len(self):,}, n_bits={self.n_bits}{second}: {', '.join(shown + more)})"

    def _repr_html_(self) -> str:
        rows = [(i, self.packed[i].tobytes().hex()) for i in range(min(len(self), 10))]
        cells = "".join(f"<tr><td>{i}</td><td><code>{code}</code></td></tr>" for i, code in rows)
        more = "" if len(self) <= 10 else f"<tr><td colspan=2>… {len(self) - 10:,} more</td></tr>"
        return f"<table><caption>{len(self):,} codes of {self.n_bits} bits</caption>{cells}{more}</table>"


def require_codes(taker: str, codes: Any) -> None:
    if not isinstance(codes, Codes):
        raise UsageError(f"{taker} takes Codes, got {type(codes).__name__}; make them with Codes.from_relaxed")


def require_levels(n_bits: int, second_bits: int) -> None:
    """Refuse a second code if the first is so long that it has no ties worth ordering."""
    if second_bits and (n_bits + 1) * (second_bits + 1) > MOST_LEVELS:
        most = MOST_LEVELS // (second_bits + 1) - 1
        raise UsageError(
            f"a second code of {second_bits} bits orders ties of codes of at most {most:,} bits, these have"
            f" {n_bits:,}; omit it, or make it shorter"
        )
