"""docs/figures/groceries.jpg: the same queries with untrained and trained 48-bit codes, one below the other.

hashlens features DATA/grocery81 --out grocery81.npy
python -m benchmarks.pictures grocery81.npy

The photos are from the Grocery Store Dataset (Klasson, Zhang, Kjellström, WACV 2019), MIT licence. Queries are drawn
with a seed, one from each of three classes, and not picked. LSH takes signs of random projections of the features that
DTSH learns from; both have a second code of 128 bits that orders equal distances.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from hashlens import DTSH, LSH, HammingIndex, evaluate_codes, make_protocol, open_source
from hashlens.codes.hamming import distances as hamming

OUT = Path(__file__).parent.parent / "docs" / "figures" / "groceries.jpg"
N_QUERIES, N_FOUND, SIDE, GAP, LABEL = 3, 7, 118, 6, 20
RIGHT, WRONG, INK, PAPER = "#0072b2", "#d55e00", "#222222", "#ffffff"


def main(features: str) -> None:
    source = open_source(features)
    split = make_protocol(source)
    rng = np.random.default_rng(1)
    classes = rng.permutation(np.unique(source.labels.values[split.query]))[:N_QUERIES]
    queries = [split.query[np.flatnonzero(source.labels.values[split.query] == c)[0]] for c in classes]
    X, y = np.asarray(source.images), source.labels
    rows = []
    for title, hasher in (("untrained", LSH(48, second_bits=128)), ("trained", DTSH(48, second_bits=128))):
        hasher.fit(X[split.train], y[split.train])
        database = hasher.encode(X[split.database])
        scores = evaluate_codes(hasher.encode(X[split.query]), database, y[split.query], y[split.database])
        index = HammingIndex(48, second_bits=128)
        index.add(database)
        asked = hasher.encode(X[np.array(queries)])
        distances, ids = index.search(asked, k=N_FOUND, by="both")
        seconds = [hamming(asked.second[[q]], database.second[ids[q]])[0] for q in range(N_QUERIES)]
        print(f"{title}: MAP {scores['map']:.3f}, random {scores['map_random']:.3f}")
        rows.append((title, scores["map"], distances, seconds, split.database[ids]))
    draw(source, queries, rows).save(OUT, quality=84, optimize=True)


def draw(source, queries, rows) -> Image.Image:
    width = 110 + (N_FOUND + 1) * (SIDE + GAP) + 14
    height = N_QUERIES * 2 * (SIDE + LABEL) + (N_QUERIES - 1) * 14 + 2 * GAP
    sheet = Image.new("RGB", (width, height), PAPER)
    pen, font, bold = ImageDraw.Draw(sheet), ImageFont.load_default(13), ImageFont.load_default(15)
    files, labels = source.images.files, source.labels.values
    y = GAP
    for q, query in enumerate(queries):
        pen.text((110, y + 2), source.labels.names[labels[query]].replace("-", " ")[:18], INK, font)
        paste(sheet, files, query, 110, y + LABEL, INK)
        for title, score, distances, seconds, found in rows:
            pen.text((8, y + LABEL + 30), title, INK, bold)
            pen.text((8, y + LABEL + 50), f"MAP {score:.2f}", INK, font)
            for place, row in enumerate(found[q]):
                x = 110 + (place + 1) * (SIDE + GAP) + 8
                right = labels[row] == labels[query]
                paste(sheet, files, row, x, y + LABEL, RIGHT if right else WRONG)
                text = f"{distances[q][place]} + {seconds[q][place]} {'same' if right else 'other'}"
                pen.text((x, y + 2), text, RIGHT if right else WRONG, font)
            y += SIDE + LABEL
        y += 14
    return sheet


def paste(sheet, files, row, x, y, color) -> None:
    image = ImageOps.fit(Image.open(files.open(row)).convert("RGB"), (SIDE - 6, SIDE - 6))
    sheet.paste(ImageOps.expand(image, 3, color), (x, y))


if __name__ == "__main__":
    main(sys.argv[1])
