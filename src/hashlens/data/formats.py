"""Formats: which files in folders count as images, by name, and which decoders may open them.

Other files in photo folders are ignored: RAW files, videos of live photos, folders of thumbnails.
"""

from functools import cache
from importlib.util import find_spec

HEIC = (".heic", ".heif", ".hif")
HAS_HEIC = find_spec("pillow_heif") is not None
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", *(HEIC if HAS_HEIC else ()))
READABLE = f"JPEG, PNG, WebP, BMP, GIF{', HEIC' if HAS_HEIC else ''} or TIFF"
RAW = (
    ".3fr", ".arw", ".cr2", ".cr3", ".dng", ".erf", ".iiq", ".kdc", ".nef", ".nrw", ".orf", ".pef", ".raf", ".raw",
    ".rw2", ".sr2", ".srw", ".x3f",
)  # fmt: skip
VIDEOS = (".mov", ".mp4")  # of live photos, if next to an image of the same name
# thumbnails, bins and snapshots of NAS boxes, Windows and macOS
SYSTEM = {
    "@eadir", "@recycle", "#recycle", "#snapshot", "$recycle.bin", "system volume information", "__macosx",
    "lost+found", "thumbnails.noindex",
}  # fmt: skip


def is_ignored(name: str) -> bool:
    """Whether a file or folder of this name is hidden or belongs to the system."""
    return name.startswith(".") or name.lower() in SYSTEM


@cache
def decoders() -> tuple[str, ...]:
    """The decoders to try, whatever the file name; others, such as EPS, start other programs."""
    if HAS_HEIC:
        import pillow_heif

        pillow_heif.register_heif_opener()
    return ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", *(["HEIF"] if HAS_HEIC else []))
