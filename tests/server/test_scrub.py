"""Bits that flip under a running server: noticed, named, not answered from, and all is well again after a repair."""

import shutil
import time
import urllib.error
import urllib.request

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from running import running

from hashlens.index.folder import IndexFolder
from hashlens.index.repair import repair
from hashlens.search import open_searcher
from hashlens.server.app import create_app
from hashlens.server.limits import Limits

BASE = "http://127.0.0.1"


@pytest.fixture
def index(made, tmp_path):
    """An index of its own, with ids, keys and removed images."""
    shutil.copytree(made.index, tmp_path / "index")
    folder = IndexFolder.open(tmp_path / "index")
    folder.remove([3])
    folder.compact()
    codes, ids = next(folder.batches(1))
    known = pa.table({"path": [folder.lookup(ids)[int(ids[0])]["path"]]})
    assert not len(folder.add(codes, known, only_new=True))
    folder.remove([4])
    return folder.path


@pytest.fixture
def client(made, index):
    searcher = open_searcher(index, made.exported)
    with TestClient(create_app(searcher, limits=Limits(scrub_seconds=0.05)), base_url=BASE) as client:
        yield client


def flip(path, place=-1, bit=1):
    """In place, as a disk does it: nothing but the content changes."""
    with path.open("r+b") as file:
        content = bytearray(file.read())
        content[place] ^= bit
        file.seek(0)
        file.write(content)


def until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["blocks.npy", "items.arrow", "items.sums", "ids.npy", "removed"])
def test_a_flipped_bit_is_noticed_and_not_answered_from(client, index, made, kind):
    (path,) = index.glob("removed-*.npy" if kind == "removed" else f"part-*.{kind}")
    before = client.post("/v1/search", json={"id": 7, "k": 58}).json()["hits"]
    assert client.get("/readyz").status_code == 200 and "hashlens_damaged 0.0" in client.get("/metrics").text
    flip(path)
    until(lambda: client.get("/readyz").status_code == 503)
    detail = client.get("/readyz").json()["detail"]
    assert detail.startswith(f"not ready: {path} is damaged (") and f"hashlens index repair {index}" in detail
    for response in (
        client.post("/v1/search", json={"id": 7}),
        client.get("/v1/items/7"),
        client.get("/v1/items/7/thumb"),
        client.get("/v1/info"),
    ):
        assert response.status_code == 503 and response.json()["detail"] == detail.removeprefix("not ready: ")
    metrics = client.get("/metrics").text
    assert "hashlens_damaged 1.0" in metrics and 'hashlens_scrubs_total{result="damaged"}' in metrics
    assert client.get("/healthz").status_code == 200
    if kind == "items.arrow":  # paths cannot be made again: they come back from a backup
        flip(path)
    else:
        repair(index, model=made.model)
    until(lambda: client.get("/readyz").status_code == 200)
    assert "hashlens_damaged 0.0" in client.get("/metrics").text
    assert client.post("/v1/search", json={"id": 7, "k": 58}).json()["hits"] == before


@pytest.mark.parametrize("name", ["index.json", "index.json.copy", "part-*.ids.npy.copy", "part-*.keys.npy"])
def test_what_no_search_reads_only_makes_it_not_ready(client, index, name):
    (path,) = index.glob(name)
    flip(path, 40)
    until(lambda: client.get("/readyz").status_code == 503)
    assert client.get("/readyz").json()["detail"].startswith(f"not ready: {path} is damaged (")
    assert client.post("/v1/search", json={"id": 7}).status_code == 200
    flip(path, 40)  # from a backup
    until(lambda: client.get("/readyz").status_code == 200)
    flip(path, 41)
    until(lambda: client.get("/readyz").status_code == 503)
    repair(index)
    until(lambda: client.get("/readyz").status_code == 200)


def test_changes_are_no_damage(client, index, made):
    """While images come and go, and files of the index with them."""

    def n_intact():
        lines = client.get("/metrics").text.splitlines()
        return next((float(line.split()[-1]) for line in lines if 'hashlens_scrubs_total{result="intact"}' in line), 0)

    folder = IndexFolder.open(index)
    for id_ in range(10, 40):
        folder.remove([id_])
        folder.compact()
        assert client.post("/v1/search", json={"id": 7}).status_code == 200
    until(lambda: n_intact() > 2)
    assert client.get("/readyz").status_code == 200 and 'result="damaged"' not in client.get("/metrics").text


def test_a_real_server(made, index):
    with running(index, "--model", made.exported, "--port", 0, "--scrub-seconds", "0.1") as server:

        def status():
            try:
                return urllib.request.urlopen(f"{server.address}/readyz", timeout=30).status
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        assert status() == 200
        (path,) = index.glob("part-*.blocks.npy")
        flip(path)
        until(lambda: status() == 503)
        until(lambda: any(f"{path} is damaged" in line for line in server.lines))  # in the log too
        repair(index, model=made.model)
        assert status() == 200
        assert server.stop() == 0


def test_no_scrub(made, index):
    limits = Limits(scrub_seconds=0)
    with TestClient(create_app(open_searcher(index, made.exported), limits=limits), base_url=BASE) as client:
        assert "hashlens_scrubbed_bytes_total 0.0" in client.get("/metrics").text
