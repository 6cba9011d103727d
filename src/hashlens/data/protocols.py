"""Labels and a seed in; a Protocol out: which rows are learnt from, which are asked for, which are searched.

The cut-off `topk` of MAP belongs to the protocol. A protocol is saved as one JSON file with a hash of its
rows, so that two results can be shown to come from the same split.

"So many pictures of each label", where a picture may have several: labels are visited from the rarest to the most
frequent, and for each that many pictures are drawn among those that carry it and are not yet chosen. So 100 of
each of 21 labels are exactly 2,100 pictures. The paper leaves this open.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hashlens.data.labels import Labels
from hashlens.errors import DataError
from hashlens.files import write_text

ROLES = ("train", "query", "database")

# fmt: off
# the 21 most frequent of the 81 concepts of NUS-WIDE
NUSWIDE_CONCEPTS = (
    "animal", "beach", "buildings", "clouds", "flowers", "grass", "lake", "mountain", "ocean", "person", "plants",
    "reflection", "road", "rocks", "sky", "snow", "sunset", "tree", "vehicle", "water", "window",
)
# the 24 labels of MIRFLICKR-25K without those of the stricter second round of annotation (_r1)
MIRFLICKR_LABELS = (
    "animals", "baby", "bird", "car", "clouds", "dog", "female", "flower", "food", "indoor", "lake", "male", "night",
    "people", "plant_life", "portrait", "river", "sea", "sky", "structures", "sunset", "transport", "tree", "water",
)
# fmt: on

# What the words of a split column mean, in any letter case; "val" is decided in given_split.
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
    database: np.ndarray = field(repr=False)  # (n_database,) int64; its order decides between equal distances
    topk: int | None = None  # None: MAP over the whole ranking
    seed: int = 0
    description: str = ""

    def __post_init__(self) -> None:
        for role in ROLES:
            given = np.asarray(getattr(self, role))
            if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
                raise DataError(
                    f"{role} rows of {self.name} are a list of whole numbers, not {given.dtype} of shape {given.shape}"
                )
            rows = given.astype(np.int64)  # a copy, frozen like the rest
            rows.flags.writeable = False
            object.__setattr__(self, role, rows)
            repeated = len(rows) - len(np.unique(rows))
            if repeated:
                raise DataError(f"{repeated:,} {role} rows of {self.name} are repeated; each may occur once")
            if rows.size and rows.min() < 0:
                raise DataError(f"{role} row {rows.min()} of {self.name} is negative; rows count from 0")
        for role in ("database", "train"):
            shared = len(np.intersect1d(self.query, getattr(self, role)))
            if shared:
                raise DataError(
                    f"{shared:,} query rows of {self.name} are also {role} rows, which would flatter the"
                    " result; take them out of one of the two"
                )
        if self.topk is not None and self.topk < 1:
            raise DataError(f"topk of {self.name} is {self.topk}; give 1 or more, or None for all")

    def check(self, n: int) -> None:
        """Refuse rows past the end of a source of `n` pictures."""
        for role in ROLES:
            rows = getattr(self, role)
            if rows.size and rows.max() >= n:
                raise DataError(
                    f"{role} row {rows.max():,} of {self.name} is past the end of a source of {n:,} pictures;"
                    " is it the source that the split was made for?"
                )

    def fingerprint(self) -> str:
        """sha256 of the rows by role, in order: the same for the same split, whatever it is called."""
        digest = hashlib.sha256()
        for role in ROLES:
            rows = getattr(self, role)
            digest.update(f"{role} {len(rows)}\n".encode() + rows.astype("<i8").tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write JSON: the facts one a line, then each list of rows on a single line."""
        facts = {
            "name": self.name,
            "description": self.description,
            "seed": self.seed,
            "topk": self.topk,
            "counts": {role: len(getattr(self, role)) for role in ROLES},
            "sha256": self.fingerprint(),
        }
        lines = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in facts.items()]
        for role in ROLES:
            rows = json.dumps(getattr(self, role).tolist(), separators=(",", ":"))
            lines.append(f'"{role}": {rows}')
        write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def load(cls, path: Path) -> Protocol:
        """Read what `save` wrote, and refuse it if its rows are not those it was saved with."""
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            facts = {key: saved[key] for key in ("name", "topk", "seed", "description", *ROLES)}
            expected = saved["sha256"]
            protocol = cls(**facts)
        except DataError:
            raise
        except FileNotFoundError as error:
            raise DataError(f"there is no split file {path}; make one or check the path") from error
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not a split file ({error}); make it again") from error
        if protocol.fingerprint() != expected:
            raise DataError(
                f"the rows in {path} have the sha256 {protocol.fingerprint()[:12]}…, but it says"
                f" {str(expected)[:12]}…, so it was changed or damaged; restore it or make the split again"
            )
        return protocol


