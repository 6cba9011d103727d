"""JPEG files to codes: images per second on one core in 8 bits and in floats, and MAP in both.

    python -m benchmarks.encoding map NAME RUN [--every 4]    # RUN of hashlens train; of the database every 4th image
    python -m benchmarks.encoding speed RUN PHOTOS            # photos, enlarged to 640 x 480 here

Both add to benchmarks/results/speed/encoding.json. Speed is CPU time on one thread, all ways in turns, the least of
several rounds. The usual way is a torch DataLoader and the same network in eager torch; the DataLoader has no worker
processes, so that starting them and copying between them does not count against it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

import hashlens
from hashlens.cli.options import open_source_of
from hashlens.codes.encoder import Encoder
from hashlens.codes.model import ModelFolder
from hashlens.data.images import as_images
from hashlens.data.protocols import Protocol
from hashlens.files import write_json
from hashlens.machine import machine, versions
from hashlens.progress import Progress
from hashlens.results.metrics import evaluate_with_ranking
from hashlens.results.runs import load_codes, load_config

FILE = Path(__file__).parent / "results" / "speed" / "encoding.json"
SIZE, QUALITY = (640, 480), 90
PHOTOS, ROUNDS = 48, 5


def in_8_bits(run: Path, folder: Path) -> Encoder:
    """The model of a run in 8 bits, calibrated on its training images."""
    source, protocol = open_source_of(load_config(run), None, Progress(quiet=True)), Protocol.load(run / "split.json")
    train = source.images[protocol.train]
    hashlens.export(run, folder / "int8", source.images[protocol.query[:64]], int8=True, calibrate=train)
    return Encoder.load(folder / "int8")


def measure_map(run: Path, every: int) -> dict[str, Any]:
    """MAP of the run's own queries in its database, with the saved float codes and with 8-bit codes."""
    source, protocol = open_source_of(load_config(run), None, Progress(quiet=True)), Protocol.load(run / "split.json")
    query, database, asked, searched = load_codes(run)
    some = np.arange(0, len(database), every)
    with tempfile.TemporaryDirectory() as folder:
        train = source.images[protocol.train]
        made = hashlens.export(run, Path(folder) / "int8", source.images[protocol.query], int8=True, calibrate=train)
        encoder = Encoder.load(Path(folder) / "int8")
        ours = [
            encoder.encode(source.images[rows], progress=True) for rows in (protocol.query, protocol.database[some])
        ]
    found, precisions = {}, []
    for name, codes in (("float", (query, database[some])), ("int8", tuple(ours))):
        given = (*codes, asked, searched[some])
        scores, ranking = evaluate_with_ranking(given, protocol.topk)
        found[name] = {key: scores[key] for key in ("map", "map_tie_aware", "map_both") if scores.get(key) is not None}
        precisions.append(ranking.average_precision(replace(ranking.definition, ties="expected")))
    difference = precisions[1] - precisions[0]
    difference = difference[~np.isnan(difference)]
    return found | {
        "difference": float(difference.mean()),
        "standard_error": float(difference.std(ddof=1) / np.sqrt(len(difference))),
        "bits_equal": made["bits_equal"],
        "n_query": len(query),
        "n_database": len(some),
        "method": load_config(run)["method"],
        "n_bits": query.n_bits,
        "size": encoder.size,
    }


def measure_speed(run: Path, photos: Path) -> dict[str, Any]:
    """CPU milliseconds per photo."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)
    trained: Any = hashlens.load(ModelFolder.resolve(run).path)
    with tempfile.TemporaryDirectory() as folder:
        floats, ints = Encoder.load(run), in_8_bits(run, Path(folder))
        paths = enlarged(photos, Path(folder))
        images, size = as_images(paths), ints.require_images().size

        class Files(Dataset):
            def __len__(self) -> int:
                return len(paths)

            def __getitem__(self, i: int) -> torch.Tensor:
                image = Image.open(paths[i]).convert("RGB")
                square = ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
                return torch.from_numpy(np.asarray(square).copy())

        def usual() -> None:
            with torch.inference_mode():
                for batch in DataLoader(Files(), batch_size=32):
                    trained.network_.eval()(batch)

        pixels = images.read(np.arange(len(images)), size)
        ways: dict[str, Callable[[], Any]] = {
            "DataLoader, eager torch": usual,
            "read": lambda: images.read(np.arange(len(images)), size),
            "network, float": lambda: alone(floats, pixels),
            "network, int8": lambda: alone(ints, pixels),
            "codes, float": lambda: floats.codes(images),
            "codes, int8": lambda: ints.codes(images),
        }
        best = dict.fromkeys(ways, np.inf)
        for _ in range(ROUNDS):
            for name, way in ways.items():
                start = time.process_time()
                way()
                best[name] = min(best[name], 1000 * (time.process_time() - start) / len(images))
        n_bytes = float(np.mean([path.stat().st_size for path in paths]))
    per_second = {name: 1000 / spent for name, spent in best.items()}
    facts = {"size": size, "mirror": ints.mirror, "photos": len(paths), "bytes": n_bytes}
    return facts | {"cpu_ms": best, "per_second": per_second}


def alone(encoder: Encoder, pixels: np.ndarray) -> None:
    """The network alone, on images that were already read."""
    extractor = encoder.require_images()
    for i in range(0, len(pixels), extractor.batch):
        extractor(pixels[i : i + extractor.batch])


def enlarged(photos: Path, folder: Path) -> list[Path]:
    """Photos as JPEG files of 640 x 480."""
    found = []
    for i, path in enumerate(sorted(photos.rglob("*.jpg"))[:PHOTOS]):
        found.append(folder / f"{i:03d}.jpg")
        with Image.open(path) as image:
            ImageOps.fit(image.convert("RGB"), SIZE, Image.Resampling.BICUBIC).save(found[-1], quality=QUALITY)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    scores = parts.add_parser("map")
    scores.add_argument("name")
    scores.add_argument("run", type=Path)
    scores.add_argument("--every", type=int, default=1)
    speed = parts.add_parser("speed")
    speed.add_argument("run", type=Path)
    speed.add_argument("photos", type=Path)
    asked = parser.parse_args()
    os.environ["HASHLENS_THREADS"] = "1"
    facts = {"versions": versions(), "machine": machine()}
    if asked.part == "map":
        key, name, made = "map", asked.name, measure_map(asked.run, asked.every)
    else:
        made = measure_speed(asked.run, asked.photos)
        key, name = "speed", str(made["size"])
    print(json.dumps(made, indent=1))
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    kept.setdefault(key, {})[name] = made | facts
    write_json(FILE, kept)


if __name__ == "__main__":
    main()
