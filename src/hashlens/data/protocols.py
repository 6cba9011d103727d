"""Protocols: which rows of a source are training rows, queries and database, and the cut-off `topk` of MAP.

A protocol is saved as one JSON file with a hash of its rows, which tells whether two results have the same split.

"100 images per label", where images have several labels, means: from the rarest label to the most frequent, draw 100
images that have the label and have not been drawn yet. So 100 for each of 21 labels make exactly 2,100 images. The
paper leaves this open.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from hashlens.data.labels import Labels
from hashlens.errors import DataError
from hashlens.files import write_text
from hashlens.progress import counted
from hashlens.schema import parse_json

ROLES = ("train", "query", "database")

# fmt: off
# the 21 most frequent of the 81 concepts of NUS-WIDE
NUSWIDE_CONCEPTS = (
    "animal", "beach", "buildings", "clouds", "flowers", "grass", "lake", "mountain", "ocean", "person", "plants",
    "reflection", "road", "rocks", "sky", "snow", "sunset", "tree", "vehicle", "water", "window",
)
# the 24 labels of MIRFLICKR-25K, without the stricter second round of annotation (_r1)
MIRFLICKR_LABELS = (
    "animals", "baby", "bird", "car", "clouds", "dog", "female", "flower", "food", "indoor", "lake", "male", "night",
    "people", "plant_life", "portrait", "river", "sea", "sky", "structures", "sunset", "transport", "tree", "water",
)
# fmt: on

# The roles of the words in a split column, in any letter case; given_split decides the role of "val".
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("query", "queries", "test", "testing"), "query"),
    **dict.fromkeys(("database", "db", "gallery", "retrieval"), "database"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
}


@dataclass(frozen=True, eq=False)
class Protocol:
    """Row numbers of a source by role; train and database may share rows, query shares none with either."""

    name: str
    train: np.ndarray = field(repr=False)  # (n_train,) int64
    query: np.ndarray = field(repr=False)  # (n_query,) int64
    database: np.ndarray = field(repr=False)  # (n_database,) int64; its order breaks ties
    topk: int | None = None  # None: MAP over the whole ranking
    seed: int = 0
    description: str = ""
    notes: tuple[str, ...] = field(default=(), repr=False)  # what a reader of the scores must know; not saved

    def __post_init__(self) -> None:
        for role in ROLES:
            given = np.asarray(getattr(self, role))
            if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
                raise DataError(f"{role} rows of {self.name} must be integers (n,), got {given.dtype} {given.shape}")
            rows = given.astype(np.int64)  # a copy, frozen like the other arrays
            rows.flags.writeable = False
            object.__setattr__(self, role, rows)
            if repeated := len(rows) - len(np.unique(rows)):
                raise DataError(f"{role} rows of {self.name} are repeated ({repeated:,}); each may occur once")
            if rows.size and rows.min() < 0:
                raise DataError(f"{role} row {rows.min()} of {self.name} is negative; rows count from 0")
        for role in ("database", "train"):
            if shared := len(np.intersect1d(self.query, getattr(self, role))):
                raise DataError(
                    f"query rows of {self.name} are also {role} rows ({shared:,}), which would inflate the result;"
                    " remove them from one of the two"
                )
        if self.topk is not None and self.topk < 1:
            raise DataError(f"topk of {self.name} must be >= 1 or None, got {self.topk}")

    def check(self, n: int) -> None:
        """Refuse rows past the end of a source of `n` images."""
        for role in ROLES:
            if (last := getattr(self, role).max(initial=-1)) >= n:
                raise DataError(
                    f"{role} row {last:,} of {self.name} is past the end of a source of {counted(n, 'image')}; use the"
                    " source that the split was made for"
                )

    @property
    def learned(self) -> np.ndarray:
        """(n_database,) bool: the database rows that are also trained on."""
        return np.isin(self.database, self.train)

    def fingerprint(self) -> str:
        """sha256 of the rows by role, in order: the same for the same split, whatever its name."""
        digest = hashlib.sha256()
        for role in ROLES:
            rows = getattr(self, role)
            digest.update(f"{role} {len(rows)}\n".encode() + rows.astype("<i8").tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write JSON: a line per fact, then a line per list of rows."""
        facts = {key: getattr(self, key) for key in ("name", "description", "seed", "topk")}
        facts |= {"counts": {role: len(getattr(self, role)) for role in ROLES}, "sha256": self.fingerprint()}
        lines = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in facts.items()]
        for role in ROLES:
            rows = json.dumps(getattr(self, role).tolist(), separators=(",", ":"))
            lines.append(f'"{role}": {rows}')
        write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def load(cls, path: Path) -> Protocol:
        """Read what `save` wrote; refuse rows that were changed."""
        try:
            saved = parse_json(path.read_bytes())
            facts = {key: saved[key] for key in ("name", "topk", "seed", "description", *ROLES)}
            expected = saved["sha256"]
            protocol = cls(**facts)
        except FileNotFoundError as error:
            raise DataError(f"split file {path} not found; check the path") from error
        except (ValueError, KeyError, TypeError) as error:  # includes DataError, with its own message
            raise DataError(f"{path} is not a split file ({error}); make it again") from error
        if protocol.fingerprint() != expected:
            raise DataError(
                f"{path} was changed or damaged: its rows have the sha256 {protocol.fingerprint()[:12]}…, not"
                f" {str(expected)[:12]}…; restore it or make the split again"
            )
        return protocol