def cifar10_setting1(labels: Labels, seed: int = 0) -> Protocol:
    """Setting 1 of the DTSH paper (tables 1, 2): 1,000 queries, 59,000 searched, 5,000 of them to learn.

    Per class a random permutation, as in the authors' code: 100 queries, then 5,900 of the database, of which
    the first 500 train.
    """
    return _cifar10(labels, seed, "cifar10-1", n_query=100, n_train=500)


def cifar10_setting2(labels: Labels, seed: int = 0) -> Protocol:
    """Setting 2 of the DTSH paper (table 3): 10,000 queries, the other 50,000 learnt from and searched."""
    return _cifar10(labels, seed, "cifar10-2", n_query=1000, n_train=5000)


def _cifar10(labels: Labels, seed: int, name: str, n_query: int, n_train: int) -> Protocol:
    if labels.multi or not np.array_equal(labels.counts(), [6000] * 10):
        raise DataError(
            f"the protocol {name} is for CIFAR-10, 6,000 pictures in each of 10 classes; this source has"
            f" {len(labels):,} pictures in {labels.n_classes} classes: use the protocol split"
        )
    rng = np.random.default_rng(seed)
    classes = np.stack([rng.permutation(np.flatnonzero(labels.values == c)) for c in range(10)])  # (10, 6000)
    query, database = classes[:, :n_query].ravel(), classes[:, n_query:].ravel()
    train = classes[:, n_query : n_query + n_train].ravel()
    # Equal distances are ranked in database order. Grouped by class, as here and in the authors' files, that
    # order would rank the first classes above the last ones in every tie; shuffled, it favours none.
    return Protocol(
        name,
        train=rng.permutation(train),
        query=rng.permutation(query),
        database=rng.permutation(database),
        seed=seed,
        description=f"{len(query):,} queries, {len(database):,} searched, {len(train):,} of them learnt from",
    )


def unseen_classes(labels: Labels, seed: int = 0) -> Protocol:
    """Train on some classes, ask for and search among the others: CIFAR-10's ten are seven and three.

    Three tenths of the classes, at least two, drawn with the seed, are unseen. Of each of them 100 pictures are
    queries (a tenth, where it has fewer than 1,000) and the rest is searched; of each other class the first 500 in
    random order are learnt from (all, where it has fewer). Methods without labels learn from the database as ever,
    so they do see pictures of these classes, and supervised ones do not.
    """
    name = "unseen"
    if labels.multi:
        raise DataError(f"the protocol {name} is for pictures of one class each; these have sets of labels: use split")
    rng = np.random.default_rng(seed)
    counts = labels.counts()
    usable = np.flatnonzero(counts >= 3)  # a query, and two to search among
    if len(usable) < 4:
        raise DataError(
            f"the protocol {name} learns two classes and retrieves two others; only {len(usable)} classes have three"
            " pictures or more: add classes or use the protocol split"
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
    learnt, asked, searched = (rng.permutation(np.concatenate(part)) for part in (train, query, database))
    return Protocol(
        name,
        train=learnt,
        query=asked,
        database=searched,
        seed=seed,
        description=f"{len(asked):,} queries and {len(searched):,} searched of the classes"
        f" {', '.join(labels.names[c] for c in unseen)}; {len(learnt):,} of the others learnt from",
    )


def with_training_size(base: Protocol, labels: Labels, n: int) -> Protocol:
    """The queries and the database of `base` with n training pictures, as many of each class, from its database.

    The smaller sets are part of the larger ones, and the size of `base`'s own set gives that set, row by row.
    """
    name = f"{base.name}-train-{n}"
    if labels.multi:
        raise DataError(f"the protocol {name} is for pictures of one class each; these have sets of labels")
    if n < 2:
        raise DataError(f"the protocol {name} needs at least 2 training pictures")
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
                f"the protocol {name} takes {wanted:,} training pictures of each class and there are {len(members):,}"
                f" of {labels.names[c]!r}; choose a smaller number"
            )
        chosen[members[:wanted]] = True
    return Protocol(
        name,
        train=order[chosen],
        query=base.query,
        database=base.database,
        topk=base.topk,
        seed=base.seed,
        description=f"{len(base.query):,} queries, {len(base.database):,} searched, {n:,} of them learnt from",
    )


