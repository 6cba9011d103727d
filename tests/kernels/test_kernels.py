"""The compiled kernels at every level that this machine runs, against numpy; how one is chosen, and how it is built."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashlens import Codes
from hashlens.errors import UsageError
from hashlens.index.memory import HammingIndex
from hashlens.index.radius import Tables
from hashlens.index.tree import Tree
from hashlens.kernels import LANES, Rows, View, available, build, kernels, to_blocks
from hashlens.kernels.compiled import Compiled
from hashlens.kernels.in_numpy import Numpy

ROOT = Path(__file__).parents[2]
LEVELS = [name for name in available() if name != "numpy"]
compiled = pytest.mark.skipif(not LEVELS, reason="there was no compiler")


@st.composite
def searches(draw):
    """Codes in one to three parts, some removed, with queries among them: the more alike the codes, the more ties."""
    n_bits = draw(st.integers(1, 512))
    n = draw(st.one_of(st.integers(0, 300), st.integers(0, 10_000)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    centres = rng.integers(0, 2, (draw(st.sampled_from([1, 5, 10_000])), n_bits))
    flip = draw(st.sampled_from([0.0, 0.05, 0.5]))

    def codes(m):
        bits = centres[rng.integers(0, len(centres), m)] ^ (rng.random((m, n_bits)) < flip)
        return np.packbits(bits.astype(bool), axis=1)

    packed, ids = codes(n), np.sort(rng.choice(3 * n + 1, n, replace=False))
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=2)))
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, n], strict=True):
        own = ids[start:stop] if draw(st.booleans()) else 3 * n * len(parts)  # consecutive, and above those before
        parts.append(Rows(to_blocks(packed[start:stop]), stop - start, own))
        if draw(st.booleans()):
            parts[-1].alive = rng.random(stop - start) < draw(st.sampled_from([0.0, 0.5, 0.99]))
    if any(isinstance(part._ids, int) for part in parts):
        for number, part in enumerate(parts):
            part._ids = 3 * n * number if isinstance(part._ids, int) else part._ids + 3 * n * number
    queries = codes(draw(st.integers(1, 4)))
    return parts, queries, n_bits, draw(st.one_of(st.integers(1, 20), st.integers(1, 10_100)))


def found_by(kernel, parts, queries, n_bits, k, share=0, n_shares=1):
    distances, ids = np.empty((len(queries), k), np.int32), np.empty((len(queries), k), np.int64)
    kernel.nearest(View(parts), queries, n_bits, distances, ids, share, n_shares)
    return distances, ids


def ordered(distances, ids):
    order = np.lexsort((ids, distances))
    return distances[order].tolist(), ids[order].tolist()


@compiled
@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(search=searches(), share=st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]), radius=st.integers(0, 40))
def test_every_level_finds_what_numpy_finds(level, search, share, radius):
    parts, queries, n_bits, k = search
    own, oracle = Compiled(level), Numpy()
    for mine, wanted in zip(
        found_by(own, parts, queries, n_bits, k, *share),
        found_by(oracle, parts, queries, n_bits, k, *share),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, wanted)
    counts = np.zeros((2, n_bits + 1), np.int64)
    for part in parts:
        within = [ordered(*kernel.within(part, queries[0], n_bits, radius)) for kernel in (own, oracle)]
        assert within[0] == within[1]
        for kernel, count in zip((own, oracle), counts, strict=True):
            kernel.histogram(part, 0, len(part.blocks), queries[0], count)
    np.testing.assert_array_equal(*counts)


@compiled
@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(search=searches(), label_sets=st.booleans(), n_labels=st.sampled_from([1, 3, 40]), topk=st.integers(1, 10_000))
def test_every_level_ranks_as_numpy_does(level, search, label_sets, n_labels, topk):
    parts, queries, n_bits, _ = search
    (part, *_) = parts
    rng = np.random.default_rng(len(part))
    words = 2 if label_sets else 1
    labels = np.zeros((words, len(part.blocks) * LANES), np.uint64)
    labels[:, : len(part)] = rng.integers(0, n_labels, (words, len(part)))
    own = rng.integers(0, n_labels, (len(queries), words)).astype(np.uint64)
    cutoffs = np.array([5, 60, 10_000])
    found = []
    for kernel in (Compiled(level), Numpy()):
        items, hits = np.zeros((2, len(queries), n_bits + 1), np.int64)
        at, total = np.zeros((len(queries), 3), np.int64), np.zeros(len(queries))
        kernel.rank(part.blocks, len(part), queries, own, labels, label_sets, cutoffs, topk, items, hits, at, total)
        found.append((items, hits, at, total))
    for mine, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-12)


@compiled
@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(search=searches(), with_tree=st.tuples(st.booleans(), st.booleans(), st.booleans()), radius=st.integers(0, 40))
def test_trees_find_what_numpy_finds(level, search, with_tree, radius):
    parts, queries, n_bits, k = search
    wanted = found_by(Numpy(), parts, queries, n_bits, k)
    within = [ordered(*Numpy().within(part, queries[0], n_bits, radius)) for part in parts]
    for part, wants_one in zip(parts, with_tree, strict=False):
        if wants_one and len(part):
            part.tree = Tree.build(part)
            part.tree.radius = n_bits
    for mine, theirs in zip(found_by(Compiled(level), parts, queries, n_bits, k), wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert [ordered(*Compiled(level).within(part, queries[0], n_bits, radius)) for part in parts] == within


@compiled
@settings(max_examples=40, deadline=None, derandomize=True)
@given(search=searches(), radius=st.integers(0, 6))
def test_tables_find_what_numpy_finds(search, radius):
    parts, queries, n_bits, _ = search
    tables = Tables.build(parts[0])
    wanted = ordered(*Numpy().within(parts[0], queries[0], n_bits, min(radius, n_bits)))
    for name in (LEVELS[-1], "numpy"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HASHLENS_KERNELS", name)
            assert ordered(*tables.within(queries[0], parts[0], min(radius, n_bits))) == wanted


@pytest.mark.parametrize("name", available())
def test_one_can_be_forced(name, monkeypatch, rng):
    monkeypatch.setenv("HASHLENS_KERNELS", name)
    assert kernels().name == name
    codes = Codes.from_relaxed(rng.normal(size=(500, 20)))
    index = HammingIndex(20)
    index.add(codes)
    assert index.search(codes, 1)[0].max() == 0


def test_a_wrong_name_is_refused(monkeypatch):
    monkeypatch.setenv("HASHLENS_KERNELS", "sse9")
    with pytest.raises(UsageError, match=r"HASHLENS_KERNELS must be one of numpy.* on this machine, got 'sse9'"):
        kernels()


@compiled
def test_more_hits_than_expected(rng):
    """All 20,000 codes are within the radius: more than the first attempt has room for."""
    codes = Codes.from_relaxed(rng.normal(size=(20_000, 24)))
    index = HammingIndex(24)
    index.add(codes)
    ((distances, ids),) = index.within(codes[0], 24)
    assert len(ids) == len(set(ids)) == 20_000 and (np.diff(distances) >= 0).all()


def test_a_library_of_other_sources_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    for name in build.SOURCES:
        shutil.copy(ROOT / "src" / "hashlens" / "kernels" / name, tmp_path)
    before = build.library()
    (tmp_path / "loops.h").write_text("/* changed */")
    assert build.library() != before


def wheel(tmp_path, **environment):
    """Names and tags of the wheel that a copy of the repository gives."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("core-*", "__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=copy, env=os.environ | environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (made,) = tmp_path.glob("*.whl")
    return made.name, zipfile.ZipFile(made).namelist(), done.stdout + done.stderr


