"""docs/figures/page.jpg, duplicates.jpg and groups.jpg: `serve` and `--html` pages with real photos, in a browser.

    python -m benchmarks.screens DATA

DATA has grocery81, unpacked: the Grocery Store Dataset (Klasson, Zhang, Kjellström, WACV 2019), MIT licence. The photos
are drawn with a seed; the copies among them are made here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
WIDTH = 1080
CLASSES, PHOTOS = 12, 16  # number of classes, and of photos per class


def make_photos(data: Path, folder: Path) -> None:
    classes = sorted((data / "grocery81").iterdir())
    drawn = [classes[row] for row in sorted(np.random.default_rng(0).permutation(len(classes))[:CLASSES])]
    for file in [file for one in drawn for file in sorted(one.rglob("*.jpg"))[:PHOTOS]]:
        copy = folder / file.parent.name / f"{file.stem.rpartition('_')[2]}.jpg"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy)
    first, second = sorted(folder.rglob("*.jpg"))[:: 2 * PHOTOS][:2]
    shutil.copy2(first, first.with_name(f"{first.stem} (1).jpg"))
    make_copies(first)
    make_copies(second)


def make_copies(file: Path) -> None:
    image = Image.open(file).convert("RGB")
    width, height = image.size
    image.resize((width // 2, height // 2)).save(file.with_name("small.jpg"), quality=60)
    image.crop((width // 10, height // 10, width * 9 // 10, height * 9 // 10)).save(file.with_name("cropped.jpg"))
    image.rotate(90, expand=True).save(file.with_name("turned.jpg"))
    screen = Image.new("RGB", (width + width // 8, height + height // 2), "#202020")
    screen.paste(image, (width // 16, height // 4))
    screen.save(file.with_name("screenshot.png"))


class Screen:
    """A browser that takes pictures of the upper part of pages."""

    def __init__(self, place: Path):
        sys.path.insert(0, str(ROOT / "tests"))
        from server.browser import Browser

        self.browser, self.shot = Browser(place / "profile"), place / "shot.png"
        self.browser.scheme("light")

    def save(self, address: str, out: str, height: int, ready: str = "true") -> None:
        self.browser.size(WIDTH, height, mobile=True)  # without a scroll bar
        self.browser.open(address)
        self.browser.until(ready)
        seen = "[...document.images].filter(image => image.getBoundingClientRect().top < innerHeight && image.src)"
        self.browser.until(f"{seen}.every(image => image.complete && image.naturalWidth)")
        self.browser.screenshot(self.shot, whole=False)
        Image.open(self.shot).convert("RGB").save(FIGURES / out, quality=84, optimize=True)


def main(data: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        make_photos(data, place / "photos")
        environment = os.environ | {"HASHLENS_CACHE": str(place / "cache")}
        hashlens = [sys.executable, "-m", "hashlens"]
        screen = Screen(place)
        for command, height in (("duplicates", 1000), ("groups", 900)):
            page = place / f"{command}.html"
            subprocess.run([*hashlens, command, "photos", "--html", page], cwd=place, env=environment, check=True)
            shown = page.read_text(encoding="utf-8").replace(str(place), "/home/me")  # instead of this machine's folder
            page.write_text(shown, encoding="utf-8")
            screen.save(page.as_uri(), f"{command}.jpg", height)
        serve = [*hashlens, "serve", "photos", "--port", "0"]
        with subprocess.Popen(serve, cwd=place, env=environment, stdout=subprocess.PIPE, text=True) as server:
            try:
                address = server.stdout.readline().split()[-1]
                with urllib.request.urlopen(f"{address}/v1/items?limit=500") as answer:
                    items = json.load(answer)["items"]
                query = items[len(items) // 2]["id"]
                screen.save(
                    f"{address}/?id={query}", "page.jpg", 675, "document.querySelectorAll('#hits li').length > 9"
                )
            finally:
                server.terminate()
        screen.browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
