"""Who may do what: tokens, scopes, other sites, host names, TLS; and what is written is on disk."""

import base64
import hmac
import json
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest
from fastapi.testclient import TestClient
from running import running

from hashlens.codes.encoder import Encoder
from hashlens.errors import DataError, UsageError
from hashlens.index.folder import IndexFolder
from hashlens.search import Searcher, open_searcher
from hashlens.server import access as access_module
from hashlens.server.access import Access, Token, as_tokens, read_tokens
from hashlens.server.app import create_app
from hashlens.server.serving import host_names, require_access, require_certificate

BASE = "http://127.0.0.1"
READ, WRITE, EXPIRED = "read-" + "r" * 20, "write-" + "w" * 20, "old-" + "o" * 20


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    file = tmp_path_factory.mktemp("tokens") / "tokens"
    file.write_text(f"# ours\n{READ} read 2999-12-31\n{WRITE}  write # of the importer\n\n{EXPIRED} write 2020-01-31\n")
    file.chmod(0o600)
    return as_tokens((), (), file)


@pytest.fixture(scope="module")
def own(made, tmp_path_factory):
    """An index of its own, which may be changed, and the folder for what is added."""
    import shutil

    folder = tmp_path_factory.mktemp("written")
    shutil.copytree(made.index, folder / "index")
    return folder


@pytest.fixture(scope="module")
def client(made, own, tokens):
    searcher = open_searcher(own / "index", made.exported)
    app = create_app(searcher, access=Access(tokens=tokens, anyone_reads=False), add_to=own / "added")
    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as client:
        yield client


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def basic(password, user="me"):
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


REFUSED = [
    {},
    bearer(""),
    bearer("wrong"),
    bearer(READ[:-1]),
    bearer(READ + "x"),
    bearer(READ.upper()),
    bearer(f"{READ} {WRITE}"),
    {"Authorization": "Bearer é".encode()},
    bearer(EXPIRED),
    basic(EXPIRED),
    basic("wrong"),
    basic("", READ),
    basic(f"{READ}:"),
    {"Authorization": READ},
    {"Authorization": f"Token {READ}"},
    {"Authorization": "Basic !!!"},
    {"Authorization": "Basic " + base64.b64encode(READ.encode()).decode()},
    {"Authorization": "Basic"},
    {"Cookie": f"token={READ}"},
    {"X-Token": READ},
]


@pytest.mark.parametrize("headers", REFUSED, ids=map(str, range(len(REFUSED))))
def test_twenty_ways_that_do_not_get_in(client, headers):
    for method, path in (("GET", "/v1/info"), ("POST", "/v1/search"), ("GET", "/"), ("DELETE", "/v1/images/3")):
        response = client.request(method, path, headers=headers)
        assert response.status_code == 401 and response.json()["detail"]
        assert "Basic" in response.headers["www-authenticate"] and "Bearer" in response.headers["www-authenticate"]
    assert client.get("/healthz", headers=headers).status_code == 200
    assert client.get("/readyz", headers=headers).status_code == 200


def test_there_are_twenty_ways():
    assert len(REFUSED) == 20


def test_all_tokens_are_compared_in_constant_time(monkeypatch, tokens):
    """Whatever is sent, as many digests of equal length are compared, by the function made for it."""
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr(
        access_module.hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or compare(a, b)
    )
    rules = Access(tokens=tokens, anyone_reads=False)
    for sent in (
        None,
        "",
        "Bearer x",
        f"Bearer {READ}",
        f"Bearer {WRITE}",
        f"Bearer {EXPIRED}",
        "Bearer " + "x" * 9_999,
    ):
        compared.clear()
        assert (rules._token(sent) is not None) == (sent is not None and sent[7:] in (READ, WRITE, EXPIRED))
        assert compared == [(64, 64)] * 3


def test_scopes(client):
    for headers in (bearer(READ), basic(READ), bearer(WRITE), {"Authorization": f"bearer {READ}"}):
        assert client.get("/v1/info", headers=headers).json()["n"] == 60
        assert client.post("/v1/search", json={"id": 3}, headers=headers).status_code == 200
    for method, path in (("POST", "/v1/images"), ("DELETE", "/v1/images/3")):
        response = client.request(method, path, headers=bearer(READ))
        assert response.status_code == 403 and "needs a token with the scope write" in response.json()["detail"]
    assert client.get("/metrics").status_code == 401


def test_without_a_write_token_nobody_writes(made):
    with TestClient(create_app(open_searcher(made.index, made.exported)), base_url=BASE) as client:
        assert client.get("/v1/info").status_code == 200
        for method, path in (("POST", "/v1/images"), ("DELETE", "/v1/images/3")):
            for headers in ({}, bearer(WRITE)):
                assert client.request(method, path, headers=headers).status_code == 401


