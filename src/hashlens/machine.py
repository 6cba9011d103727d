"""Machine: how to use its threads, what is installed, and what `hashlens doctor` prints.

Python threads run compiled code that releases the GIL; a second OpenMP beside torch's would slow down both.
"""

from __future__ import annotations

import os
import platform
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import hashlens
from hashlens.errors import EXTRAS, UsageError, to_install
from hashlens.files import cache_dir, free_bytes

if TYPE_CHECKING:  # imported when threads start: `hashlens search` needs none
    from concurrent.futures import Future, ThreadPoolExecutor

Part = TypeVar("Part")
Result = TypeVar("Result")


def n_threads() -> int:
    """HASHLENS_THREADS if set, else the number of cores this process may use."""
    wanted = os.environ.get("HASHLENS_THREADS")
    if wanted is None:
        # containers often allow fewer cores than the machine has
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not wanted.isdecimal() or int(wanted) < 1:
        raise UsageError(f"HASHLENS_THREADS must be a whole number >= 1, got {wanted!r}")
    return int(wanted)


def in_threads(work: Callable[[Part], Any], parts: Iterable[Part]) -> None:
    """work(part) for all parts. Calling it inside `work` would deadlock, because both use one pool of threads."""
    parts = list(parts)
    if len(parts) == 1:  # waking a thread would only cost time
        work(parts[0])
    else:
        list(_pool(n_threads()).map(work, parts))  # list, so that an exception in a thread is raised here


def shares(n: int) -> list[slice]:
    """n rows divided into one part per thread."""
    threads = n_threads()
    return [slice(a, b) for a, b in pairwise(n * i // threads for i in range(threads + 1))]


def blocks(n: int, size: int) -> list[slice]:
    """n rows divided into parts of `size`; the last one may be shorter."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def work_ahead(work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
    """work(part) for each part, in order; the next parts are computed while the caller uses the last result."""
    from concurrent.futures import ThreadPoolExecutor

    threads = max(2, n_threads())
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, "ahead") as pool:
        for part in parts:
            pending.append(pool.submit(work, part))
            if len(pending) > threads:  # finished results take memory
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Context in which numpy multiplies matrices in the calling thread, as each core has its own work."""
    if find_spec("threadpoolctl") is None:  # comes with the methods that multiply matrices
        return nullcontext()
    return _blas().limit(limits=1, user_api="blas")


@lru_cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@lru_cache
def _pool(threads: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads, "hashlens")


def versions() -> dict[str, str]:
    from importlib import metadata

    names = ["numpy", "numba", "pillow", "scikit-learn", "onnxruntime", "onnx", "torch"]
    found = {"hashlens": hashlens.__version__, "python": platform.python_version()}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def machine() -> dict[str, Any]:
    return {"cpu": _cpu_name(), "threads": n_threads(), "system": f"{platform.system()} {platform.machine()}"}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _kernels() -> str:
    """The kernels that count bits."""
    from hashlens.kernels import VARIABLE, available, kernels

    name = kernels().name
    if os.environ.get(VARIABLE):
        return f"{name} ({VARIABLE})"
    if len(available()) > 1:
        return f"{name}, compiled"
    return "numpy, slower, because nothing was compiled; with gcc or clang, run: python -m hashlens.kernels.build"


def diagnose() -> dict[str, Any]:
    facts: dict[str, Any] = {"versions": versions(), "machine": machine(), "kernels": _kernels()}
    there = {extra: all(map(find_spec, modules)) for extra, modules in EXTRAS.items()}
    facts["extras"] = {extra: "installed" if found else "missing" for extra, found in there.items()}
    if not there["train"]:
        facts["training"] = f"not possible; run: {to_install('train')}"
    else:
        from hashlens.features.networks.inference import choose_device

        facts["training"] = {"device": choose_device()}
    cache = cache_dir()
    used = 0
    for path in cache.rglob("*") if cache.exists() else ():
        with suppress(FileNotFoundError):  # deleted by another process
            used += path.stat().st_size if path.is_file() else 0
    facts["cache"] = f"{cache} ({used / 1e6:,.0f} MB; may be deleted at any time)"
    facts["disk"] = f"{free_bytes(cache) / 1e9:,.0f} GB free"
    return facts
