"""Hostile images, slow clients and crowds: they get an answer of their own and nobody else notices."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import httpx2 as httpx
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from running import children, resident, running

from benchmarks.hostile import hostile_images, runs_of_one
from hashlens.search import open_searcher
from hashlens.server.app import create_app
from hashlens.server.limits import Limits

BASE = "http://127.0.0.1"
READABLE = {"exif-loop.jpg", "mpo.jpg", "pixels.png"}  # odd, but cheap: answered like any other


@pytest.fixture(scope="module")
def searcher(made):
    return open_searcher(made.index, made.exported)


@pytest.fixture(scope="module")
def client(searcher):
    with TestClient(create_app(searcher), base_url=BASE, raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("name", hostile_images())
def test_hostile_images_get_one_sentence(client, name):
    response = client.post("/v1/search", files={"image": (name, hostile_images()[name])})
    if name in READABLE:
        assert response.status_code == 200 and len(response.json()["hits"]) == 20
    else:
        assert response.status_code == 400, response.text
        detail = response.json()["detail"]
        assert detail.startswith(f"cannot read the image {name}: ") and "\n" not in detail and "Error" not in detail
    assert client.get("/healthz").status_code == 200


def test_there_are_thirty_of_them():
    assert len(hostile_images()) >= 30


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of CPU time")
def test_an_image_that_takes_too_long_ends_its_decoder_only(searcher):
    limits = Limits(decode_seconds=0.1, timeout=300)
    with TestClient(create_app(searcher, limits=limits), base_url=BASE) as client:
        response = client.post("/v1/search", files={"image": ("runs.bmp", runs_of_one(8_000_000))})
        assert response.status_code == 400
        assert "runs.bmp: it takes more than 0.1 seconds to decode; save it again" in response.json()["detail"]
        assert 'hashlens_decoders_ended_total{why="time"} 1.0' in client.get("/metrics").text
        assert client.post("/v1/search", files={"image": ("a.png", _png())}).status_code == 200  # in a new one


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of memory")
def test_a_decoder_has_little_memory():
    code = "from hashlens.server.decoder import _limit_memory; _limit_memory(2**26); bytearray(2**28)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1 and found.stderr.rstrip().endswith("MemoryError")


def test_searches_by_id_go_on_while_decoders_hang_or_die(searcher):
    limits = Limits(timeout=6.0, max_waiting=1)
    with TestClient(create_app(searcher, limits=limits), base_url=BASE) as client:
        decoders = client.app.state.service.decoders
        assert client.post("/v1/search", files={"image": ("a.png", _png())}).status_code == 200
        (first,) = decoders._idle
        os.kill(first.process.pid, signal.SIGSTOP)  # for ever
        response = client.post("/v1/search", files={"image": ("a.png", _png())})
        assert response.status_code == 503 and response.headers["retry-after"] == "5"
        assert client.post("/v1/search", json={"id": 3}).status_code == 200
        assert client.post("/v1/search", files={"image": ("a.png", _png())}).status_code == 200
        (second,) = decoders._idle
        assert second is not first and first.process.returncode == -signal.SIGKILL
        os.kill(second.process.pid, signal.SIGKILL)  # as when memory runs out
        statuses = [client.post("/v1/search", files={"image": ("a.png", _png())}).status_code for _ in range(2)]
        assert statuses[-1] == 200 and decoders.busy == 0


def _png():
    file = io.BytesIO()
    Image.new("RGB", (50, 40), "red").save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def started(made):
    with running(made.index, "--model", made.exported, "--max-connections", 60, "--per-address", 20) as found:
        yield found


def test_memory_returns_after_large_images(started):
    file = io.BytesIO()
    Image.new("L", (5_000, 4_900), 90).save(file, "PNG", compress_level=1)
    with httpx.Client(base_url=started.address, timeout=60) as client:
        for _ in range(2):
            assert client.post("/v1/search", files={"image": ("a.png", _png())}).status_code == 200
        before = resident(started.process.pid)
        for _ in range(3):
            assert client.post("/v1/search", files={"image": ("big.png", file.getvalue())}).status_code == 200
        assert resident(started.process.pid) - before < 60_000_000


def test_idle_connections_make_room_for_others(started):
    """More than the server takes, from one address: the newest is answered, the oldest is closed."""
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(contextlib.closing(started.connect())) for _ in range(150)]
        idle[-1].sendall(b"GET /heal")
        for _ in range(3):
            with urllib.request.urlopen(f"{started.address}/healthz", timeout=30) as response:
                assert json.load(response) == {"alive": True}
        assert _ask(started, {"id": 3})["query"]["id"] == 3
        idle[0].settimeout(30)
        with contextlib.suppress(ConnectionError):  # closed either way
            assert idle[0].recv(1) == b""


def test_slow_bodies_leave_the_server_to_others(started):
    """Bodies that do not come, of forms and of JSON: refused when their time is up, and searches go on meanwhile."""
    body = b"--x\r\nContent-Disposition: form-data; name=image; filename=a\r\n\r\n"
    head = "POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\nContent-Type: {}\r\n\r\n"
    kinds = ["multipart/form-data; boundary=x"] * 10 + ["application/json"] * 5
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(contextlib.closing(started.connect())) for _ in kinds]
        for connection, kind in zip(slow, kinds, strict=True):
            connection.sendall(head.format(kind).encode() + (body if "form" in kind else b"{"))
        for id_ in (3, 4, 5):
            assert _ask(started, {"id": id_})["query"]["id"] == id_
        for connection in slow:
            answer = connection.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 408 ") and b"connection: close" in answer.lower()
    assert b"too slowly" in answer or b"too slowly" in connection.recv(65_536)


def test_requests_per_address_are_limited(started):
    """20 at once from here; the 21st is refused at once with a sentence, except for /healthz."""
    head = (
        b"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\nContent-Type: application/json\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(contextlib.closing(started.connect())).sendall(head)
        time.sleep(0.5)  # until they have arrived
        with httpx.Client(base_url=started.address, timeout=30) as client:
            refused = client.get("/v1/info")
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
            assert refused.json()["detail"] == "too many requests from this address; try again in 1 s"
            assert client.get("/healthz").status_code == 200


def _ask(started, body):
    as_json = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{started.address}/v1/search", json.dumps(body).encode(), as_json)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def test_a_server_that_is_started_again_has_the_model_that_took_over(made, tmp_path):
    """It was started with --model, and another one was promoted since then."""
    import shutil

    import pyarrow as pa

    from hashlens import DTSH, Training
    from hashlens.codes.encoder import Encoder
    from hashlens.codes.model import ModelFolder
    from hashlens.index.folder import IndexFolder

    paths = sorted(path.as_posix() for path in made.images.rglob("*.jpg"))
    training, labels = Training(epochs=1, batch_size=30), [i % 3 for i in range(60)]
    DTSH(12, backbone="small-cnn", image_size=16, training=training).fit(paths, labels).save(tmp_path / "other")
    new = IndexFolder.create(tmp_path / "new", 12, ModelFolder(tmp_path / "other").describe())
    new.add(Encoder.load(tmp_path / "other").codes(paths), pa.table({"path": paths}))
    shutil.copytree(made.index, tmp_path / "index")
    with running(tmp_path / "index", "--model", made.exported, "--port", 0) as server:

        def found():
            image = {"image": ("a.jpg", Path(paths[5]).read_bytes())}
            response = httpx.post(f"{server.address}/v1/search", files=image, timeout=120)
            return response.json()["index"]["n_bits"], response.json()["hits"][0]["distance"]

        assert found() == (20, 0)
        IndexFolder.open(tmp_path / "index").promote(new)
        assert found() == (12, 0)
        os.kill(server.server, signal.SIGKILL)
        assert found() == (12, 0)
        assert server.stop() == 0


def test_a_killed_server_process_is_replaced(started):
    before = started.server
    os.kill(before, signal.SIGKILL)
    for _ in range(600):  # connections wait in the queue of the socket, which the supervisor holds
        with contextlib.suppress(OSError):
            assert _ask(started, {"id": 3})["query"]["id"] == 3
            break
        time.sleep(0.1)
    assert children(started.process.pid)[0] != before
    assert any("was ended by SIGKILL" in line for line in started.lines)


def test_hangup_renews_the_server_process(started):
    before = started.server
    started.process.send_signal(signal.SIGHUP)
    for _ in range(600):
        assert _ask(started, {"id": 3})["query"]["id"] == 3  # all the while
        if before not in children(started.process.pid):
            break
        time.sleep(0.1)
    assert before not in children(started.process.pid)
    assert any("a new server process answers" in line for line in started.lines)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs SIGBUS for mapped files as on Linux")
def test_a_file_cut_short_under_the_server_is_named(made, tmp_path):
    """Reading it kills the server process; the next one refuses the index with a sentence, and the command ends."""
    import shutil

    index = tmp_path / "index"
    shutil.copytree(made.index, index)
    with running(index, "--model", made.exported) as found:
        os.truncate(next(index.glob("*.blocks.npy")), 0)
        with contextlib.suppress(OSError):
            _ask(found, {"id": 3})
        assert found.process.wait(120) == 3
        found._reader.join()
        text = "".join(found.lines)
        assert "was ended by SIGBUS: a file of the index was cut short" in text and "cannot serve: " in text


def test_a_stopped_search_does_not_delay_the_end(made):
    """SIGTERM while a client sends its body and the server process hangs: killed when the time is up."""
    with running(made.index, "--model", made.exported) as found:
        server = found.server
        connection = found.connect()
        connection.sendall(b"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n")
        os.kill(server, signal.SIGSTOP)
        found.process.send_signal(signal.SIGTERM)
        assert found.process.wait(60) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(server, 0)
        connection.close()


def test_the_server_ends_with_its_supervisor(made):
    with running(made.index, "--model", made.exported) as found:
        server = found.server
        found.process.kill()
        found.process.wait()
        for _ in range(600):
            if not os.path.exists(f"/proc/{server}"):  # noqa: PTH110
                break
            time.sleep(0.1)
        with pytest.raises(OSError), socket.create_connection((found.host, found.port), timeout=5):
            pass