def _cifar10(labels: Labels, seed: int, name: str, n_query: int, n_train: int) -> Protocol:
    """Each class in random order, as in the authors' code: `n_query` queries, `n_train` training rows, the rest."""
    if labels.multi or not np.array_equal(labels.counts(), [6000] * 10):
        raise _wrong_source(name, "CIFAR-10, 6,000 images in each of 10 classes", labels)
    rng = np.random.default_rng(seed)
    classes = np.stack([rng.permutation(np.flatnonzero(labels.values == c)) for c in range(10)])  # (10, 6000)
    query, database = classes[:, :n_query].ravel(), classes[:, n_query:].ravel()
    train = classes[:, n_query : n_query + n_train].ravel()
    # Equal distances are ranked in database order, and rows are grouped by class here and in the authors' files:
    # without shuffling, the first classes would win every tie.
    train, query, database = (rng.permutation(rows) for rows in (train, query, database))
    return Protocol(name, train, query, database, seed=seed, description=_sizes(query, database, train))


def _sizes(query: np.ndarray, database: np.ndarray, train: np.ndarray) -> str:
    return f"{counted(len(query), 'query')}, {len(database):,} searched, {len(train):,} of them trained on"


def _wrong_source(name: str, wanted: str, labels: Labels) -> DataError:
    return DataError(
        f"the protocol {name} is for {wanted}; this source has {counted(len(labels), 'image')} in {labels.n_classes}"
        " other classes: use the protocol split"
    )