def test_adding_and_removing(client, own, made):
    """What was answered is on disk; the same image again is the same item; a removed one is gone with its file."""
    image = (made.images / "palace" / "007.jpg").read_bytes()
    form = {"files": {"image": ("../../x.jpg", image)}, "data": {"labels": "new; from here"}, "headers": bearer(WRITE)}
    added = client.post("/v1/images", **form)
    assert added.status_code == 201, added.text
    item = added.json()
    assert added.headers["location"] == f"/v1/items/{item['id']}" and item["id"] == 60
    assert item["labels"] == ["new", "from here"]
    stored = IndexFolder.open(own / "index")
    (path,) = (own / "added").rglob("*.jpg")
    assert stored.lookup([60])[60]["path"] == path.as_posix() == item["path"] and path.read_bytes() == image
    assert client.post("/v1/images", **form).json() == item and client.post("/v1/images", **form).status_code == 200
    found = client.post("/v1/search", json={"id": 60, "k": 1000, "radius": 0}, headers=bearer(READ)).json()
    assert found["hits"][0]["distance"] == 0 and 60 in [hit["id"] for hit in found["hits"]]
    assert client.get("/v1/items/60/thumb", headers=bearer(READ)).status_code == 200
    assert client.delete("/v1/images/60", headers=bearer(WRITE)).status_code == 204
    assert not path.exists() and 60 not in IndexFolder.open(own / "index").lookup([60])
    assert client.delete("/v1/images/60", headers=bearer(WRITE)).status_code == 404
    again = client.post("/v1/images", **form).json()
    assert again["id"] == 61  # ids are never used again
    assert client.delete("/v1/images/3", headers=bearer(WRITE)).status_code == 204
    assert (made.images / "palace" / "003.jpg").exists()  # it was not added here


def test_wrong_images_are_not_added(client, own):
    before = IndexFolder.open(own / "index").facts
    for files, data, status in (
        ({"image": ("a.jpg", b"text")}, {}, 400),
        ({"image": ("a.jpg", b"\0" * 21_000_000)}, {}, 413),
        ({"other": ("a.jpg", b"text")}, {}, 422),
        ({"image": ("a.jpg", b"text")}, {"path": "/etc/passwd"}, 422),
        ({"image": ("a.jpg", b"text")}, {"labels": "x" * 2_000}, 422),
    ):
        response = client.post("/v1/images", files=files, data=data, headers=bearer(WRITE))
        assert response.status_code == status and response.json()["detail"]
    assert client.post("/v1/images", json={"id": 3}, headers=bearer(WRITE)).status_code == 415
    assert IndexFolder.open(own / "index").facts == before


def test_parts_are_joined_after_the_answer(client, own, made, monkeypatch):
    calls, join, append = [], IndexFolder.join, IndexFolder._append
    monkeypatch.setattr(IndexFolder, "join", lambda index: calls.append("join") or join(index))
    monkeypatch.setattr(IndexFolder, "_append", lambda index, *given: calls.append("add") or append(index, *given))
    for number in range(9):
        image = (made.images / "flower" / f"{number:03d}.jpg").read_bytes()
        response = client.post("/v1/images", files={"image": ("a.jpg", image)}, headers=bearer(WRITE))
        assert response.status_code == 201
    index = IndexFolder.open(own / "index")
    # how many parts there were before depends on the other tests
    assert calls.count("add") == 9 and calls[0] == "add" and 1 <= calls.count("join") <= 2
    assert index.is_tidy and len(index.facts["parts"]) < 9 and index.verify()
    assert client.get("/v1/info", headers=bearer(READ)).json()["n"] == len(IndexFolder.open(own / "index"))


def test_another_writer_and_servers_that_take_nothing(made, own, tokens, monkeypatch):
    import hashlens.server.writing as writing
    from hashlens.files import alone_in

    monkeypatch.setattr(writing, "WAIT_SECONDS", 0.1)
    searcher = open_searcher(own / "index", made.exported)
    image = (made.images / "digit" / "001.jpg").read_bytes()
    form = {"files": {"image": ("a.jpg", image)}, "headers": bearer(WRITE)}
    with TestClient(create_app(searcher, access=Access(tokens=tokens), add_to=own / "added"), base_url=BASE) as client:
        with alone_in(own / "index"):
            response = client.post("/v1/images", **form)
            assert response.status_code == 503 and response.headers["retry-after"] == "5"
        assert client.post("/v1/images", **form).status_code == 201
    with TestClient(create_app(searcher, access=Access(tokens=tokens)), base_url=BASE) as client:
        response = client.post("/v1/images", **form)
        assert response.status_code == 422 and "start it with --add-to FOLDER" in response.json()["detail"]


