"""An index on a server, from the command line to the page; the server restarts, replicas die, and nobody notices."""

import contextlib
import json
import shutil
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from running import running
from test_deploy import WRITE, needs, nginx_before

from benchmarks.engine_servers import Postgres
from hashlens.index.engines import copy_index, open_server
from hashlens.index.folder import IndexFolder


@pytest.fixture(scope="module")
def postgres():
    with tempfile.TemporaryDirectory() as folder, Postgres(Path(folder)) as server:
        yield server


def ask(address, path="/v1/search", body=None, method=None, timeout=60, **headers):
    """Status, answer and headers."""
    content = None if body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json", "Authorization": f"Bearer {WRITE}", **headers}
    request = urllib.request.Request(address + path, content, given, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, json.loads(response.read() or b"null"), response.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read()), error.headers


def test_no_folder_is_needed(postgres, made, hashlens, tmp_path):
    """Every command gives what it gives with a folder."""
    photos, codes, folder = tmp_path / "photos", tmp_path / "codes", tmp_path / "index"
    shutil.copytree(made.images, photos)
    there = ["--engine", "pgvector", "--at", postgres.where, "--set", "collection=photos"]
    model = ["--model", made.exported]

    def both(*words, **given):
        """What a command says of the folder and of the server; `given` are words for one of them."""
        found = []
        for place, more in (([folder], []), ([], there)):
            code, out, err = hashlens(*words[:2], *place, *words[2:], *more, "--json")
            assert code == 0, err
            found.append(json.loads(out))
        return found

    def same_answers():
        for how in (["-k", 7], ["--radius", 6], ["--label", "flower"]):
            for query in (photos / "flower" / "003.jpg", photos / "digit" / "000.jpg"):
                answers = []
                for place, more in (([folder], []), ([], there)):
                    code, out, err = hashlens("search", *place, query, *how, *model, *more, "--json", "--quiet")
                    assert code == 0, err
                    answers.append({name: of for name, of in json.loads(out).items() if name != "timing_ms"})
                assert answers[0] == answers[1]

    assert hashlens("encode", photos, *model, "--out", codes, "--quiet")[0] == 0
    assert hashlens("index", "build", codes, "--out", folder, "--quiet")[0] == 0
    code, out, err = hashlens("index", "build", codes, *there, "--quiet")
    assert code == 0 and out.startswith("60 codes added to pgvector:photos"), err
    assert "next     hashlens search image.jpg --engine pgvector --at ADDRESS --set collection=photos" in out
    same_answers()
    for words in (["index", "remove", "--label", "palace"], ["index", "remove", "--path", "*/000.jpg"]):
        ours, theirs = both(*words)
        assert (ours["removed"], ours["n"]) == (theirs["removed"], theirs["n"]) and ours["removed"] > 0
    ours, theirs = both("index", "add", codes, "--quiet")
    assert ours["added"] == theirs["added"] == 0
    (photos / "flower" / "004.jpg").unlink()
    shutil.copy(photos / "digit" / "001.jpg", photos / "flower" / "005.jpg")
    shutil.copy(photos / "digit" / "002.jpg", photos / "digit" / "new.jpg")
    ours, theirs = both("index", "sync", photos, *model, "--quiet")
    assert {**ours, "index": 0} == {**theirs, "index": 0} and ours["added"] > 0
    same_answers()
    found = hashlens("index", "build", codes, *there, "--index", "hnsw", "--quiet", "--json")
    assert json.loads(found[1])["recall"] > 0.5
    copied = ["index", "copy", folder, *there[:5], "collection=copied", "--verify", "--quiet", "--json"]
    assert json.loads(hashlens(*copied)[1])["compared"] == len(IndexFolder.open(folder))

    for words, sentence in (
        (["search", folder, "image.jpg", *there], "holds paths and labels itself; omit"),
        (["search", "image.jpg"], "say what to search image.jpg for"),
        (["search", "00000", "--engine", "faiss", "--at", "x"], "faiss holds codes alone; name the folder"),
        (["index", "remove", folder, "--ids", "1", *there], "holds the whole index; omit"),
        (["index", "add", codes], "no codes to add to"),
        (["index", "sync", folder, photos, *there], "with --engine, the images alone"),
        (["index", "build", codes, "--shards", "2"], "are for a server; choose one with --engine"),
        (["index", "build", codes, *there, "--shards", "2"], "pgvector has no setting 'shards'"),
        (["search", "00000", *there[:4], "--set", "collection=typo"], "pgvector:typo does not exist there"),
    ):
        code, _, err = hashlens(*words)
        assert code in (2, 3) and sentence in err and err.count("\n") == 1, err


