"""Downloads with the package managers npm and pip; HASHLENS_OFFLINE=1 forbids every download.

Nothing that was downloaded is executed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

MAX_PAGE = 1 << 24  # bytes of a package's file list


def offline() -> bool:
    return os.environ.get("HASHLENS_OFFLINE", "0") not in ("", "0")


def with_npm(package: str, version: str, folder: Path) -> Path:
    """The archive of an npm package; its scripts are not run."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("the npm client is not installed")
    _run([npm, "pack", f"{package}@{version}", "--silent", "--ignore-scripts"], folder)
    return folder / f"{package}-{version}.tgz"


def with_pip(package: str, version: str, folder: Path) -> Path:
    """The wheel of a Python package or, if it has none, the archive of its sources; nothing in them is run.

    pip would build an archive of sources, and so run its code, just to learn its requirements. So pip may fetch wheels
    only, and an archive is fetched directly from pip's index.
    """
    pip = [sys.executable, "-m", "pip"]
    try:
        wanted = ["--quiet", "--no-deps", "--only-binary", ":all:", f"{package}=={version}"]
        _run([*pip, "download", *wanted], folder)
        return next(folder.glob(f"{package}*.whl"))
    except (OSError, StopIteration) as error:
        name = f"{package}-{version}.tar.gz"
        listing = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, timeout=60, check=False)
        if listing.returncode:
            raise
        given = re.findall(r"(?m)^(?:global|:env:|download)\.(?:extra-)?index-url='([^'\n]+)'", listing.stdout)
        for index in [one for text in given for one in text.split()] or _usual_index():
            if fetched := _archive(index, package, name, folder):
                return fetched
        raise OSError(f"{error}; there is no wheel and no {name}") from error


def _usual_index() -> list[str]:
    """pip's default index."""
    from pip._internal.models.index import PyPI

    return [PyPI.simple_url]


def _archive(index: str, package: str, name: str, folder: Path) -> Path | None:
    """A file listed by a package index (PEP 503), unprocessed."""
    page = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', package).lower()}/"
    page += "index.html" if page.startswith("file:") else ""
    try:
        with urlopen(page, timeout=60) as opened:
            links = re.findall(r'href="([^"]+)"', opened.read(MAX_PAGE).decode(errors="replace"))
        for link in links:
            address = urljoin(page, link.partition("#")[0])
            if address.endswith(f"/{name}") and urlsplit(address).scheme in ("https", urlsplit(page).scheme):
                with urlopen(address, timeout=60) as opened, (folder / name).open("wb") as file:
                    shutil.copyfileobj(opened, file)
                return folder / name
    except (URLError, ValueError):
        return None
    return None


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise OSError(reason[-1][:200])
