"""Doctor: nothing in, facts about this installation and machine out."""

from __future__ import annotations

import importlib.util
import shutil
from contextlib import suppress
from typing import Any

from hashlens.files import cache_dir
from hashlens.runs import machine, versions


def diagnose() -> dict[str, Any]:
    facts: dict[str, Any] = {"versions": versions(), "machine": machine()}
    if importlib.util.find_spec("torch") is None:
        facts["training"] = 'not possible: torch is missing; pip install "hashlens[train]"'
    else:
        from hashlens.networks.inference import choose_device, choose_precision

        device = choose_device()
        facts["training"] = {"device": device, "precision": choose_precision("auto", device)}
    cache = cache_dir()
    used = 0
    for path in cache.rglob("*") if cache.exists() else ():
        with suppress(FileNotFoundError):  # another process has just deleted it
            used += path.stat().st_size if path.is_file() else 0
    facts["cache"] = f"{cache} ({used / 1e6:,.0f} MB; may be deleted at any time)"
    existing = next(parent for parent in [cache, *cache.parents] if parent.exists())
    facts["disk"] = f"{shutil.disk_usage(existing).free / 1e9:,.0f} GB free"
    return facts