def test_it_answers_again_after_the_server_restarts(postgres, made, tmp_path):
    index = IndexFolder.open(made.index)
    server = open_server("pgvector", postgres.where, n_bits=index.n_bits, model=index.model)
    copy_index(index, server)
    server.close()
    options = ["--engine", "pgvector", "--at", postgres.where, "--model", made.exported]
    options += ["--port", 0, "--add-to", tmp_path / "added", "--write-token", WRITE]
    with running(*options) as started, running(made.index, "--model", made.exported, "--port", 0) as beside:
        expected = ask(beside.address, body={"id": 7, "k": 9, "histogram": True})[1]
        found = ask(started.address, body={"id": 7, "k": 9, "histogram": True})[1]
        assert {**found, "timing_ms": 0} == {**expected, "timing_ms": 0}
        for path in ("/v1/items?start=5&n=9", "/v1/items/12"):
            assert ask(started.address, path)[1] == ask(beside.address, path)[1]
        with urllib.request.urlopen(f"{beside.address}/v1/items/3/thumb", timeout=60) as of_folder:
            thumb = of_folder.read()
        request = urllib.request.Request(
            f"{started.address}/v1/items/3/thumb", headers={"Authorization": f"Bearer {WRITE}"}
        )
        with urllib.request.urlopen(request, timeout=60) as of_server:
            assert of_server.read() == thumb
        assert ask(started.address, "/v1/duplicates", {})[0] == 422
        boundary, image = "limit", (made.images / "digit" / "004.jpg").read_bytes()
        body = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'.encode()
            + image
            + f"\r\n--{boundary}--\r\n".encode()
        )
        form = {"Content-Type": f"multipart/form-data; boundary={boundary}", "Authorization": f"Bearer {WRITE}"}
        added = urllib.request.Request(f"{started.address}/v1/images", body, form)
        with urllib.request.urlopen(added, timeout=60) as response:
            assert response.status == 201 and json.load(response)["id"] == 60

        postgres.kill()
        for path, asked in (("/v1/search", {"id": 7}), ("/v1/items/12", None), ("/readyz", None)):
            status, problem, headers = ask(started.address, path, asked)
            assert status == 503 and int(headers["Retry-After"]) > 0
            late = path == "/readyz" and "took more than" in problem["detail"]  # on a busy machine
            assert late or "PostgreSQL does not answer" in problem["detail"], problem
        assert ask(started.address, "/healthz")[0] == 200
        postgres.start()
        for _ in range(100):
            status, found, _ = ask(started.address, body={"id": 7, "k": 9})
            if status == 200:
                break
            time.sleep(0.1)
        assert status == 200, found
        assert ask(started.address, "/v1/items/60")[0] == 200  # what was acknowledged
        assert ask(started.address, "/v1/images/60", method="DELETE")[0] == 204
        assert ask(started.address, body={"id": 7, "k": 9})[1]["hits"] == expected["hits"]


@needs("nginx")
@needs("openssl")
def test_replicas_die_and_change_their_model_and_no_request_fails(made, hashlens, tmp_path):
    """Two that serve one folder behind nginx; while clients ask, one is killed, and another index is promoted."""
    index, new = tmp_path / "index", tmp_path / "new"
    shutil.copytree(made.index, index)
    assert hashlens("encode", made.images, "--model", "general", "--out", tmp_path / "codes", "--quiet")[0] == 0
    assert hashlens("index", "build", tmp_path / "codes", "--out", new, "--quiet")[0] == 0
    options = ["--port", 0, "--proxy", "127.0.0.1", "--hostname", "photos.example", "--token", WRITE]
    (tmp_path / "runs").symlink_to(made.model.parents[1])
    with contextlib.ExitStack() as stack:
        replicas = [stack.enter_context(running(index, *options)) for _ in range(2)]
        ports = [replica.port for replica in replicas]
        client = stack.enter_context(nginx_before(tmp_path, *ports))
        bits, failed, stop = set[int](), list[object](), threading.Event()

        def visit(path, body):
            while not stop.is_set():
                status, answer = client(path, body)
                if status != 200:
                    failed.append((status, answer))
                elif body is not None:
                    bits.add(answer["n_bits"])
                time.sleep(0.05)

        visitors = [
            threading.Thread(target=visit, args=given)
            for given in (("/v1/items/3", None), ("/v1/items?n=5", None), ("/v1/search", {"id": 3}))
        ]
        for visitor in visitors:
            visitor.start()
        try:
            time.sleep(1)
            replicas[0].end()
            time.sleep(2)
            code, _, err = hashlens("index", "promote", new, index)
            assert code == 0, err
            end = time.monotonic() + 60
            while len(bits) < 2 and not failed and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            stop.set()
            for visitor in visitors:
                visitor.join()
        assert failed == [] and len(bits) == 2
