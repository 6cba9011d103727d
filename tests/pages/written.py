"""The pages that people wrote: README, docs and CONTRIBUTING, and what is in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
MADE = ("generated", "reproduction/REPRODUCTION.md", "reproduction/tables")


def pages() -> list[Path]:
    docs = ROOT / "docs"
    written = [path for path in sorted(docs.rglob("*.md")) if not str(path.relative_to(docs)).startswith(MADE)]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *written]


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of every fenced block."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [(language.strip(), text) for language, text in found]


def commands(page: Path) -> list[str]:
    """Every hashlens command of a page, in blocks and in running text, without comments."""
    text = page.read_text(encoding="utf-8")
    in_blocks = [line for language, block in blocks(page) if language in ("", "sh", "text") for line in joined(block)]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    inline = [" ".join(found.split()) for found in re.findall(r"`((?:\S*/)?hashlens [a-z][^`]*)`", prose)]
    starts = r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:torchrun .*-m |\.venv/bin/|uv run .*?)?(hashlens [a-z-].*)$"
    return [match[1] for line in [*in_blocks, *inline] if (match := re.match(starts, line.partition(" #")[0].strip()))]


def joined(block: str) -> list[str]:
    return re.sub(r"\\\n\s*", " ", block).splitlines()
