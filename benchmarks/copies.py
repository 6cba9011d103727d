"""Copies of photos: how many each method finds, and how many different photos it confuses.

    python -m benchmarks.copies mirflickr25k-128px.tar            the table of docs/duplicates.md
    python -m benchmarks.copies mirflickr25k-128px.tar --tune grocery81.tar    our limit, on other photos

For each kind of copy there is a folder with N photos of MIRFLICKR-25K and a copy of each, saved as JPEG. A copy is
found if it is paired with its photo. A group is false if its images come from different photos. Each peer gets the
threshold that finds most with at most one false group per 1,000 photos; ours was fixed beforehand, on other photos and
on products photographed several times in a row, which are look-alikes but not copies. Results are cached by kind, so
rerunning resumes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import imagehash
import numpy as np
import pdqhash
from PIL import Image, ImageDraw, ImageEnhance, ImageFont, ImageOps

from hashlens.duplicates import align
from hashlens.duplicates import copies as copying
from hashlens.duplicates.copies import CORRELATION, candidates, copies, is_copy, judged
from hashlens.duplicates.looks import LOOK, look_at
from hashlens.files import cache_dir, replacing, write_json
from hashlens.machine import machine, versions

RESULTS = Path(__file__).parent / "results"
SEED, N_TUNING, N_PRODUCTS, N_REPORTED = 17, 1_000, 700, 2_000
FALSE_GROUPS = 1.0  # per 1,000 photos
SAME = {(587, 710)}  # photos that MIRFLICKR contains twice, by number; checked by eye

Copy = Callable[[Image.Image, np.random.Generator], Image.Image]


def cropped(share: float) -> Copy:
    """The image without that share of width and height on each of the four sides."""

    def crop(image: Image.Image, rng: np.random.Generator) -> Image.Image:
        across, down = round(share * image.width), round(share * image.height)
        return image.crop((across, down, image.width - across, image.height - down))

    return crop


def turned(way: Image.Transpose) -> Copy:
    return lambda image, rng: image.transpose(way)


def bordered(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """The image with a border of 20 % on each side, white, black or any colour."""
    colour = [(255, 255, 255), (0, 0, 0), tuple(rng.integers(0, 256, 3).tolist())][rng.integers(3)]
    return ImageOps.expand(image, round(0.2 * image.width), colour)


def with_text(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    image = image.copy()
    place = rng.uniform(0.02, 0.4) * image.width, rng.choice([0.03, 0.85]) * image.height
    font = ImageFont.load_default(size=image.height / 10)
    ImageDraw.Draw(image).text(place, "sample text", "white", font, stroke_width=1, stroke_fill="black")
    return image


def screenshot(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """The image in a window: margins of 5 to 25 % on each side, below a bar with a title and three buttons."""
    width, height = image.size
    left, right, top, bottom = rng.uniform(0.05, 0.25, 4)
    dark, bar = rng.random() < 0.5, round(0.1 * height)
    size = round(width * (1 + left + right)), round(height * (1 + top + bottom)) + bar
    window = Image.new("RGB", size, (32, 33, 36) if dark else (245, 245, 247))
    draw = ImageDraw.Draw(window)
    draw.rectangle((0, 0, size[0], bar), (60, 64, 67) if dark else (222, 225, 230))
    font = ImageFont.load_default(size=0.6 * bar)
    draw.text((4, 1), "photo.jpg - Viewer", (200, 200, 200) if dark else (40, 40, 40), font)
    for button in range(1, 4):
        right_end = size[0] - button * bar
        draw.ellipse((right_end, 0.3 * bar, right_end + 0.4 * bar, 0.7 * bar), (200, 80, 60))
    window.paste(image, (round(width * left), bar + round(height * top)))
    return window


KINDS: dict[str, Copy] = {
    "half the size": lambda image, rng: image.resize((image.width // 2, image.height // 2)),
    "JPEG quality 20": lambda image, rng: image,
    "crop 5 %": cropped(0.05),
    "crop 10 %": cropped(0.10),
    "mirrored": turned(Image.Transpose.FLIP_LEFT_RIGHT),
    "upside down": turned(Image.Transpose.FLIP_TOP_BOTTOM),
    "rotated 90°": turned(Image.Transpose.ROTATE_90),
    "rotated 180°": turned(Image.Transpose.ROTATE_180),
    "rotated 270°": turned(Image.Transpose.ROTATE_270),
    "transposed": turned(Image.Transpose.TRANSPOSE),
    "transversed": turned(Image.Transpose.TRANSVERSE),
    "rotated 4°": lambda image, rng: image.rotate(rng.choice([-4, 4]), Image.Resampling.BICUBIC),
    "border 20 %": bordered,
    "text": with_text,
    "brightness": lambda image, rng: ImageEnhance.Brightness(image).enhance(rng.choice([0.6, 1.4])),
    "screenshot": screenshot,
}
ORIENTED = ("mirrored", "upside down", "rotated 90°", "rotated 180°", "rotated 270°", "transposed", "transversed")


def saved(image: Image.Image, kind: str) -> Image.Image:
    """The image after saving and reloading."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=20 if kind == "JPEG quality 20" else 90)
    return Image.open(file).convert("RGB")