def test_an_index_that_follows_a_folder_is_not_changed(made, tmp_path, tokens):
    from hashlens.codes.model import ModelFolder
    from hashlens.index.folder import IndexFolder

    model = ModelFolder(made.model).describe()
    IndexFolder.create(tmp_path / "index", 20, model, source=str(made.images))
    searcher = open_searcher(tmp_path / "index", made.exported)
    rules = Access(tokens=tokens)
    with TestClient(create_app(searcher, access=rules, add_to=tmp_path / "added"), base_url=BASE) as client:
        image = (made.images / "digit" / "001.jpg").read_bytes()
        response = client.post("/v1/images", files={"image": ("a.jpg", image)}, headers=bearer(WRITE))
        assert response.status_code == 422 and "add and remove images there" in response.json()["detail"]
        assert not (tmp_path / "added").exists()


def test_other_sites_are_refused(client, made, tokens):
    def ask(client, **headers):
        given = bearer(READ) | {name.replace("_", "-"): value for name, value in headers.items()}
        return client.post("/v1/search", json={"id": 5}, headers=given)

    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8001"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": "http://127.0.0.1"},
    ):
        assert ask(client, **headers).status_code == 403
    for headers in ({}, {"origin": "http://127.0.0.1"}, {"sec_fetch_site": "same-origin"}, {"sec_fetch_site": "none"}):
        response = ask(client, **headers)
        assert response.status_code == 200 and "access-control-allow-origin" not in response.headers
    friend = "https://friend.example"
    rules = Access(tokens=tokens, anyone_reads=False, origins=(friend,))
    with TestClient(create_app(open_searcher(made.index, made.exported), access=rules), base_url=BASE) as other:
        preflight = {"Origin": friend, "Access-Control-Request-Method": "POST"}
        allowed = other.options("/v1/search", headers=preflight | {"Access-Control-Request-Headers": "authorization"})
        assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == friend
        response = ask(other, origin=friend, sec_fetch_site="cross-site")
        assert response.status_code == 200 and response.headers["access-control-allow-origin"] == friend
        assert ask(other, origin="https://evil.example").status_code == 403


def test_head(client):
    for path in ("/", "/v1/info", "/healthz", "/v1/items/5/thumb"):
        head, get = (client.request(method, path, headers=bearer(READ)) for method in ("HEAD", "GET"))
        assert head.status_code == get.status_code == 200 and head.content == b""
        assert head.headers["content-length"] == get.headers["content-length"]


