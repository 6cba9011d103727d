"""Find duplicates

A folder of photos in; identical files, copies (smaller, cropped, recompressed, turned) and look-alikes out, and which
file to keep. Without an argument it makes copies of a drawing.

    python examples/find_duplicates.py photos/
"""

import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

import hashlens


def made_copies(folder: Path) -> Path:
    rng = np.random.default_rng(1)
    folder.mkdir(exist_ok=True)
    for name in ("garden", "harbour"):
        image = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize(
            (480, 360), Image.Resampling.BICUBIC
        )
        image.filter(ImageFilter.GaussianBlur(1)).save(folder / f"{name}.png")
    original = Image.open(folder / "garden.png")
    shutil.copy(folder / "garden.png", folder / "garden (1).png")
    original.resize((240, 180)).save(folder / "garden-small.jpg", quality=70)
    original.crop((30, 20, 450, 340)).save(folder / "garden-cropped.jpg")
    original.rotate(90, expand=True).save(folder / "garden-turned.jpg")
    return folder


photos = Path(sys.argv[1]) if sys.argv[1:] else made_copies(Path("photos-with-copies"))
found = hashlens.find_duplicates(photos)
print(f"{found.n_images} images, {len(found.groups)} groups")
for group in found.groups:
    print(f"{group.kind}, keep {Path(group.images[0].path).name} ({group.why}):")
    for image in group.images[1:]:
        print(f"  {Path(image.path).name}, {image.width} x {image.height}")