@compiled
def test_the_wheel_has_the_compiled_kernels(tmp_path):
    name, files, _ = wheel(tmp_path)
    assert "-py3-none-" in name and "any" not in name
    assert f"hashlens/kernels/{build.library().name}" in files and "hashlens/kernels/core.c" in files


def test_without_a_compiler_the_wheel_is_pure_python(tmp_path):
    (tmp_path / "empty").mkdir()
    name, files, said = wheel(tmp_path, CC="/no/such/compiler", PATH=str(tmp_path / "empty"))
    assert name.endswith("-py3-none-any.whl") and "no C compiler was found" in said
    assert not any("kernels/core-" in file for file in files) and "hashlens/kernels/core.c" in files


@compiled
def test_codes_in_any_memory_order(rng):
    """Arrays that are not in C order are copied where users give them, and refused where they should not be."""
    codes = Codes(np.asfortranarray(rng.integers(0, 256, (300, 4), np.uint8)), 32)
    index = HammingIndex(32)
    index.add(codes)
    assert index.search(codes[::-1], 1)[0].max() == 0 and index.histogram(codes[5])[0] == 1
    assert [len(ids) for _, ids in index.within(codes[::7], 0)] == [1] * 43
    with pytest.raises(ValueError, match="C order"):
        Compiled(LEVELS[-1]).nearest(
            View(index.parts), codes.packed, 32, np.empty((300, 1), np.int32), np.empty((300, 1), np.int64)
        )


@pytest.mark.parametrize("n", [1, 64, 65, 50_000])
def test_blocks_start_at_a_line_of_memory(n, rng):
    packed = rng.integers(0, 256, (n, 3), np.uint8)
    blocks = to_blocks(packed)
    assert blocks.ctypes.data % LANES == 0 and blocks.shape == (-(-n // LANES), 3, LANES)
    np.testing.assert_array_equal(Rows(blocks, n, 0).codes(np.arange(n)), packed)