def test_thumbnails_follow_their_files(client, own, made):
    image = (made.images / "digit" / "002.jpg").read_bytes()
    item = client.post("/v1/images", files={"image": ("a.jpg", image)}, headers=bearer(WRITE)).json()
    address = f"/v1/items/{item['id']}/thumb"
    first = client.get(address, headers=bearer(READ))
    again = client.get(address, headers=bearer(READ) | {"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    from pathlib import Path

    Path(item["path"]).write_bytes((made.images / "flower" / "002.jpg").read_bytes())
    changed = client.get(address, headers=bearer(READ) | {"If-None-Match": first.headers["etag"]})
    assert changed.status_code == 200 and changed.content != first.content


def test_another_image_under_an_id_has_another_thumbnail(made, tmp_path):
    """The index is rebuilt under a running server: no image that a browser keeps is taken for another."""
    import os
    import shutil

    import pyarrow as pa
    from PIL import Image

    from hashlens.codes.model import ModelFolder

    model = ModelFolder(made.model).describe()
    for name, colour in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
        (tmp_path / name).mkdir()
        Image.new("RGB", (64, 64), colour).save(tmp_path / name / "a.bmp")
        os.utime(tmp_path / name / "a.bmp", (1, 1))  # as in an archive: same name, size and time

    def build(folder, *images):
        index = IndexFolder.create(folder, 20, model)
        paths = [(tmp_path / name / "a.bmp").as_posix() for name in images]
        index.add(Encoder.load(made.exported).codes(paths), pa.table({"path": paths}))
        return index

    index = build(tmp_path / "index", "red", "blue")
    with TestClient(create_app(open_searcher(index.path, made.exported)), base_url=BASE) as client:
        first = client.get("/v1/items/0/thumb")
        kept = {"If-None-Match": first.headers["etag"]}
        assert client.get("/v1/items/0/thumb", headers=kept).status_code == 304
        index.promote(build(tmp_path / "new", "blue", "red"))
        second = client.get("/v1/items/0/thumb", headers=kept)
        assert second.status_code == 200 and second.content != first.content
        assert client.get("/v1/items/1/thumb").content == first.content
        shutil.copy2(tmp_path / "red" / "a.bmp", tmp_path / "blue" / "a.bmp")  # even the time is the same
        third = client.get("/v1/items/0/thumb", headers={"If-None-Match": second.headers["etag"]})
        assert third.status_code == 200 and third.content == first.content


def test_thumbnails_come_only_from_below_the_folder_of_images(made, tmp_path, tokens):
    """Whatever the index of a stranger says; images that were added here are shown too."""
    import pyarrow as pa
    from PIL import Image

    from hashlens.codes.model import ModelFolder

    for name in ("secret", "shown", "shown/2020"):
        (tmp_path / name).mkdir(exist_ok=True)
        Image.new("RGB", (64, 64)).save(tmp_path / name / "a.png")
    (tmp_path / "shown" / "link.png").symlink_to(tmp_path / "secret" / "a.png")
    names = ("shown/a.png", "shown/2020/a.png", "secret/a.png", "shown/../secret/a.png", "shown/link.png")
    index = IndexFolder.create(tmp_path / "index", 20, ModelFolder(made.model).describe())
    items = pa.table({"path": [f"{tmp_path}/{name}" for name in names]})
    index.add(Encoder.load(made.exported).codes([f"{tmp_path}/shown/a.png"] * len(names)), items)
    searcher, rules = open_searcher(index.path, made.exported), Access(tokens=tokens)
    how = {"access": rules, "images": tmp_path / "shown", "add_to": tmp_path / "added"}
    with TestClient(create_app(searcher, **how), base_url=BASE) as client:
        found = [client.get(f"/v1/items/{id_}/thumb").status_code for id_ in range(len(names))]
        assert found == [200, 200, 404, 404, 404]
        image = (made.images / "digit" / "002.jpg").read_bytes()
        item = client.post("/v1/images", files={"image": ("a.jpg", image)}, headers=bearer(WRITE)).json()
        assert client.get(f"/v1/items/{item['id']}/thumb").status_code == 200


@pytest.mark.parametrize("path", ["/v1/search", "/v1/images"])
def test_another_model_takes_over_while_an_image_is_decoded(made, tmp_path, tokens, path):
    """The image is cropped for the one model and encoded by the other, whose images have another size: not so."""
    import shutil

    import pyarrow as pa

    from hashlens import DTSH, Training
    from hashlens.codes.model import ModelFolder

    images = sorted(file.as_posix() for file in made.images.rglob("*.jpg"))
    training = Training(epochs=1, batch_size=30)
    labels = [index % 3 for index in range(len(images))]
    DTSH(20, backbone="small-cnn", image_size=16, training=training).fit(images, labels).save(tmp_path / "other")
    other = Encoder.load(tmp_path / "other")
    shutil.copytree(made.index, tmp_path / "index")
    new = IndexFolder.create(tmp_path / "new", 20, ModelFolder(tmp_path / "other").describe())
    new.add(other.codes(images), pa.table({"path": images}))
    searcher = open_searcher(tmp_path / "index", made.exported)
    app = create_app(searcher, access=Access(tokens=tokens), add_to=tmp_path / "added")
    service, sizes = app.state.service, []
    decode = service.query

    async def query(upload):
        found = await decode(upload)
        sizes.append(found.cropped_to)
        if len(sizes) == 1:
            IndexFolder.open(tmp_path / "index").promote(new)
        return found

    service.query = query
    content = (made.images / "digit" / "002.jpg").read_bytes()
    with TestClient(app, base_url=BASE) as client:
        response = client.post(path, files={"image": ("a.jpg", content)}, headers=bearer(WRITE))
    assert response.status_code in (200, 201), response.text
    found = response.json()
    code = found["query"]["code"] if "query" in found else found["code"]
    assert sizes == [24, 16] and code == other.codes([f"{made.images}/digit/002.jpg"]).packed[0].tobytes().hex()


def test_an_id_of_the_index_before_removes_nothing(made, tmp_path, tokens):
    """Another index takes over between two steps of a removal: under that id there is another image now."""
    import shutil

    import pyarrow as pa

    shutil.copytree(made.index, tmp_path / "index")
    searcher = open_searcher(tmp_path / "index", made.exported)
    other = IndexFolder.create(tmp_path / "new", 20, searcher.index.model)
    other.add(searcher.index._joined()[0][:10], pa.table({"path": [f"/elsewhere/{i}.jpg" for i in range(10)]}))
    app = create_app(searcher, access=Access(tokens=tokens))
    writer = app.state.service.writer
    change = writer._change

    def change_later(*given):
        IndexFolder.open(tmp_path / "index").promote(other)
        return change(*given)

    writer._change = change_later
    with TestClient(app, base_url=BASE) as client:
        assert client.delete("/v1/images/3", headers=bearer(WRITE)).status_code == 404
    assert len(IndexFolder.open(tmp_path / "index")) == 10


def test_token_files(tmp_path):
    file = tmp_path / "tokens"
    for text, words in (
        ("", "has no tokens"),
        ("# nothing\n", "has no tokens"),
        (f"{READ}\n", "line 1: expected TOKEN"),
        (f"{READ} admin\n", "line 1: expected TOKEN"),
        (f"\n{READ} read soon\n", "line 2: expected TOKEN"),
        ("short read\n", "line 1: a token must have at least 16 characters"),
    ):
        file.write_text(text)
        file.chmod(0o600)
        with pytest.raises(DataError, match=words):
            read_tokens(file)
    file.write_text(f"{READ} read\n")
    file.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_tokens(file)
    with pytest.raises(DataError, match="cannot read the token file"):
        read_tokens(tmp_path / "nowhere")
    assert READ not in repr(Token.of(READ))


def test_beyond_this_machine_only_with_a_token(hashlens):
    assert hashlens("serve", "nowhere", "--host", "0.0.0.0") == (
        2,
        "",
        "error: 0.0.0.0 can be reached from the network: pass --token (or --token-file), or let anyone in with"
        " --allow-anyone\n",
    )
    assert hashlens("serve", "nowhere", "--token", "short")[0] == 2
    require_access("127.0.0.1", Access(), False)
    require_access("0.0.0.0", Access(), True)
    require_access("0.0.0.0", Access(tokens=(Token.of(READ),)), False)
    assert host_names("0.0.0.0", ()) is None and "127.0.0.1" in host_names("127.0.0.1", ())
    assert host_names("0.0.0.0", ("Photos.example",))[0] == "photos.example"


def test_a_certificate_that_is_none(tmp_path):
    (tmp_path / "a.pem").write_text("nothing")
    with pytest.raises(DataError, match=r"cannot use .*a\.pem for TLS"):
        require_certificate(tmp_path / "a.pem", None)
    with pytest.raises(UsageError, match="needs --certfile"):
        require_certificate(None, tmp_path / "a.pem")


def test_a_real_server_with_tls_tokens_and_a_log(made, tmp_path):
    """Over TLS, as browsers and curl ask; one line per request in the log, without token, code or image."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", tmp_path / "key.pem",
         "-out", tmp_path / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    tls = ["--certfile", tmp_path / "cert.pem", "--keyfile", tmp_path / "key.pem", "--hostname", "localhost"]
    log = tmp_path / "log"
    with running(made.index, "--model", made.exported, *tls, "--token", READ, "--access-log", log) as started:
        assert started.address.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        address = f"https://localhost:{started.port}/v1/search?x=1"
        body = json.dumps({"id": 3}).encode()
        for headers, status in ((bearer(READ), 200), (bearer("x" * 20), 401)):
            request = urllib.request.Request(address, body, {"Content-Type": "application/json"} | headers)
            try:
                with urllib.request.urlopen(request, context=trust, timeout=60) as response:
                    assert response.status == status
            except urllib.error.HTTPError as error:
                assert error.code == status
                error.close()
        assert started.stop() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 401] and READ not in log.read_text()
    assert lines[0]["path"] == "/v1/search" and lines[0]["user"] and lines[1]["user"] is None
    assert set(lines[0]["timing_ms"]) == {"decode", "encode", "search", "items"} and lines[0]["received"] == len(body)


def test_readiness_follows_the_index(own, made):
    """Not ready while the index on disk cannot be loaded; answers come from the one before."""
    searcher = Searcher(IndexFolder.open(own / "index"))
    with TestClient(create_app(searcher), base_url=BASE) as client:
        assert client.get("/readyz").status_code == 200
        manifest = own / "index" / "index.json"
        before = manifest.read_text()
        manifest.write_text(before[:100])
        response = client.get("/readyz")
        assert response.status_code == 503 and "index.json is damaged" in response.json()["detail"]
        assert client.post("/v1/search", json={"id": 5}).status_code == 200
        assert "hashlens_stale 1.0" in client.get("/metrics").text
        manifest.write_text(before)
        assert client.get("/readyz").status_code == 200 and client.get("/healthz").status_code == 200
