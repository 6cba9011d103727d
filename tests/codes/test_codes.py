"""Codes: round trips at awkward lengths, the rule for zero, what is refused, files."""

import subprocess
import sys

import numpy as np
import pytest

from hashlens.codes import Codes
from hashlens.errors import DataError, MismatchError, UsageError

N_BITS = [1, 7, 8, 12, 24, 48, 64, 65, 128]


def random_signs(n, n_bits, seed=0):
    return np.random.default_rng(seed).choice([-1, 1], (n, n_bits))


@pytest.mark.parametrize("n_bits", N_BITS)
@pytest.mark.parametrize("n", [0, 1, 5])
def test_signs_survive_packing(n_bits, n):
    signs = random_signs(n, n_bits)
    codes = Codes.from_signs(signs)
    assert len(codes) == n
    assert codes.packed.shape == (n, (n_bits + 7) // 8)
    assert codes.signs().dtype == np.int8
    np.testing.assert_array_equal(codes.signs(), signs)


@pytest.mark.parametrize("n_bits", N_BITS)
def test_words_hold_every_bit_and_nothing_else(n_bits):
    codes = Codes.from_signs(random_signs(9, n_bits))
    words = codes.words()
    assert words.shape == (9, (n_bits + 63) // 64)
    assert words.dtype == np.uint64
    assert words.flags.c_contiguous
    np.testing.assert_array_equal(np.bitwise_count(words).sum(axis=1), (codes.signs() == 1).sum(axis=1))


def test_first_bit_is_the_highest():
    assert Codes.from_signs([[1, -1, -1, -1, -1, -1, -1, -1, 1]]).packed.tolist() == [[128, 128]]


def test_exact_zero_is_bit_zero_for_every_caller():
    # PEERS 5.2: torch.sign(0) is 0, others draw at random, others differ between query and database
    u = np.array([[0.0, -0.0, 1e-30, -1e-30, np.inf, -np.inf]])
    assert Codes.from_relaxed(u).signs().tolist() == [[-1, -1, 1, -1, 1, -1]]
    assert Codes.from_relaxed(u.astype(np.float32)).equals(Codes.from_relaxed(u))


def test_nan_is_refused():
    with pytest.raises(DataError, match=r"1 of 2 rows.*NaN"):
        Codes.from_relaxed([[1.0, 2.0], [np.nan, 1.0]])


@pytest.mark.parametrize("signs", [[[0, 1]], [[True, False]], [[2, -1]], [[np.nan, 1]]])
def test_from_signs_refuses_other_values(signs):
    with pytest.raises(DataError, match=r"signs must be -1 or \+1"):
        Codes.from_signs(signs)


@pytest.mark.parametrize("u", [np.zeros(3), np.zeros((3, 0)), np.zeros((2, 2, 2)), [["a"]], [[1j]]])
def test_bad_relaxed_outputs_are_refused(u):
    with pytest.raises(DataError):
        Codes.from_relaxed(u)


@pytest.mark.parametrize("n_bits", [0, -1, 1.5, True, "8"])
def test_bad_n_bits_is_refused(n_bits):
    with pytest.raises(UsageError, match="n_bits must be an integer >= 1"):
        Codes(np.zeros((1, 1), np.uint8), n_bits)


@pytest.mark.parametrize(
    "packed", [np.zeros((1, 2), np.int8), np.zeros((1, 1), np.uint8), np.zeros(2, np.uint8), [[0, 0]]]
)
def test_bad_arrays_are_refused(packed):
    with pytest.raises(DataError, match="packed codes"):
        Codes(packed, 12)


def test_padding_bits_must_be_zero():
    Codes(np.array([[255, 0b11110000]], np.uint8), 12)
    with pytest.raises(DataError, match="past bit 12"):
        Codes(np.array([[255, 0b11111000]], np.uint8), 12)


def test_rows():
    signs = random_signs(6, 12)
    codes = Codes.from_signs(signs)
    for rows in (
        slice(1, 4),
        slice(None, None, -1),
        [5, 0, 0],
        np.array([2, 3]),
        signs[:, 0] == 1,
        slice(0, 0),
    ):
        np.testing.assert_array_equal(codes[rows].signs(), signs[rows])
        assert codes[rows].n_bits == 12
    assert codes[-1].equals(codes[[5]])
    assert codes[np.int64(2)].equals(codes[2:3])
    with pytest.raises(IndexError):
        codes[6]


def test_equals():
    codes = Codes.from_signs(random_signs(4, 12))
    assert codes.equals(Codes(codes.packed.copy(), 12))
    assert not codes.equals(codes[:3])
    assert not codes.equals(codes[::-1])
    assert not Codes(np.zeros((1, 1), np.uint8), 7).equals(Codes(np.zeros((1, 1), np.uint8), 8))


def test_concatenate():
    codes = Codes.from_signs(random_signs(6, 12))
    assert Codes.concatenate([codes[:2], codes[2:2], codes[2:]]).equals(codes)
    with pytest.raises(MismatchError, match=r"\[12, 16\]"):
        Codes.concatenate([codes, Codes.from_signs(random_signs(1, 16))])
    with pytest.raises(UsageError):
        Codes.concatenate([])


def test_asarray_gives_signs():
    codes = Codes.from_signs(random_signs(5, 12))
    assert np.array_equal(np.asarray(codes), codes.signs()) and np.asarray(codes).dtype == np.int8
    assert np.array(codes, dtype=np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="always a new array"):
        np.array(codes, copy=False)


def test_repr_and_html():
    codes = Codes(np.array([[0x9F, 0x30], [0x21, 0xA0], [0, 0], [255, 240]], np.uint8), 12)
    assert repr(codes) == "Codes(n=4, n_bits=12: 9f30, 21a0, 0000, …)"
    assert repr(codes[:1]) == "Codes(n=1, n_bits=12: 9f30)"
    assert "4 codes of 12 bits" in codes._repr_html_() and "<code>fff0</code>" in codes._repr_html_()
    many = Codes(np.zeros((1_000, 2), np.uint8), 12)
    assert "990 more" in many._repr_html_() and len(many._repr_html_()) < 1_000


def test_importing_codes_does_not_import_numba():
    script = (
        "import hashlens.codes, hashlens.data.labels, hashlens.results.metrics, sys; sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