def folder_split(labels: Labels, seed: int = 0) -> Protocol:
    """A split for one's own pictures: a tenth of each class as queries, the rest learnt from and searched.

    A class of three or more gives at least one query and keeps at least two pictures; smaller ones give none.
    Pictures with several labels count for each of them, rare labels choosing first; those without a label are
    never queries, because nothing would be relevant to them.
    """
    rng = np.random.default_rng(seed)
    counts = np.asarray(labels.counts())
    quota = np.where(counts < 3, 0, np.maximum(1, np.round(counts / 10))).astype(np.int64)
    if not quota.any():
        raise DataError(
            f"no class has the three pictures needed to set one aside as a query (the largest has"
            f" {counts.max(initial=0)}); add pictures"
        )
    taken = np.zeros(len(counts), np.int64)
    is_query = np.zeros(len(labels), bool)
    for c in np.argsort(counts, kind="stable"):
        carries = labels.values[:, c] if labels.multi else labels.values == c
        for row in rng.permutation(np.flatnonzero(carries & ~is_query)):
            if taken[c] == quota[c]:
                break
            mine = labels.values[row]  # a mask over the classes, or the one class
            if np.all(taken[mine] < quota[mine]):
                is_query[row] = True
                taken[mine] += 1
    rest = rng.permutation(np.flatnonzero(~is_query))  # shuffled for the same reason as above
    query = rng.permutation(np.flatnonzero(is_query))
    if not len(query):
        raise DataError(
            "no picture can be set aside as a query, because each carries a label of fewer than three"
            " pictures; add pictures or drop rare labels"
        )
    return Protocol(
        "split",
        train=rest,
        query=query,
        database=rest,
        seed=seed,
        description=f"{len(query):,} queries, a tenth of each class; {len(rest):,} learnt from and searched",
    )


def nuswide_setting1(labels: Labels, seed: int = 0) -> Protocol:
    """Setting 1 of the DTSH paper on NUS-WIDE: 100 queries a concept, 500 a concept of the rest to learn; top 5,000.

    With the same seed the queries are those of setting 2.
    """
    rng = np.random.default_rng(seed)
    query, database = _nuswide_queries(labels, rng, "nuswide-1")
    in_database = np.zeros(len(labels), bool)
    in_database[database] = True
    train = draw_per_label(labels, 500, in_database, rng, "nuswide-1")
    return Protocol(
        "nuswide-1",
        train=rng.permutation(train),
        query=query,
        database=database,
        topk=5000,
        seed=seed,
        description=f"{len(query):,} queries (100 a concept), {len(database):,} searched, {len(train):,} of them"
        " (500 a concept) learnt from; labels from rare to frequent, each drawing among pictures not yet chosen",
    )


def nuswide_setting2(labels: Labels, seed: int = 0) -> Protocol:
    """Setting 2 of the DTSH paper on NUS-WIDE: 100 queries a concept, the rest learnt from and searched; top 50,000."""
    rng = np.random.default_rng(seed)
    query, database = _nuswide_queries(labels, rng, "nuswide-2")
    return Protocol(
        "nuswide-2",
        train=database,
        query=query,
        database=database,
        topk=50_000,
        seed=seed,
        description=f"{len(query):,} queries (100 a concept), {len(database):,} learnt from and searched; labels"
        " from rare to frequent, each drawing among pictures not yet chosen",
    )


