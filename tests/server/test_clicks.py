"""Clicks, pages of images, duplicates and groups over HTTP."""

import shutil
import time

import pytest
from fastapi.testclient import TestClient

from hashlens.clicks.file import CLICKS, read_clicks
from hashlens.errors import UsageError
from hashlens.search import open_searcher
from hashlens.server import jobs
from hashlens.server.access import Access, Token
from hashlens.server.app import create_app
from hashlens.server.jobs import Job

BASE = "http://127.0.0.1"
READ, WRITE = "read-" + "r" * 20, "write-" + "w" * 20
MARKS = {"query": 3, "more": [4, 5], "less": [30]}


@pytest.fixture
def searcher(made, tmp_path):
    # in a browser, other tests mark images of the index that all share
    shutil.copytree(made.index, tmp_path / "index", ignore=shutil.ignore_patterns(CLICKS))
    return open_searcher(tmp_path / "index", made.exported)


def client_of(searcher, **how):
    return TestClient(create_app(searcher, access=Access(**how)), base_url=BASE, raise_server_exceptions=False)


def test_clicks_are_kept_beside_the_index(searcher):
    with client_of(searcher, anyone_clicks=True) as client:
        assert client.get("/v1/info").json()["clicks"]["n"] == 0
        answer = client.post("/v1/clicks", json=MARKS)
        assert answer.status_code == 201 and answer.json() == {"triplets": 2, "total": 2}
        paths = [searcher.item(id_)["path"] for id_ in (3, 4, 5, 30)]
        assert read_clicks(searcher.index.path) == [(paths[0], paths[1], paths[3]), (paths[0], paths[2], paths[3])]
        found = client.get("/v1/info").json()["clicks"]
        assert found == {"n": 2, "command": f"hashlens refine {searcher.index.path}"}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"query": 3, "more": [], "less": [1]}, 422, "more: "),
        ({"query": 3, "more": [1], "less": [1]}, 422, "marked twice"),
        ({"query": 3, "more": [3], "less": [1]}, 422, "is the query"),
        ({"query": 3, "more": [1], "less": [999]}, 404, "no image 999"),
        ({"query": 3, "more": list(range(10, 120)), "less": [1]}, 422, "at most 100"),
        ({"query": "3", "more": [1], "less": [2]}, 422, "query: "),
        ({"query": 3, "more": [1], "less": [2], "path": "/etc/passwd"}, 422, "path: "),
        ([1], 422, "query: "),
    ],
)
def test_wrong_clicks_are_refused_in_a_sentence(searcher, body, status, words):
    with client_of(searcher, anyone_clicks=True) as client:
        answer = client.post("/v1/clicks", json=body)
        assert answer.status_code == status and words in answer.json()["detail"], answer.text
        assert client.post("/v1/clicks", content=b"query=3").status_code == 415
        assert not (searcher.index.path / CLICKS).exists()


def test_who_may_click(searcher):
    """A server for others needs a write token; one without any takes no clicks and says so."""

    def post(client, token=None, **headers):
        own = {"Authorization": f"Bearer {token}"} if token else {}
        return client.post("/v1/clicks", json=MARKS, headers=own | headers)

    with client_of(searcher) as client:
        answer = post(client)
        assert answer.status_code == 403 and "this server takes no clicks" in answer.json()["detail"]
        assert client.get("/v1/info").json()["clicks"] is None
    with client_of(searcher, tokens=(Token.of(READ), Token.of(WRITE, "write"))) as client:
        assert [post(client, token).status_code for token in (None, READ, WRITE)] == [401, 403, 201]
        assert client.get("/v1/info").json()["clicks"]["n"] == 2
    with client_of(searcher, anyone_clicks=True) as client:
        assert post(client, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert post(client, Origin="http://evil.example").status_code == 403
        assert post(client).status_code == 201
    assert len(read_clicks(searcher.index.path)) == 4


def test_pages_of_images(searcher):
    searcher.index.remove([0, 31])
    with client_of(searcher) as client:
        found = client.get("/v1/items?n=500").json()
        ids = [item["id"] for item in found["items"]]
        assert found["n"] == 58 and ids == [id_ for id_ in range(60) if id_ not in (0, 31)]
        pages = [client.get(f"/v1/items?start={start}&n=20").json()["items"] for start in (0, 20, 40, 60)]
        assert [item["id"] for page in pages for item in page] == ids and pages[3] == []
        assert client.get(pages[0][0]["thumb"]).headers["content-type"] == "image/jpeg"
        for wrong in ("start=-1", "n=0", "n=501", "start=x"):
            assert client.get(f"/v1/items?{wrong}").status_code == 422


def wait(client, path):
    while (state := client.get(path).json())["state"] == "running":
        time.sleep(0.05)
    return state


def test_duplicates_and_groups_are_found_in_the_background(searcher, made, tmp_path, monkeypatch):
    from hashlens import find_duplicates, find_groups

    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path / "cache"))
    with client_of(searcher) as client:
        assert client.get("/v1/duplicates").json() == {"state": "none"}
        assert client.post("/v1/duplicates").status_code == 202
        found = wait(client, "/v1/duplicates")
        theirs = find_duplicates(searcher.index.path)
        assert found["n_images"] == 60 and found["n_groups"] == len(theirs.groups) and not found["stale"]
        assert [[image["path"] for image in group["images"]] for group in found["groups"]] == [
            [image.path for image in group.images] for group in theirs.groups
        ]
        for group in found["groups"]:
            for image in group["images"]:
                assert searcher.item(image["id"])["path"] == image["path"]
        assert client.post("/v1/groups").status_code == 202
        groups = wait(client, "/v1/groups")
        assert [group["n"] for group in groups["groups"]] == list(map(len, find_groups(searcher.index.path).groups))
        searcher.index.remove([7])
        searcher.index.changed()
        assert client.get("/v1/items?n=1").json()["n"] == 59


def test_a_job_that_fails_says_why(searcher):
    def fail(*given):
        raise UsageError("groups needs sklearn; run: pip install it")

    job = Job("groups", searcher, fail)
    job.start()
    while job.state()["state"] == "running":
        time.sleep(0.01)
    assert job.state() == {"state": "failed", "error": "groups needs sklearn; run: pip install it"}


def test_a_job_runs_once_at_a_time_and_tells_how_far_it_is(searcher):
    import threading

    go, calls = threading.Event(), []

    def find(path, progress, stop):
        calls.append(path)
        with progress.bar("looking", 10) as advance:
            advance(4)
            go.wait(30)
        return []

    job = Job("duplicates", searcher, find)
    job.start()
    while job.state().get("done") != 4:
        time.sleep(0.01)
    job.start()
    assert job.state() == {"state": "running", "what": "looking", "done": 4, "total": 10}
    go.set()
    while job.state()["state"] == "running":
        time.sleep(0.01)
    job.start()  # the result is still right
    assert job.state()["state"] == "done" and len(calls) == 1
    searcher.index.remove([1])
    searcher.index = type(searcher.index).open(searcher.index.path)
    assert job.state()["stale"]
    job.start()
    while job.state()["state"] == "running":
        time.sleep(0.01)
    assert len(calls) == 2 and not job.state()["stale"]


def test_a_large_index_is_for_the_command_line(searcher, monkeypatch):
    monkeypatch.setattr(jobs, "MAX_IMAGES", 59)
    with client_of(searcher) as client:
        answer = client.post("/v1/duplicates")
        assert answer.status_code == 422 and "use: hashlens duplicates INDEX" in answer.json()["detail"]