def unseen_classes(labels: Labels, seed: int = 0) -> Protocol:
    """Train on some classes and search the others: of CIFAR-10's ten classes, train on seven and search three.

    A random three tenths of the classes, at least two, are unseen: 100 images of each (a tenth, if it has fewer than
    1,000) are queries and the rest are searched. Up to 500 random images of each other class are trained on. Methods
    without labels learn from the database as usual, so they see images of the unseen classes; supervised ones do not.
    """
    if labels.multi:
        raise DataError("the protocol unseen is for images with one label each; these have sets of labels: use split")
    rng = np.random.default_rng(seed)
    counts = labels.counts()
    usable = np.flatnonzero(counts >= 3)  # one query, and two images to search
    if len(usable) < 4:
        raise DataError(
            f"the protocol unseen trains on two classes and retrieves two others, but only {len(usable)} of the classes"
            " have three images or more: add classes or use the protocol split"
        )
    unseen = np.sort(rng.permutation(usable)[: max(2, round(0.3 * len(usable)))])
    train, query, database = [], [], []
    for c in np.flatnonzero(counts):
        rows = rng.permutation(np.flatnonzero(labels.values == c))
        if c in unseen:
            n_query = min(100, max(1, len(rows) // 10))
            query.append(rows[:n_query])
            database.append(rows[n_query:])
        else:
            train.append(rows[:500])
    seen, asked, searched = (rng.permutation(np.concatenate(part)) for part in (train, query, database))
    names = ", ".join(labels.names[c] for c in unseen)
    sizes = f"{counted(len(asked), 'query')} and {len(searched):,} searched of {names}"
    note = (
        "methods without labels learn from the images that are searched, methods with labels from other classes only;"
        " compare each with its own kind"
    )
    description = f"{sizes}; {len(seen):,} others trained on"
    return Protocol("unseen", seen, asked, searched, seed=seed, description=description, notes=(note,))


def with_training_size(base: Protocol, labels: Labels, n: int) -> Protocol:
    """`base` with n training images from its database, the same number per class.

    Smaller sets are part of larger ones, and the size of `base`'s own set gives that set itself.
    """
    name = f"{base.name}-train-{n}"
    if labels.multi:
        raise DataError(f"the protocol {name} is for images with one label each; these have sets of labels")
    if n < 2:
        raise DataError(f"the protocol {name} needs at least 2 training images, got {n}")
    rest = np.setdiff1d(base.database, base.train)
    order = np.concatenate([base.train, np.random.default_rng([base.seed, 1]).permutation(rest)])
    classes = labels.values[order]
    present = np.unique(classes)
    chosen = np.zeros(len(order), bool)
    for place, c in enumerate(present):
        members = np.flatnonzero(classes == c)
        wanted = n // len(present) + (place < n % len(present))
        if wanted > len(members):
            raise DataError(
                f"the protocol {name} needs {wanted:,} training images per class, but {labels.names[c]!r} has"
                f" {len(members):,}; choose a smaller number"
            )
        chosen[members[:wanted]] = True
    train = order[chosen]
    sizes = _sizes(base.query, base.database, train)
    return Protocol(name, train, base.query, base.database, base.topk, base.seed, sizes)


def folder_split(labels: Labels, seed: int = 0) -> Protocol:
    """A tenth of each class as queries; the rest is trained on and searched.

    A class of three or more images gives at least one query and keeps at least two; smaller classes give none, which a
    note says. An image with several labels counts for each, and rare labels choose first; images without labels are
    never queries, because nothing would be relevant to them.
    """
    rng = np.random.default_rng(seed)
    counts = np.asarray(labels.counts())
    quota = np.where(counts < 3, 0, np.maximum(1, np.round(counts / 10))).astype(np.int64)
    if not quota.any():
        raise DataError(
            f"no class has three images, so none can be a query (the largest has {counts.max(initial=0)}); add images"
        )
    taken = np.zeros(len(counts), np.int64)
    is_query = np.zeros(len(labels), bool)
    for c in np.argsort(counts, kind="stable"):
        for row in rng.permutation(np.flatnonzero(labels.having(c) & ~is_query)):
            if taken[c] == quota[c]:
                break
            mine = labels.values[row]  # a mask over the classes, or the one class
            if np.all(taken[mine] < quota[mine]):
                is_query[row] = True
                taken[mine] += 1
    rest = rng.permutation(np.flatnonzero(~is_query))  # shuffled for the same reason as in CIFAR-10
    query = rng.permutation(np.flatnonzero(is_query))
    if not len(query):
        raise DataError("no image can be a query: each has a label of fewer than three images; remove rare labels")
    without = [labels.names[c] for c in np.flatnonzero((counts > 0) & (taken == 0))]
    n_classes = (counts > 0).sum()
    asked = f"{counted(len(query), 'query')} from {n_classes - len(without):,} of {n_classes:,} classes"
    description = f"{asked}, one or about a tenth of each; {len(rest):,} trained on and searched"
    notes = tuple(
        f"classes without a query: {len(without):,} of {n_classes:,}, first {name}, because each needs three images"
        f"{' without a rarer label' * labels.multi}; MAP says nothing about these classes: add images, or choose"
        " queries in a column split of a table"
        for name in without[:1]
    )
    return Protocol("split", rest, query, rest, seed=seed, description=description, notes=notes)


def few_labels(labels: Labels, seed: int, n: int) -> Protocol:
    """The protocol split with only n training images per class, or all if a class has fewer; all are searched.

    An image with several labels counts for each, and rare labels choose first, so frequent ones may get more than n.
    Smaller sets are part of larger ones.
    """
    base = folder_split(labels, seed)
    trained = labels[base.train]
    members = [np.flatnonzero(trained.having(c)) for c in range(labels.n_classes)]
    chosen = np.zeros(len(base.train), bool)
    for wanted in range(1, n + 1):  # an image per class at a time, so that smaller sets are part of larger ones
        for rows in sorted(members, key=len):
            if chosen[rows].sum() < min(wanted, len(rows)):
                chosen[rows[~chosen[rows]][0]] = True
    train = base.train[chosen]
    description = f"{_sizes(base.query, base.database, train)}, {n} per class"
    return replace(base, name=f"few-{n}", train=train, description=description)


def _nuswide(labels: Labels, seed: int, name: str, topk: int, n_train: int | None = None) -> Protocol:
    """100 queries per concept, the rest searched, all or `n_train` per concept trained on; labelled images only."""
    if not labels.multi or labels.names != NUSWIDE_CONCEPTS:
        raise _wrong_source(name, "NUS-WIDE with its 21 most frequent concepts", labels)
    rng = np.random.default_rng(seed)
    free = np.asarray(labels.values.any(axis=1))
    query = draw_per_label(labels, 100, free, rng, name)
    free[query] = False
    query, database = rng.permutation(query), rng.permutation(np.flatnonzero(free))
    train, how = database, "trained on and searched"
    if n_train is not None:
        train = rng.permutation(draw_per_label(labels, n_train, free, rng, name))
        how = f"searched, {len(train):,} of them ({n_train} per concept) trained on"
    description = f"{len(query):,} queries (100 per concept), {len(database):,} {how}; rare concepts draw first"
    return Protocol(name, train, query, database, topk, seed, description)


def draw_per_label(labels: Labels, k: int, free: np.ndarray, rng: np.random.Generator, name: str) -> np.ndarray:
    """k different rows per label among the `free` ones, by the rule at the top of this file."""
    free = free.copy()
    drawn = []
    for c in np.argsort(labels.counts(), kind="stable"):
        rows = np.flatnonzero(labels.having(c) & free)
        if len(rows) < k:
            raise DataError(
                f"the protocol {name} draws {k} images per label, but only {len(rows):,} with {labels.names[c]!r}"
                " are left; add the missing images or use the protocol split"
            )
        drawn.append(rng.choice(rows, k, replace=False))
        free[drawn[-1]] = False
    return np.concatenate(drawn)


def mirflickr(labels: Labels, seed: int = 0) -> Protocol:
    """The usual random split of labelled MIRFLICKR-25K images: 2,000 queries, the rest searched, 5,000 trained on."""
    if not labels.multi or labels.names != MIRFLICKR_LABELS:
        raise _wrong_source("mirflickr", "MIRFLICKR-25K with its 24 labels", labels)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(np.flatnonzero(labels.values.any(axis=1)))
    if len(rows) < 7000:
        raise DataError(
            f"the protocol mirflickr needs 7,000 labelled images, got {len(rows):,}; add the missing images or use the"
            " protocol split"
        )
    query, database = rows[:2000], rows[2000:]
    train = rng.permutation(database)[:5000]
    return Protocol("mirflickr", train, query, database, 5000, seed, _sizes(query, database, train))


def unlabelled(n: int) -> Protocol:
    """Images without labels: all are trained on and searched, without queries."""
    rows = np.arange(n)
    description = f"{counted(n, 'image')} trained on and searched, no queries"
    return Protocol("unlabelled", rows, rows[:0], rows, description=description)


def given_split(words: Sequence[str], origin: str) -> Protocol | None:
    """The split that came with the images, one of SPLIT_WORDS per row; None without queries or without other rows.

    train is trained on and searched; database is searched, and trained on if train is empty; val is used as queries if
    there are none, else as database.
    """
    roles = np.array([SPLIT_WORDS[word.strip().lower()] for word in words], dtype=str)
    roles[roles == "val"] = "database" if (roles == "query").any() else "query"
    query = np.flatnonzero(roles == "query")
    searched = np.flatnonzero(roles != "query")
    if not len(query) or not len(searched):
        return None
    train = np.flatnonzero(roles == "train") if (roles == "train").any() else searched
    # shuffled, because rows are often grouped by class and their order breaks ties
    database = np.random.default_rng(0).permutation(searched)
    description = f"the split of {origin}: {_sizes(query, searched, train)}"
    return Protocol("given", train, query, database, description=description)


# cifar10 and nuswide: settings 1 and 2 of the DTSH paper
PROTOCOLS: dict[str, Callable[[Labels, int], Protocol]] = {
    "cifar10-1": partial(_cifar10, name="cifar10-1", n_query=100, n_train=500),
    "cifar10-2": partial(_cifar10, name="cifar10-2", n_query=1000, n_train=5000),
    "nuswide-1": partial(_nuswide, name="nuswide-1", topk=5000, n_train=500),
    "nuswide-2": partial(_nuswide, name="nuswide-2", topk=50_000),
    "mirflickr": mirflickr,
    "unseen": unseen_classes,
    "split": folder_split,
    **{f"few-{n}": partial(few_labels, n=n) for n in (1, 2, 4, 8)},
}