def _nuswide_queries(labels: Labels, rng: np.random.Generator, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Query and database rows, shuffled; pictures of no concept are in neither."""
    _require_names(labels, NUSWIDE_CONCEPTS, name, "NUS-WIDE with its 21 most frequent concepts")
    free = np.asarray(labels.values.any(axis=1))
    query = draw_per_label(labels, 100, free, rng, name)
    free[query] = False
    return rng.permutation(query), rng.permutation(np.flatnonzero(free))


def draw_per_label(labels: Labels, k: int, free: np.ndarray, rng: np.random.Generator, name: str) -> np.ndarray:
    """k rows for each label among the `free` ones, all different, by the rule at the head of this file."""
    free = free.copy()
    drawn = []
    for c in np.argsort(labels.counts(), kind="stable"):
        carriers = np.flatnonzero(labels.values[:, c] & free)
        if len(carriers) < k:
            raise DataError(
                f"the protocol {name} draws {k} pictures for each label, and only {len(carriers):,} with"
                f" {labels.names[c]!r} are there to choose from; add the missing pictures or use the protocol split"
            )
        drawn.append(rng.choice(carriers, k, replace=False))
        free[drawn[-1]] = False
    return np.concatenate(drawn)


def mirflickr(labels: Labels, seed: int = 0) -> Protocol:
    """The usual split of MIRFLICKR-25K in papers on hashing: 2,000 queries, the rest searched, 5,000 of it learnt from.

    All at random, among the pictures that have a label; MAP over the top 5,000.
    """
    _require_names(labels, MIRFLICKR_LABELS, "mirflickr", "MIRFLICKR-25K with its 24 labels")
    rng = np.random.default_rng(seed)
    rows = rng.permutation(np.flatnonzero(labels.values.any(axis=1)))
    if len(rows) < 7000:
        raise DataError(
            f"the protocol mirflickr sets 2,000 queries and 5,000 training pictures apart, and only {len(rows):,}"
            " labelled ones are there; add the missing pictures or use the protocol split"
        )
    query, database = rows[:2000], rows[2000:]
    return Protocol(
        "mirflickr",
        train=rng.permutation(database)[:5000],
        query=query,
        database=database,
        topk=5000,
        seed=seed,
        description=f"2,000 random queries, {len(database):,} searched, 5,000 of them learnt from",
    )


def _require_names(labels: Labels, names: tuple[str, ...], protocol: str, wanted: str) -> None:
    if not labels.multi or labels.names != names:
        raise DataError(
            f"the protocol {protocol} is for {wanted}; this source has {len(labels):,} pictures in"
            f" {labels.n_classes} other classes: use the protocol split"
        )


def unlabelled(labels: Labels, seed: int = 0) -> Protocol:
    """For pictures without labels: all are learnt from and searched, and without labels there is nothing to ask for."""
    rows = np.arange(len(labels))
    description = f"{len(rows):,} pictures learnt from and searched, no queries"
    return Protocol("unlabelled", rows, rows[:0], rows, seed=seed, description=description)


def natural_protocol(labels: Labels) -> str:
    """The protocol that the labels themselves suggest."""
    if labels.n_classes == 0:
        return "unlabelled"
    return {NUSWIDE_CONCEPTS: "nuswide-1", MIRFLICKR_LABELS: "mirflickr"}.get(labels.names, "split")


def given_split(words: Sequence[str], origin: str) -> Protocol | None:
    """The split that came with the pictures, one of SPLIT_WORDS for each row; None if it has no queries or no rest.

    train is learnt from and searched, database only searched; without any train, the database is learnt from.
    val is asked for if there is neither query nor test, and only searched otherwise.
    """
    roles = np.array([SPLIT_WORDS[word.strip().lower()] for word in words], dtype=str)
    roles[roles == "val"] = "database" if (roles == "query").any() else "query"
    query = np.flatnonzero(roles == "query")
    searched = np.flatnonzero(roles != "query")
    if not len(query) or not len(searched):
        return None
    train = np.flatnonzero(roles == "train")
    train = train if len(train) else searched
    return Protocol(
        "given",
        train=train,
        query=query,
        # shuffled, because rows often come class by class, and their order decides between equal distances
        database=np.random.default_rng(0).permutation(searched),
        description=f"the split of {origin}: {len(query):,} queries, {len(searched):,} searched,"
        f" {len(train):,} of them learnt from",
    )


PROTOCOLS: dict[str, Callable[[Labels, int], Protocol]] = {
    "cifar10-1": cifar10_setting1,
    "cifar10-2": cifar10_setting2,
    "nuswide-1": nuswide_setting1,
    "nuswide-2": nuswide_setting2,
    "mirflickr": mirflickr,
    "unseen": unseen_classes,
    "split": folder_split,
    "unlabelled": unlabelled,
}
