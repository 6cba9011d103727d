"""Metrics: the server's counters in, Prometheus text out."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # bounds of the histograms


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("hashlens_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "hashlens_request_seconds", "Seconds per request.", ["path"], buckets=SECONDS, registry=registry
        )
        self.stages = Histogram(
            "hashlens_stage_seconds", "Seconds per stage of a search.", ["stage"], buckets=SECONDS, registry=registry
        )
        self.decoders_ended = Counter(
            "hashlens_decoders_ended",
            "Decoders that an image ended, and that were replaced.",
            ["why"],
            registry=registry,
        )
        self.scrubs = Counter(
            "hashlens_scrubs", "Comparisons of the whole index with its checksums, by result.", ["result"],
            registry=registry,
        )  # fmt: skip
        self.scrubbed = Counter("hashlens_scrubbed_bytes", "Bytes compared with their checksums.", registry=registry)
        self._index = Gauge(
            "hashlens_index_info",
            "The index that is served and the model that made its codes; always 1.",
            ["model", "fingerprint", "n_bits"],
            registry=registry,
        )

    def gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        Gauge(name, meaning, registry=self.registry).set_function(value)

    def stage_times(self, milliseconds: dict[str, float]) -> None:
        for stage, value in milliseconds.items():
            self.stages.labels(stage).observe(value / 1000)

    def text(self, index: dict[str, Any]) -> bytes:
        """All metrics; `index` has the current facts of the index."""
        self._index.clear()
        model = index["model"]
        self._index.labels(model.get("name", ""), model.get("fingerprint", ""), index["n_bits"]).set(1)
        return generate_latest(self.registry)
