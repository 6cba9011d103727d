"""A small real index for tests: parts of two photographs and digits as files, a trained model, its codes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from hashlens import DTSH, Training
from hashlens.codes.export import export_onnx
from hashlens.codes.model import ModelFolder
from hashlens.data.images import as_images
from hashlens.index.folder import IndexFolder
from hashlens.progress import Progress

N_BITS = 20  # not whole bytes


@dataclass(frozen=True)
class Made:
    images: Path
    model: Path
    exported: Path
    index: Path


def make_images(folder: Path, n: int = 20) -> list[str]:
    """n JPEGs of 96 x 72 for each of three classes, in folders; their paths."""
    from sklearn.datasets import load_digits, load_sample_images

    rng = np.random.default_rng(0)
    china, flower = load_sample_images().images
    digits = load_digits().images
    paths = []
    for name, photograph in (("palace", china), ("flower", flower), ("digit", None)):
        (folder / name).mkdir(parents=True)
        for number in range(n):
            if photograph is None:
                image = Image.fromarray((255 - digits[number] * 15).astype(np.uint8)).resize((96, 72), 0)
            else:
                top, left = rng.integers(0, 300), rng.integers(0, 500)
                image = Image.fromarray(photograph[top : top + 120, left : left + 140]).resize((96, 72))
            path = folder / name / f"{number:03d}.jpg"
            image.convert("RGB").save(path, quality=90)
            paths.append(path.as_posix())
    return paths


def make_index(folder: Path) -> Made:
    made = Made(folder / "images", folder / "runs" / "made" / "model", folder / "exported", folder / "index")
    paths = make_images(made.images)
    labels = [Path(path).parent.name for path in paths]
    training = Training(epochs=1, batch_size=30)
    hasher = DTSH(N_BITS, backbone="small-cnn", image_size=24, sampling="in-batch", training=training)
    hasher.fit(paths, np.unique(labels, return_inverse=True)[1]).save(made.model)
    small = as_images(as_images(paths).read(slice(None), 27))  # thousands of crops are checked: decode them once
    export_onnx(made.model, made.exported, small, Progress(quiet=True))
    index = IndexFolder.create(made.index, N_BITS, ModelFolder(made.model).describe())
    items = pa.table({"path": paths, "labels": pa.array([[label] for label in labels], pa.list_(pa.string()))})
    codes = hasher.encode(paths)
    index.add(codes[:30], items[:30])
    index.add(codes[30:], items[30:])
    return made


def add_shard(folder, codes, items):
    """List images (a table, or paths) in a codes folder and write their codes as one shard."""
    table = items if isinstance(items, pa.Table) else pa.table({"path": items})
    first = folder.list["n"]
    folder.extend(table)
    folder.append(slice(first, first + len(codes)), codes, table)
