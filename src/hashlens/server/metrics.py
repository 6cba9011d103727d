"""Counters in, the text that Prometheus reads out.

hashlens_requests_total, hashlens_request_seconds (a histogram), hashlens_pictures, hashlens_busy (requests at work or
waiting), hashlens_thumbnail_bytes, process_resident_memory_bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hashlens.server.guard import SLOW, Counts
from hashlens.server.thumbs import Thumbs
from hashlens.server.workers import Workers


def as_text(counts: Counts, n_pictures: int, workers: Workers, thumbs: Thumbs) -> str:
    lines = [*_requests(counts), *_gauge("hashlens_pictures", n_pictures), *_gauge("hashlens_busy", workers.busy)]
    lines += _gauge("hashlens_thumbnail_bytes", thumbs.n_bytes)
    memory = resident_memory()
    if memory is not None:
        lines += _gauge("process_resident_memory_bytes", memory)
    return "\n".join(lines) + "\n"


def resident_memory() -> int | None:
    """Bytes of this process in memory; None where the system does not tell in the way of Linux."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _requests(counts: Counts) -> Iterator[str]:
    requests, seconds, slower = counts.copy()
    yield "# TYPE hashlens_requests_total counter"
    for (path, status), n in sorted(requests.items()):
        yield f'hashlens_requests_total{{path="{path}",status="{status}"}} {n}'
    yield "# TYPE hashlens_request_seconds histogram"
    for path in sorted(seconds):
        n = sum(n for (other, _), n in requests.items() if other == path)
        for bound in SLOW:
            yield f'hashlens_request_seconds_bucket{{path="{path}",le="{bound}"}} {slower[path, bound]}'
        yield f'hashlens_request_seconds_bucket{{path="{path}",le="+Inf"}} {n}'
        yield f'hashlens_request_seconds_sum{{path="{path}"}} {seconds[path]:.6f}'
        yield f'hashlens_request_seconds_count{{path="{path}"}} {n}'


def _gauge(name: str, value: int) -> list[str]:
    return [f"# TYPE {name} gauge", f"{name} {value}"]
