"""Send ten thousand odd requests made from the OpenAPI document: none may cause a server error.

    python -m benchmarks.fuzz INDEX [--n 10000] [--seed 0]

INDEX is a folder made by `hashlens index build`; requests search by id and code, and by image if its model is found.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import time
from pathlib import Path
from typing import Any

import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, seed, settings

ALLOWED = {200, 201, 202, 204, 400, 401, 403, 404, 405, 408, 409, 413, 415, 421, 422, 503, 507}


def fuzz(app: FastAPI, n: int, seed: int) -> dict[str, Any]:
    """Send about n requests, spread over all addresses; returns the failures and the number of answers per status."""
    logging.getLogger("httpx").setLevel(logging.WARNING)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Host": "127.0.0.1"})
    operations = [result.ok() for result in schema.get_all_operations()]
    statuses: dict[int, int] = {}
    failures: list[str] = []
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:

        def send(method: str, path: str, **how: Any) -> None:
            response = client.request(method, path, **how)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
            if response.status_code not in ALLOWED:
                failures.append(f"{method} {path}: {response.status_code} {response.text[:200]}")
            elif response.status_code >= 400 and not _is_sentence(response):
                failures.append(f"{method} {path}: {response.status_code} without a sentence: {response.text[:200]}")

        for operation in operations:
            # an address without parameters has only one possible request
            share = n // 2 if "search" in operation.path else n // (2 * len(operations))
            _from_document(operation, share, seed, send)
        _mutated(n - sum(statuses.values()), seed, send)
        if client.get("/healthz").status_code != 200:
            failures.append("the server no longer answers")
    return {"requests": sum(statuses.values()), "statuses": dict(sorted(statuses.items())), "failures": failures}


def _is_sentence(response: Any) -> bool:
    if response.headers["content-type"] == "image/svg+xml":
        return True
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(detail, str) and bool(detail) and "\n" not in detail and "Traceback" not in detail


def _from_document(operation: Any, n: int, number: int, send: Any) -> None:
    """Requests that follow the document, and some that do not."""
    for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
        try:
            strategy = operation.as_strategy(generation_mode=mode)
        except Exception as error:  # an address without parameters has no invalid requests
            logging.getLogger(__name__).debug("%s: %s", operation.label, error)
            continue

        @seed(number)
        @settings(
            max_examples=max(n // 2, 1), database=None, deadline=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=strategy)
        def run(case: Any) -> None:
            how = case.as_transport_kwargs(base_url="http://127.0.0.1")
            if "files" in how:  # an invalid request may have another type than a file
                how["files"] = [(str(name), _bytes(value)) for name, value in how["files"]]
            kept = ("params", "json", "data", "files", "headers", "content")
            send(how["method"], how["url"], **{name: how[name] for name in kept if name in how})

        try:
            run()
        except Exception as error:  # no request can be generated for it
            logging.getLogger(__name__).debug("%s: %s", operation.label, error)


def _bytes(value: Any) -> Any:
    if isinstance(value, tuple):
        return (str(value[0]), _bytes(value[1]), *value[2:])
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


def _mutated(n: int, number: int, send: Any) -> None:
    """Requests beyond the document: odd bodies, odd addresses and images with changed bytes."""
    rng = random.Random(number)
    image = _image()
    words = [
        "3",
        "-1",
        "0",
        "9" * 30,
        "../../etc/passwd",
        "%00",
        "ffffff",
        "null",
        "NaN",
        "é",
        "' or 1=1",
        "<b>",
        "1e9",
    ]
    for i in range(max(n, 0)):
        kind = i % 4
        if kind == 0:
            content = bytearray(image[: rng.randrange(1, len(image) + 1)])
            for _ in range(rng.randrange(0, 20)):
                content[rng.randrange(len(content))] = rng.randrange(256)
            fields = {name: rng.choice(words) for name in ("k", "radius", "label") if rng.random() < 0.3}
            send("POST", "/v1/search", files={"image": ("a.jpg", bytes(content))}, data=fields)
        elif kind == 1:
            names = rng.sample(["id", "code", "k", "radius", "label", "x"], rng.randrange(1, 4))
            values = [rng.choice([*words, 3, -1, 2**80, 1.5, None, [], {}, True]) for _ in names]
            body = json.dumps(dict(zip(names, values, strict=True)))[: rng.choice([10, 1000])]
            send("POST", "/v1/search", content=body.encode(), headers={"content-type": "application/json"})
        elif kind == 2:
            send("GET", rng.choice(["/v1/items/{}", "/v1/items/{}/thumb", "/{}", "/v1/{}"]).format(rng.choice(words)))
        else:
            body = bytes(rng.randrange(256) for _ in range(rng.randrange(200)))
            kinds = ["multipart/form-data; boundary=x", "multipart/form-data", "application/json", "text/plain", "é"]
            header = {"content-type": rng.choice(kinds).encode()}
            send(rng.choice(["POST", "PUT", "DELETE", "PATCH"]), "/v1/search", content=body, headers=header)


def _image() -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").resize((64, 64)).save(file, "JPEG")
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("index", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from hashlens.search import open_searcher
    from hashlens.server.app import create_app

    start = time.perf_counter()
    found = fuzz(create_app(open_searcher(options.index, options.model)), options.n, options.seed)
    print(f"{found['requests']:,} requests in {time.perf_counter() - start:.0f} s: {found['statuses']}")
    for failure in found["failures"][:20]:
        print(failure)
    raise SystemExit(bool(found["failures"]))


if __name__ == "__main__":
    main()