def dark_and_uniform(photos: list[Image.Image]) -> Iterator[Image.Image]:
    """300 different images with little content."""
    rng = np.random.default_rng(SEED)
    for image in photos[:100]:  # dark, as with the lens cap on: at most 10 of 255
        yield ImageEnhance.Brightness(image).enhance(0.04)
    for _ in range(100):  # one colour, with a little noise
        yield Image.fromarray((rng.integers(0, 256, 3) + rng.normal(0, 1.5, (128, 128, 3))).clip(0, 255).astype("u1"))
    for _ in range(100):  # a gradient between two colours, like a sky
        ends, way = rng.uniform(0, 256, (2, 3)), np.linspace(0, 1, 128)[:, None, None]
        sky = np.broadcast_to(ends[0] + (ends[1] - ends[0]) * way, (128, 128, 3))
        yield Image.fromarray(np.ascontiguousarray(sky.astype("u1")))


def _imagehash(make: Callable[..., Any], **settings: Any) -> Callable[[Image.Image], np.ndarray]:
    return lambda image: np.packbits(make(image, **settings).hash)


PEERS: dict[str, Callable[[Image.Image], np.ndarray]] = {
    "pHash 64": _imagehash(imagehash.phash),
    "pHash 256": _imagehash(imagehash.phash, hash_size=16),
    "dHash 64": _imagehash(imagehash.dhash),
    "wHash 64": _imagehash(imagehash.whash),
    "PDQ 256": lambda image: np.packbits(pdqhash.compute(np.asarray(image))[0]),
}
EIGHT = ", 8 orientations"  # hashes of the photo in all orientations; the nearest counts
TURNED = ("pHash 256", "PDQ 256")


def read_photos(path: Path, numbers: np.ndarray) -> list[Image.Image]:
    wanted, found = {f"mirflickr25k/im{number}.jpg": number for number in numbers.tolist()}, {}
    with tarfile.open(path) as tar:
        for member in tar:
            if member.name in wanted:
                found[wanted[member.name]] = Image.open(io.BytesIO(tar.extractfile(member).read())).convert("RGB")  # type: ignore[union-attr]
    return [found[number] for number in numbers.tolist()]


def described(images: list[Image.Image], file: Path, names: list[str]) -> dict[str, np.ndarray]:
    """The descriptors of each method for each image, and its seconds; from the file if it exists."""
    found: dict[str, np.ndarray] = {}
    if file.exists():
        with np.load(file) as kept:
            found = dict(kept)
    if "looks" in found and found["looks"].dtype != LOOK:  # from another version
        del found["looks"]
    missing = [name for name in names if name not in found]
    if not missing:
        return found
    look_at(images[0])
    for name in missing:
        start = time.process_time()
        if name == "looks":
            found[name] = np.stack([look_at(image) for image in images])
        elif name.endswith(EIGHT):
            ways = [None, *Image.Transpose]
            hashed = PEERS[name.removesuffix(EIGHT)]
            found[name] = np.stack(
                [[hashed(image if way is None else image.transpose(way)) for way in ways] for image in images]
            )
        else:
            found[name] = np.stack([PEERS[name](image) for image in images])
        found[f"seconds {name}"] = np.array(time.process_time() - start)
    with replacing(file) as temporary, temporary.open("wb") as opened:
        np.savez(opened, **found)
    return found


