"""What /metrics tells Prometheus: requests, their times, and the state of one application."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # bounds of the histogram


class Metrics:
    """One registry per application; each gauge is a name with its help and what to call for its value."""

    def __init__(self, gauges: Mapping[tuple[str, str], Callable[[], Any]]):
        self._registry = CollectorRegistry()
        labels: Any = {"labelnames": ["path", "status"], "registry": self._registry}
        self._requests = Counter("hashlens_requests", "Requests answered.", **labels)
        labels["labelnames"] = ["path"]
        self._seconds = Histogram("hashlens_request_seconds", "Seconds per request.", buckets=SECONDS, **labels)
        for (name, meaning), value in gauges.items():
            Gauge(name, meaning, registry=self._registry).set_function(value)
        ProcessCollector(registry=self._registry)

    def add(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)
