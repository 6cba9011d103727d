"""Groups of images without labels: codes in, groups of similar images out, by scikit-learn's k-means on bits.

This leads from no labels to a trained model: `hashlens groups` writes the groups as a table of paths and labels, a
person corrects it, and `hashlens train` learns from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.codes import Codes
from hashlens.duplicates.find import listed
from hashlens.errors import UsageError, require, require_going
from hashlens.files import write_csv
from hashlens.machine import blocks
from hashlens.progress import Progress, counted
from hashlens.search import open_index

FITTED = 50_000  # minimum number of images for k-means; all others join the nearest group
AT_ONCE = 4_096  # images assigned to groups at a time
SHOWN = 24  # images of a group on the page
MOST = 64  # default maximum of groups: nobody looks through more
FEW = 5  # minimum number of images per group for k-means
THUMBNAIL = 160


@dataclass
class Groups:
    """Groups, largest first; images in a group are ordered by how typical they are."""

    source: str
    groups: list[list[str]]
    chosen: bool  # whether the number of groups was chosen automatically

    @property
    def n_images(self) -> int:
        return sum(map(len, self.groups))

    def name(self, number: int) -> str:
        return f"group-{number + 1:0{len(str(len(self.groups)))}d}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "n_images": self.n_images,
            "n_groups": len(self.groups),
            "groups": [{"name": self.name(number), "paths": paths} for number, paths in enumerate(self.groups)],
        }


def find_groups(
    source: str | os.PathLike[str],
    n: int | None = None,
    model: Path | str | None = None,
    *,
    seed: int = 0,
    at: Path | str | None = None,
    progress: Progress | bool | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Groups:
    """Cluster the images of a source by their codes.

    Without `n`, the number of groups is the square root of half the number of images, at most 64. The silhouette, the
    usual criterion, chose two groups for every folder measured (`benchmarks/groups.py`).
    """
    require("sklearn", why="groups")
    from sklearn.cluster import KMeans

    index = open_index(os.fspath(source), model, at=at, progress=Progress.of(progress), stop=stop)
    paths, codes = listed(index)
    n_different = len(np.unique(codes.packed, axis=0))
    if n is not None and not 1 <= n <= n_different:
        raise UsageError(
            f"--n must be from 1 to {n_different}, because {source} has {counted(len(paths), 'image')} with that many"
            f" different codes, got {n}"
        )
    order = np.random.default_rng(seed).permutation(len(paths))
    n_groups = n or usual_number(len(paths), n_different)
    drawn = np.sort(order[: max(FITTED, FEW * n_groups)])
    require_going(stop)
    fitted = KMeans(n_groups, n_init=4, random_state=seed).fit(bits_of(codes[drawn]))
    labels, apart = np.empty(len(paths), np.int32), np.empty(len(paths), np.float32)
    for some in blocks(len(paths), AT_ONCE):
        bits = bits_of(codes[some])
        labels[some] = fitted.predict(bits)
        apart[some] = np.linalg.norm(bits - fitted.cluster_centers_[labels[some]], axis=1)
    groups = []
    for number in np.unique(labels):
        rows = np.flatnonzero(labels == number)
        groups.append([paths[row] for row in rows[np.argsort(apart[rows], kind="stable")]])
    groups.sort(key=lambda group: (-len(group), group[0]))
    return Groups(os.fspath(source), groups, n is None)


def bits_of(codes: Codes) -> np.ndarray:
    """The bits as numbers, (n, n_bits) float32: 32 times the memory of the codes."""
    return np.unpackbits(codes.packed, axis=1)[:, : codes.n_bits].astype(np.float32)


def usual_number(n_images: int, n_different: int) -> int:
    """The number of groups for n images: the root of n / 2, so that their size grows like their number.

    >>> [usual_number(n, n) for n in (1, 20, 320, 3_000, 1_000_000)]
    [1, 3, 13, 39, 64]
    """
    return max(1, min(round((n_images / 2) ** 0.5), MOST, n_different))


def write_labels(path: Path, groups: Groups) -> None:
    """Write a table of paths and labels, which `hashlens train` takes."""
    rows = [(image, groups.name(number)) for number, paths in enumerate(groups.groups) for image in paths]
    write_csv(path, ("path", "label"), rows)


def write_page(path: Path, groups: Groups) -> None:
    """Write a contact sheet: the most typical images of each group."""
    from hashlens.duplicates.page import thumbnail
    from hashlens.results import report

    shown = [
        (groups.name(number), len(paths), [(image, thumbnail(image)) for image in paths[:SHOWN]])
        for number, paths in enumerate(groups.groups)
    ]
    report.write_page(path, "groups.html.j2", title=f"Groups of {groups.source}", groups=groups, shown=shown)