def false_groups(n: int, pairs: np.ndarray, same: np.ndarray) -> int:
    """The number of groups, formed by pairs of images, that mix different photos."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = pairs[same[pairs[:, 0] % n] != same[pairs[:, 1] % n]] % n
    if not len(pairs):
        return 0
    graph = coo_array((np.ones(len(pairs)), (same[pairs[:, 0]], same[pairs[:, 1]])), shape=(n, n))
    _, group = connected_components(graph, directed=False)
    return int((np.bincount(group) > 1).sum())


def pairs_within(a: np.ndarray, b: np.ndarray, radius: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `a` and `b` with near codes, (n, 2), and their distances; the nearest of several codes counts."""
    ways, padded = a.reshape(len(a), -1, a.shape[-1]), -a.shape[-1] % 8
    words_a, words_b = (
        np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padded)]).view(np.uint64) for x in (np.ascontiguousarray(ways), b)
    )
    pairs, apart = [], []
    for row in range(len(a)):
        distances = np.bitwise_count(words_a[row][:, None] ^ words_b).sum(axis=2, dtype=np.int32).min(axis=0)
        near = np.flatnonzero(distances <= radius)
        pairs.append(np.stack([np.full(len(near), row), near], axis=1))
        apart.append(distances[near])
    return np.concatenate(pairs), np.concatenate(apart)


def peer_curve(name: str, kept: dict[str, dict[str, np.ndarray]], same: np.ndarray) -> dict[str, Any]:
    """Recall per kind at the largest radius with few false groups."""
    n, photos = len(same), kept["photo"][name]
    plain = kept["photo"][name.removesuffix(EIGHT)]
    limit = 8 * plain.shape[-1] * 3 // 8  # all methods have too many false groups below this
    near = {}
    for kind in KINDS:
        both = np.concatenate([plain, kept[kind][name.removesuffix(EIGHT)]])
        pairs, apart = pairs_within(photos, both, limit)
        if not name.endswith(EIGHT):  # include pairs of copies
            more, more_apart = pairs_within(both[n:], both[n:], limit)
            pairs, apart = np.concatenate([pairs, more + n]), np.concatenate([apart, more_apart])
        near[kind] = pairs, apart
    chosen: dict[str, Any] = {}
    for radius in range(limit + 1):
        groups = [false_groups(n, pairs[apart <= radius], same) for pairs, apart in near.values()]
        false = float(np.mean(groups)) / n * 1_000
        if chosen and false > FALSE_GROUPS:  # equal hashes count even with too many false groups
            break
        recall = {
            kind: float(((pairs[:, 1] - pairs[:, 0] == n) & (apart <= radius)).sum()) / n
            for kind, (pairs, apart) in near.items()
        }
        chosen = {"radius": radius, "false_groups": false, "recall": recall}
    assert chosen["radius"] < limit, f"{name} would find more beyond {limit}"
    dark, apart = pairs_within(kept["dark"][name.removesuffix(EIGHT)], kept["dark"][name.removesuffix(EIGHT)], limit)
    n_dark = len(kept["dark"]["looks"])
    chosen["dark_groups"] = false_groups(n_dark, dark[apart <= chosen["radius"]], np.arange(n_dark))
    chosen["seconds"] = float(kept["photo"][f"seconds {name}"]) / n * 1_000
    return chosen


