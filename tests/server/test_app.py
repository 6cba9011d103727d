"""The HTTP interface on a real small index: answers, refusals, limits, and that nothing brings it down."""

import asyncio
import base64
import io
import json
import signal
import socket
import struct
import threading
import time
import urllib.request
import zlib
from pathlib import Path

import httpx2 as httpx
import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from running import descendants, resident, running
from starlette.exceptions import HTTPException

from hashlens import Codes
from hashlens.errors import UsageError
from hashlens.index.catalog import Catalog
from hashlens.index.folder import IndexFolder
from hashlens.search import Searcher, open_searcher
from hashlens.server.access import Access
from hashlens.server.app import create_app
from hashlens.server.limits import Limits
from hashlens.server.serving import is_loopback, listen
from hashlens.server.workers import Workers

BASE = "http://127.0.0.1"


@pytest.fixture(scope="module")
def searcher(made):
    return open_searcher(made.index, made.exported)


@pytest.fixture(scope="module")
def client(searcher):
    with TestClient(create_app(searcher), base_url=BASE, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def image(made):
    return (made.images / "palace" / "003.jpg").read_bytes()


def upload(client, content, name="query.jpg", path="/v1/search", **fields):
    return client.post(path, files={"image": (name, content)}, data=fields)


def assert_problem(response, status, *words):
    """A refusal is one sentence of problem+json, in words for people."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status and problem["title"] and problem["type"] == "about:blank"
    for word in words:
        assert word in problem["detail"]
    for word in ("Traceback", "faiss", "AssertionError", "\n"):
        assert word not in problem["detail"]


def png_header(width, height):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def test_an_image_an_id_and_a_code_find_the_same(client, searcher, image):
    by_image = upload(client, image, k="7").json()
    assert by_image["query"]["name"] == "query.jpg" and by_image["query"]["width"] == 96
    assert set(by_image) == {"query", "hits", "ties", "histogram", "timing_ms", "index", "by", "n_bits"}
    assert set(by_image["timing_ms"]) == {"decode", "encode", "search", "items"}
    assert by_image["index"] == searcher.facts() and len(by_image["hits"]) == 7
    by_id = client.post("/v1/search", json={"id": 3, "k": 7, "histogram": True}).json()
    assert by_image["histogram"] is None and sum(upload(client, image, histogram="true").json()["histogram"]) == 60
    by_code = client.post("/v1/search", json={"code": by_image["query"]["code"], "k": 7}).json()
    assert by_image["hits"] == by_id["hits"] == by_code["hits"]
    assert by_image["hits"][0]["thumb"] == f"/v1/items/{by_image['hits'][0]['id']}/thumb"
    assert by_id["query"]["labels"] == ["palace"] and sum(by_id["histogram"]) == 60


def test_how_many_and_how_near(client):
    assert len(client.post("/v1/search", json={"id": 3}).json()["hits"]) == 20
    assert len(client.post("/v1/search", json={"id": 3, "k": 1000}).json()["hits"]) == 60
    answer = client.post("/v1/search", json={"id": 3, "radius": 20}).json()
    assert len(answer["hits"]) == 60
    assert len(client.post("/v1/search", json={"id": 3, "radius": 20, "k": 4}).json()["hits"]) == 4
    near = client.post("/v1/search", json={"id": 3, "radius": 0, "histogram": True}).json()
    assert {hit["distance"] for hit in near["hits"]} == {0} and near["ties"]["shown"] == near["ties"]["total"]
    flowers = client.post("/v1/search", json={"id": 3, "label": "flower", "k": 60}).json()
    assert len(flowers["hits"]) == 20
    assert client.post("/v1/search", json={"id": 3, "label": "none"}).json()["hits"] == []


def test_the_number_of_results_is_limited(searcher, image):
    with TestClient(create_app(searcher, limits=Limits(max_k=5)), base_url=BASE) as client:
        for how in ({}, {"k": 5}, {"radius": 20}):
            assert len(client.post("/v1/search", json={"id": 3, **how}).json()["hits"]) == 5
        too_many = client.post("/v1/search", json={"id": 3, "k": 6})
        assert too_many.status_code == 422 and "k must be <= 5" in too_many.json()["detail"]
        assert client.get("/v1/info").json()["limits"]["max_k"] == 5


def test_encode(client, searcher, image):
    found = upload(client, image, path="/v1/encode").json()
    expected = bytes.fromhex(searcher.item(3)["code"])
    assert found["code"] == expected.hex() and base64.b64decode(found["base64"]) == expected and found["n_bits"] == 20
    assert client.post("/v1/encode", json={"id": 3}).json()["code"] == found["code"]
    assert_problem(upload(client, b"text", path="/v1/encode"), 400, "cannot read the image query.jpg: not a JPEG")


def test_items_and_thumbnails(client, made):
    item = client.get("/v1/items/3").json()
    assert item["path"].endswith("palace/003.jpg") and item["labels"] == ["palace"] and len(item["code"]) == 6
    small = client.get("/v1/items/3/thumb")
    assert small.headers["content-type"] == "image/jpeg" and len(small.content) < 12_000
    assert Image.open(io.BytesIO(small.content)).size == (96, 72)  # never enlarged
    assert client.get("/v1/items/3/thumb").content == small.content
    assert client.get("/v1/items/3/thumb", params={"size": "large"}).status_code == 200
    assert_problem(client.get("/v1/items/3/thumb", params={"size": "../../etc"}), 422, "size must be small or large")
    for address in ("/v1/items/60", "/v1/items/60/thumb", f"/v1/items/{2**63 - 1}"):
        assert_problem(client.get(address), 404, "no image", "it was removed, or never added")


def test_facts(client):
    info = client.get("/v1/info").json()
    assert info["n"] == 60 and info["n_bits"] == 20 and info["exact"] and info["takes_images"]
    assert sorted(info["labels"]) == ["digit", "flower", "palace"] and len(info["examples"]) == 6
    assert client.get("/healthz").json() == {"alive": True} and client.get("/readyz").json() == {"ready": True}
    lines = client.get("/metrics").text.splitlines()
    assert 'hashlens_requests_total{path="/v1/info",status="200"} 1.0' in lines and "hashlens_images 60.0" in lines
    buckets = [line for line in lines if line.startswith("hashlens_request_seconds_bucket") and "/v1/info" in line]
    counts = [float(line.split()[-1]) for line in buckets]
    assert all(f"# HELP {line.split()[2]}" in "\n".join(lines) for line in lines if line.startswith("# TYPE"))
    assert counts == sorted(counts) and counts[-1] == 1
    memory = next(line for line in lines if line.startswith("process_resident_memory_bytes"))
    assert 10**7 < float(memory.split()[1]) < 10**11


def test_the_pages_need_nothing_from_elsewhere(client):
    total = 0
    for path, kind in (
        ("/", "text/html"),
        ("/style.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/docs", "text/html"),
        ("/icon.svg", "image/svg+xml"),
    ):
        response = client.get(path)
        assert response.status_code == 200 and response.headers["content-type"].startswith(kind)
        assert "https://" not in response.text
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; img-src 'self' blob:;") and "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"
        total += len(response.content)
    assert total < 60_000
    text = client.get("/docs").text
    assert "/v1/items/{id}/thumb" in text and f"{BASE}/v1/search" in text
    document = client.get("/openapi.json").json()
    assert set(document["paths"]["/v1/search"]["post"]["requestBody"]["content"]) == {
        "multipart/form-data",
        "application/json",
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"just text", "cannot read the image query.jpg: not a JPEG"),
        (b"", "zero bytes"),
        (png_header(30_000, 30_000), "900 megapixels, limit 25; save it again, smaller"),
        (png_header(5_100, 5_000), "26 megapixels, limit 25"),  # which index images may have
        (png_header(200, 200), "query.jpg"),  # a whole file, but of too few pixels
    ],
)
def test_unreadable_images(client, content, words):
    assert_problem(upload(client, content), 400, words)


def test_a_truncated_image(client, image):
    assert_problem(upload(client, image[: len(image) // 2], "a.jpg"), 400, "a.jpg: truncated")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"id": 3, "k": 0}, 422, "k: "),
        ({"id": 3, "k": -1}, 422, "k: "),
        ({"id": 3, "k": "many"}, 422, "k: "),
        ({"id": 3, "k": 2.5}, 422, "k: "),
        ({"id": 3, "radius": -1}, 422, "radius: "),
        ({"id": -1}, 422, "id: "),
        ({"id": 2**70}, 422, "id: "),
        ({"id": "3"}, 422, "id: "),
        ({"id": 60}, 404, "no image 60"),
        ({"code": "ff"}, 422, "6 hex digits are needed, got 2"),
        ({"code": "ff" * 9_000}, 422, "6 hex digits"),
        ({"code": "no hex"}, 422, "hex digits"),
        ({"code": "ffffff"}, 422, "20 bits; the bits after those must be 0"),
        ({"code": "../../etc/passwd"}, 422, "hex digits"),
        ({"id": 3, "code": "ffffff"}, 422, "either id or code"),
        ({}, 422, "either id or code"),
        ({"path": "/etc/passwd"}, 422, "path"),
        ({"url": "http://127.0.0.1/"}, 422, "url"),
        ({"id": 3, "label": "\ud800"}, 422, "label"),
        ({"id": 3, "label": 5}, 422, "label"),
        ([], 422, ""),
        (None, 422, ""),
        (5, 422, ""),
    ],
)
def test_wrong_questions(client, body, status, words):
    response = client.post("/v1/search", content=json.dumps(body), headers={"content-type": "application/json"})
    assert_problem(response, status, words)


def test_wrong_bodies(client, image):
    as_json = {"content-type": "application/json"}
    for content in (b"", b"{", b"\xff\xfe", b"[" * 60_000, b'{"id": NaN}', b'{"id": 1e999}'):
        response = client.post("/v1/search", content=content, headers=as_json)
        assert response.status_code in (400, 422) and "\n" not in response.json()["detail"]
    assert_problem(
        client.post("/v1/search", content=image, headers={"content-type": "image/jpeg"}), 415, "multipart/form-data"
    )
    assert_problem(client.post("/v1/search"), 415)
    assert_problem(client.post("/v1/search", data={"image": "text"}, files={"other": b"x"}), 422, "image: ")
    assert_problem(client.post("/v1/search", files={"image": b"x", "b": b"y"}), 400)
    assert_problem(upload(client, image, k="0"), 422, "k: ")
    assert_problem(upload(client, image, k="²"), 422, "k: ")
    assert_problem(upload(client, image, k="9" * 5000), 422, "k: ")
    assert_problem(upload(client, image, unknown="1"), 422, "unknown")
    broken = {"content-type": "multipart/form-data"}
    assert_problem(client.post("/v1/search", content=b"x", headers=broken), 400)
    assert_problem(upload(client, b"text", name="a\nb.jpg"), 400)
    assert_problem(client.post("/v1/search", json={"id": 3, "a\nb" + "c" * 500: 1}), 422, "a?b")
    assert upload(client, image, k="", radius="", label="").status_code == 200  # an empty field is none


@pytest.mark.parametrize(
    "hostile", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "/etc/passwd", "%00"]
)
def test_no_way_to_a_file(client, hostile, image):
    for address in (
        f"/v1/items/{hostile}",
        f"/v1/items/{hostile}/thumb",
        f"/{hostile}",
        f"/page/{hostile}",
        f"/v1/{hostile}",
    ):
        response = client.get(address)
        assert response.status_code in (404, 422) and "root:" not in response.text
    assert client.get("/app.py").status_code == client.get("/docs.html.j2").status_code == 404
    answer = upload(client, image, name=hostile).json()
    assert len(answer["hits"]) == 20
    assert client.post("/v1/search", json={"id": 3, "label": hostile}).json()["hits"] == []


def test_other_names_for_this_machine_are_refused(client, searcher):
    """A page elsewhere could have its own name point here, and read the answers."""
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        response = client.get("/v1/info", headers={"host": host})
        assert_problem(response, 421, "answers only under 127.0.0.1 and localhost")
        assert response.headers["x-content-type-options"] == "nosniff"
    for host in ("localhost:8000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST"):
        assert client.get("/healthz", headers={"host": host}).status_code == 200
    with TestClient(create_app(searcher, access=Access(hosts=None)), base_url="http://any.example") as anyone:
        assert anyone.get("/healthz").status_code == 200


def test_large_uploads_are_refused_while_they_arrive(searcher, image):
    with TestClient(create_app(searcher, limits=Limits(max_upload=100_000)), base_url=BASE) as client:
        assert upload(client, image).status_code == 200
        assert_problem(upload(client, b"\0" * 100_001), 413, "the limit is 0.1 MB (server option --max-upload)")
        assert_problem(upload(client, b"\0" * 10**7), 413)
        seen = 0

        def endless():
            nonlocal seen
            yield b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
            for _ in range(100):
                seen += 10_000
                yield b"\0" * 10_000

        response = client.post(
            "/v1/search", content=endless(), headers={"content-type": "multipart/form-data; boundary=x"}
        )
        assert_problem(response, 413)
        assert_problem(
            client.post("/v1/search", content=b" " * 10**6, headers={"content-type": "application/json"}), 413
        )


def test_missing_files_have_a_placeholder(tmp_path, rng):
    index = IndexFolder.create(tmp_path / "index", 12, {"fingerprint": "ab" * 32, "name": "none"})
    (tmp_path / "photos").mkdir()
    paths = [f"{tmp_path}/photos/{i}.png" for i in range(3)]
    Image.new("RGB", (400, 400)).save(paths[0])
    index.add(Codes.from_relaxed(rng.normal(size=(3, 12))), pa.table({"path": paths}))
    index.remove([2])
    app = create_app(Searcher(index), limits=Limits(thumbnail_cache=3_000))
    with TestClient(app, base_url=BASE) as client:
        gone = client.get("/v1/items/1/thumb")
        assert gone.status_code == 404 and gone.headers["content-type"] == "image/svg+xml" and "file moved" in gone.text
        assert client.get("/v1/items/0/thumb").status_code == 200
        assert_problem(client.get("/v1/items/2/thumb"), 404, "it was removed")
        assert_problem(client.post("/v1/search", json={"id": 2}), 404, "it was removed")
        assert_problem(upload(client, b"x"), 422, "no model for images is loaded")
        assert len(client.post("/v1/search", json={"id": 1}).json()["hits"]) == 2
        for size in ("small", "large") * 3:
            client.get("/v1/items/0/thumb", params={"size": size})
        assert app.state.service.thumbs.currsize <= 3_000


def test_an_empty_index(tmp_path):
    index = IndexFolder.create(tmp_path / "index", 12, {"fingerprint": "ab" * 32, "name": "none"})
    with TestClient(create_app(Searcher(index)), base_url=BASE) as client:
        assert client.get("/v1/info").json()["n"] == 0
        assert_problem(client.post("/v1/search", json={"code": "abc0"}), 409, "hashlens index add")
        assert_problem(client.post("/v1/search", json={"id": 0}), 409)
        assert client.get("/").status_code == 200


def test_an_error_of_ours_is_a_sentence_too(searcher, monkeypatch, caplog):
    with TestClient(create_app(searcher), base_url=BASE, raise_server_exceptions=False) as client:
        monkeypatch.setattr(searcher, "item", lambda id_: 1 / 0)
        response = client.get("/v1/items/3")
        assert_problem(response, 500, "the server's log has the details")
        assert response.headers["x-content-type-options"] == "nosniff" and "ZeroDivisionError" in caplog.text


def test_a_full_queue_and_slow_work():
    async def main():
        release = threading.Event()
        workers = Workers(waiting=2, threads=1)
        tasks = [asyncio.create_task(workers.run(release.wait, 10)) for _ in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(HTTPException, match="busy") as caught:
            await workers.run(release.wait)
        assert caught.value.status_code == 503 and caught.value.headers == {"Retry-After": "1"}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await tasks[0]
        assert workers.busy == 3  # nobody waits for the first any more, but it is still being worked on
        release.set()
        assert await tasks[1] and await tasks[2] and workers.busy == 0
        busy = pytest.raises(HTTPException, match="busy")
        with workers.reading(), workers.reading(), workers.reading(), busy, workers.reading():
            pass
        assert workers.n_reading == 0
        workers.close()

    asyncio.run(main())


def test_an_answer_that_takes_too_long(searcher, monkeypatch):
    app = create_app(searcher, limits=Limits(timeout=0.2))
    with TestClient(app, base_url=BASE) as client:
        search = searcher.search
        monkeypatch.setattr(searcher, "search", lambda *given: time.sleep(0.6) or search(*given))
        response = client.post("/v1/search", json={"id": 3})
        assert_problem(response, 503, "no answer within 0.2 seconds")
        assert response.headers["retry-after"] == "5"
        monkeypatch.undo()
        time.sleep(0.6)
        assert client.post("/v1/search", json={"id": 3}).status_code == 200


def test_ports_and_addresses():
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost") and not is_loopback("0.0.0.0")
    first = listen("127.0.0.1", 0)
    port = first.getsockname()[1]
    second = listen("127.0.0.1", port)
    assert second.getsockname()[1] > port
    first.close()
    second.close()
    with pytest.raises(UsageError, match=r"cannot listen on 203\.0\.113\.9"):
        listen("203.0.113.9", 8000)
    with pytest.raises(UsageError, match="not an address of this machine"):
        listen("no such host.invalid", 8000)


@pytest.fixture
def process(made):
    """hashlens serve in another folder, at a port that was taken, with limits of its own."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        limits = ["--max-k", 30, "--max-pixels", 5, "--timeout", 50, "--max-waiting", 70, "--thumbnail-cache", 1]
        with running(made.index, "--model", made.exported, "--port", port, *limits) as started:
            yield started, port


def test_a_real_server(process, image):
    """It finds its images, 1 GB of zeros does not fill its memory, many at once are answered, SIGTERM ends it well."""
    started, port = process
    address, pid = started.address, started.process.pid
    host = address.removeprefix("http://")
    before = resident(pid)
    as_json = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/search", json.dumps({"id": 3, "k": 30}).encode(), as_json)
    with urllib.request.urlopen(request) as response:  # nothing but the standard library is needed to ask
        assert np.diff([hit["distance"] for hit in json.load(response)["hits"]]).min() >= 0
    with httpx.Client(base_url=address, timeout=60) as client:
        assert client.get("/v1/items/3/thumb").headers["content-type"] == "image/jpeg"
        limits = client.get("/v1/info").json()["limits"]
        assert limits == {"max_upload": 20_000_000, "max_pixels": 5_000_000, "max_k": 30}
        assert client.post("/v1/search", files={"image": ("q.jpg", image)}).status_code == 200
        sent, answered, peak = _send_zeros(host, 10**9, pid)
        assert b"413" in answered.split(b"\r\n")[0] and sent < 10**9
        assert peak - before < 100_000_000
        _, answered, _ = _send_zeros(host, 10**9, pid, declare=True)
        assert b"413" in answered.split(b"\r\n")[0]
        statuses = _at_once(address, image, 200)
        assert set(statuses) <= {200, 503} and statuses.count(200) >= 60
        assert client.get("/healthz").json() == {"alive": True}
    of_server = descendants(pid)
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(20) == 0
    assert any(f"port {port} is taken; using" in line for line in started.lines)
    assert not any(Path(f"/proc/{one}").exists() for one in of_server)  # nothing is left behind


def _send_zeros(host, n_bytes, pid, declare=False):
    """Stream a form of so many zeros by hand; bytes sent, the answer, and the most memory that the server took."""
    name, port = host.split(":")
    start = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    length = f"Content-Length: {n_bytes}" if declare else "Transfer-Encoding: chunked"
    head = (
        f"POST /v1/search HTTP/1.1\r\nHost: {host}\r\n{length}\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\n"
    )
    zeros = b"\0" * 2**18
    sent, peak = 0, 0
    with socket.create_connection((name, int(port)), timeout=30) as connection:
        connection.sendall(head.encode())
        chunk = lambda content: content if declare else f"{len(content):x}\r\n".encode() + content + b"\r\n"  # noqa: E731
        try:
            connection.sendall(chunk(start))
            while sent < n_bytes:
                connection.sendall(chunk(zeros))
                sent += len(zeros)
                peak = max(peak, resident(pid))
        except OSError:
            pass  # the server has closed the connection
        try:
            return sent, connection.recv(65_536), peak
        except OSError:
            return sent, b"", peak


def _at_once(address, image, n):
    async def main():
        async with httpx.AsyncClient(base_url=address, timeout=120, limits=httpx.Limits(max_connections=n)) as client:
            asked = [client.post("/v1/search", files={"image": ("q.jpg", image)}) for _ in range(n)]
            return [response.status_code for response in await asyncio.gather(*asked)]

    return asyncio.run(main())


def test_fuzzed_requests(searcher):
    """A few hundred made from the OpenAPI document; benchmarks/fuzz.py makes ten thousand."""
    from benchmarks.fuzz import fuzz

    found = fuzz(create_app(searcher), n=300, seed=0)
    assert found["requests"] >= 300 and found["failures"] == []


def test_the_document_says_what_is_answered(client):
    """Every status that the tests here meet is in the OpenAPI document of its address."""
    responses = client.get("/openapi.json").json()["paths"]["/v1/search"]["post"]["responses"]
    assert {"200", "400", "404", "409", "413", "415", "422", "503"} <= set(responses)


def test_searches_by_both_codes(tmp_path, rng):
    """The default where there are second codes; a code in hex may be followed by the second."""
    second = Codes.from_relaxed(rng.normal(size=(50, 40)))
    codes = Codes(Codes.from_relaxed(rng.normal(size=(50, 2))).packed, 2, second)
    index = Catalog(tmp_path, 2, {"fingerprint": "ab" * 32, "name": "test"}, second_bits=40)
    index.add(codes, pa.table({"path": [f"{i}.jpg" for i in range(50)]}))
    with TestClient(create_app(Searcher(index)), base_url="http://127.0.0.1") as client:
        assert client.get("/v1/info").json()["second_bits"] == 40
        found = client.post("/v1/search", json={"id": 3}).json()
        assert (found["by"], found["n_bits"]) == ("both", 2)
        order = [(hit["distance"], hit["second_distance"], hit["id"]) for hit in found["hits"]]
        assert order == sorted(order) and order[0] == (0, 0, 3)
        again = client.post("/v1/search", json={"code": found["query"]["code"] + found["query"]["second"]}).json()
        assert again["hits"] == found["hits"]
        alone = client.post("/v1/search", json={"id": 3, "by": "second", "histogram": True}).json()
        assert (alone["by"], alone["n_bits"], len(alone["histogram"])) == ("second", 40, 41)
        first = client.post("/v1/search", json={"id": 3, "by": "first"}).json()
        assert [(hit["distance"], hit["id"]) for hit in first["hits"]] == sorted(
            (hit["distance"], hit["id"]) for hit in first["hits"]
        )
        wrong = client.post("/v1/search", json={"code": found["query"]["code"], "by": "both"})
        assert wrong.status_code == 422 and "this query has no second code" in wrong.json()["detail"]
        assert client.post("/v1/search", json={"id": 3, "by": "third"}).status_code == 422
