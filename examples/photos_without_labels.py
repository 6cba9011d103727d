"""Photos without labels

A folder of any photos in; the nearest ones and groups that look alike out, with the general model of the package: no
labels, no training, no network access. Without an argument it uses small pictures drawn here.

    python examples/photos_without_labels.py photos/ query.jpg
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import hashlens


def drawn_photos(folder: Path, n: int = 24) -> Path:
    """Discs, bars and rings in varying colours and places."""
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for i in range(n):
        image = Image.new("RGB", (96, 96), tuple(rng.integers(180, 256, 3).tolist()))
        x, y = rng.integers(10, 40, 2).tolist()
        draw, ink = ImageDraw.Draw(image), tuple(rng.integers(0, 120, 3).tolist())
        if i % 3 == 0:
            draw.ellipse((x, y, x + 40, y + 40), fill=ink)
        elif i % 3 == 1:
            draw.rectangle((x, 5, x + 12, 90), fill=ink)
        else:
            draw.ellipse((x, y, x + 45, y + 45), outline=ink, width=6)
        image.save(folder / f"{('disc', 'bar', 'ring')[i % 3]}-{i:02}.png")
    return folder


photos = Path(sys.argv[1]) if sys.argv[1:] else drawn_photos(Path("drawn-photos"))
query = sys.argv[2] if sys.argv[2:] else photos / "ring-05.png"

searcher = hashlens.search_folder(photos)  # encodes what is new, and keeps the codes
print(f"nearest to {Path(query).name}:")
for hit in searcher.search(query, k=6)["hits"]:
    print(f"  {hit['distance']:4} bits  {Path(hit['path']).name}")

for group in hashlens.find_groups(photos, 3).groups:
    print(f"group of {len(group)}: {', '.join(Path(path).name for path in group[:4])} …")