def judged_pairs(looks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Candidates and the results of their alignment, without a limit."""
    first, second, maps = (np.concatenate(parts) for parts in zip(*candidates(looks), strict=True))
    return np.stack([first, second], axis=1), judged(looks, first, second, maps)


def pairs_of(looks: np.ndarray, place: Path, kind: str) -> tuple[np.ndarray, float]:
    """The pairs found by `copies`, and its seconds; from the cache if code and looks are unchanged."""
    digest = hashlib.sha256(looks.tobytes())
    for module in (align, copying):
        digest.update(Path(str(module.__file__)).read_bytes())
    file = place / f"pairs-{digest.hexdigest()[:32]}.npz"
    if not file.exists():
        start = time.process_time()
        pairs = copies(looks)
        seconds = time.process_time() - start
        with replacing(file) as temporary, temporary.open("wb") as opened:
            np.savez(opened, pairs=pairs, seconds=seconds)
    with np.load(file) as kept:
        print(f"pairs    {kind}", flush=True)
        return kept["pairs"], float(kept["seconds"])


def ours(kept: dict[str, dict[str, np.ndarray]], same: np.ndarray, numbers: np.ndarray, place: Path) -> dict[str, Any]:
    n, recall, groups, seconds, mixed = len(same), {}, [], [], set()
    for kind in KINDS:
        pairs, took = pairs_of(np.concatenate([kept["photo"]["looks"], kept[kind]["looks"]]), place, kind)
        seconds.append(took / 2 + float(kept[kind]["seconds looks"]))
        recall[kind] = float((pairs[:, 1] - pairs[:, 0] == n).sum()) / n
        groups.append(false_groups(n, pairs, same))
        mixed |= {tuple(sorted(numbers[pair % n].tolist())) for pair in pairs if len(set(same[pair % n])) > 1}
        print(f"{kind:<16} {recall[kind]:.4f}   false groups {groups[-1]}", flush=True)
    n_dark = len(kept["dark"]["looks"])
    return {
        "recall": recall,
        "false_groups": float(np.mean(groups)) / n * 1_000,
        "mixed_up": sorted(mixed),
        "dark_groups": false_groups(n_dark, pairs_of(kept["dark"]["looks"], place, "dark")[0], np.arange(n_dark)),
        "seconds": float(np.mean(seconds)) / n * 1_000,
    }


def read_products(path: Path) -> list[Image.Image]:
    """The first N_PRODUCTS images ordered by name, so that classes are contiguous."""
    with tarfile.open(path) as tar:
        members = sorted((member for member in tar if member.name.endswith(".jpg")), key=lambda member: member.name)
        files = [tar.extractfile(member) for member in members[:N_PRODUCTS]]
        return [Image.open(io.BytesIO(file.read())).convert("RGB") for file in files if file]


def tune(kept: dict[str, dict[str, np.ndarray]], same: np.ndarray, products: list[Image.Image]) -> list[dict[str, Any]]:
    """Recall, false groups and pairs of products taken for copies, at several correlation limits."""
    exposures, of_exposures = judged_pairs(np.stack([look_at(image) for image in products]))
    n, rows = len(same), []
    found = {kind: judged_pairs(np.concatenate([kept["photo"]["looks"], kept[kind]["looks"]])) for kind in KINDS}
    for limit in (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85):
        recall, groups = {}, []
        for kind, (pairs, judgement) in found.items():
            good = pairs[is_copy(judgement, limit)]
            recall[kind] = len(np.unique(good[good[:, 1] - good[:, 0] == n], axis=0)) / n
            groups.append(false_groups(n, good, same))
        mean = float(np.mean(list(recall.values())))
        rows.append({"correlation": limit, "mean": mean, "false_groups": float(np.mean(groups)) / n * 1_000})
        mixed = len(np.unique(exposures[is_copy(of_exposures, limit)], axis=0))
        rows[-1] |= {"exposures_as_copies": mixed, "recall": recall}
        print(f"{limit:.2f}   recall {mean:.4f}   false groups {sum(groups)}   exposures {mixed}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tar", type=Path, help="mirflickr25k-128px.tar")
    parser.add_argument("--tune", type=Path, metavar="grocery81.tar", help="ours alone, on other photos and on these")
    options = parser.parse_args()
    order = np.random.default_rng(SEED).permutation(25_000) + 1
    numbers = order[:N_TUNING] if options.tune else order[N_TUNING : N_TUNING + N_REPORTED]
    photos = read_photos(options.tar, numbers)
    names = ["looks"] if options.tune else ["looks", *PEERS]
    place = cache_dir() / "benchmarks" / ("copies-tuning" if options.tune else "copies")
    kept = {}
    for number, kind in enumerate(["photo", "dark", *KINDS]):
        rng = np.random.default_rng([SEED, number])
        if kind == "dark":
            images = list(dark_and_uniform(photos))
        else:
            images = photos if kind == "photo" else [saved(KINDS[kind](photo, rng), kind) for photo in photos]
        more = [f"{name}{EIGHT}" for name in TURNED] if kind == "photo" and not options.tune else []
        kept[kind] = described(images, place / f"{number:02d}.npz", [*names, *more])
        print(f"kept     {kind}", flush=True)
    same = np.arange(len(numbers))
    rows = {number: row for row, number in enumerate(numbers.tolist())}
    for first, second in SAME:
        if first in rows and second in rows:
            same[rows[second]] = same[rows[first]]
    about = {"photos": len(numbers), "seed": SEED, "machine": machine(), "versions": versions()}
    if options.tune:
        limits = tune(kept, same, read_products(options.tune))
        about |= {"products": N_PRODUCTS, "chosen": CORRELATION}
        write_json(RESULTS / "tuning" / "copies.json", about | {"limits": limits})
        return
    methods = {"hashlens": ours(kept, same, numbers, place)}
    for name in (*PEERS, *(f"{name}{EIGHT}" for name in TURNED)):
        methods[name] = peer_curve(name, kept, same)
        print(
            f"{name:<28} within {methods[name]['radius']} recall {np.mean(list(methods[name]['recall'].values())):.4f}",
            flush=True,
        )
    write_json(RESULTS / "copies.json", about | {"methods": methods})


if __name__ == "__main__":
    main()
