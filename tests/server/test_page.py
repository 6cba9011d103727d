"""The page in a real browser: searching by file, drop, paste, click and keyboard alone, every state, and axe-core."""

import json
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pyarrow as pa
import pytest
import uvicorn
from browser import Browser, find_chromium, wait_for
from PIL import Image

from hashlens.clicks.file import read_clicks
from hashlens.codes import Codes
from hashlens.index.folder import IndexFolder
from hashlens.search import Searcher, open_searcher
from hashlens.server.access import Access
from hashlens.server.app import create_app
from hashlens.server.limits import Limits

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="no chromium on this machine")
SHOTS = os.environ.get("HASHLENS_SHOTS")  # a folder for images of the page, for people to look at


class Served:
    """A uvicorn server in a thread, stopped and started again at the same address."""

    def __init__(self, make_app):
        self.make_app, self.port = make_app, 0
        self.start()

    def start(self):
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self.port))
        self.port = self._socket.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/"
        self._server = uvicorn.Server(
            uvicorn.Config(self.make_app(), log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()
        wait_for(lambda: self._server.started, "the server")

    def stop(self):
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()


@pytest.fixture(scope="module")
def searcher(made):
    return open_searcher(made.index, made.exported)


@pytest.fixture(scope="module")
def served(searcher):
    # as on one's own machine
    alone = Access(anyone_clicks=True)
    served = Served(lambda: create_app(searcher, limits=Limits(max_upload=1_000_000), access=alone))
    yield served
    served.stop()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    if find_chromium() is None:
        pytest.skip("no chromium on this machine")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(running, served):
    """The page, opened afresh."""
    running.scheme("light")
    running.size(1440, 1000)
    running.messages.clear()
    running.requests.clear()
    running.open(served.address)
    running.until("document.querySelector('#facts').textContent.includes('60 images')")
    running.until("document.querySelector('#status').textContent.startsWith('No query')")
    yield running
    assert [m for m in running.messages if "ERR_CONNECTION" not in m and "400" not in m and "404" not in m] == []


def results(browser, n=20):
    """Wait for n results and for what is counted after they are shown."""
    browser.until(f"document.querySelectorAll('#hits li').length === {n} && !document.querySelector('#hits.waiting')")
    browser.until("document.querySelector('#ties').textContent.includes(' at ≤ ')")


def test_before_any_query(browser, served):
    assert browser.text("#facts") == "60 images · 20 bits · exact · model made"
    assert "It stays on this machine" in browser.text("#query-none")
    assert browser.count("#examples button") == 6
    assert all(address.startswith(served.address) for address in browser.requests)


def test_the_folder_is_shown_at_once(browser, served):
    """All images as a grid, page by page; a click searches, Back returns to the page."""
    browser.until("document.querySelectorAll('#all li').length === 60")
    assert browser.text("#results-title") == "All images" and browser.run("document.querySelector('.pages').hidden")
    assert browser.count("#all img[loading=lazy]") == 60
    browser.run("document.querySelectorAll('#all .hit')[21].click()")
    results(browser)
    assert browser.run("location.search") == "?id=21" and browser.text("#results-title") == "Results"
    assert browser.run("document.querySelector('#folder').hidden")
    browser.run("history.back()")
    browser.until("!document.querySelector('#folder').hidden && document.querySelectorAll('#hits li').length === 0")


@pytest.fixture
def many(tmp_path, rng):
    """10,000 images of an index; the files are a few."""
    made = Image.new("RGB", (32, 32), (200, 30, 30))
    (tmp_path / "photos").mkdir()
    made.save(tmp_path / "photos" / "a.png")
    paths = [f"{tmp_path}/photos/{name}.png" for name in ["a", *(f"gone-{number:04d}" for number in range(9_999))]]
    index = IndexFolder.create(tmp_path / "index", 16, {"fingerprint": "ab" * 32, "name": "none"})
    index.add(Codes.from_relaxed(rng.normal(size=(10_000, 16))), pa.table({"path": paths}))
    served = Served(lambda: create_app(Searcher(index)))
    yield served
    served.stop()


def test_ten_thousand_images_have_pages(running, many):
    running.size(1440, 1000)
    running.open(many.address)
    running.until("document.querySelectorAll('#all li').length === 120")
    assert running.text(".pages span") == "1–120 of 10,000"
    assert running.run("document.querySelector('.pages button').disabled")
    running.run("document.querySelectorAll('.pages button')[1].click()")
    running.until("document.querySelector('.pages span').textContent === '121–240 of 10,000'")
    assert running.run("location.search") == "?page=2"
    running.open(f"{many.address}?page=84")
    running.until("document.querySelectorAll('#all li').length === 40")
    assert running.run("document.querySelectorAll('.pages button')[1].disabled")
    running.open(f"{many.address}?page=9999")  # the last one instead
    running.until("location.search === '?page=84' && document.querySelectorAll('#all li').length === 40")
    assert running.count(".marks") == 0


@pytest.mark.parametrize(("width", "height"), [(1440, 1000), (375, 740)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_on_results(browser, served, searcher, width, height, scheme):
    browser.size(width, height, mobile=width < 500)
    browser.scheme(scheme)
    browser.open(f"{served.address}?id=3")
    results(browser)
    assert browser.count(".marks") == 19  # all but the query itself
    before = len(read_clicks(searcher.index.path))
    browser.run("document.querySelectorAll('.mark-more')[2].click()")
    browser.until("document.querySelector('#marked').textContent === 'Also mark one that is less like the query.'")
    assert browser.run("document.querySelector('#keep').disabled")
    browser.run(
        "document.querySelectorAll('.mark-less')[4].click(); document.querySelectorAll('.mark-less')[5].click()"
    )
    browser.until("document.querySelector('#marked').textContent === '1 more like the query, 2 less.'")
    assert browser.count(".marks [aria-pressed=true]") == 3
    browser.run("document.querySelectorAll('.mark-more')[5].click()")  # another mind
    browser.until("document.querySelector('#marked').textContent === '2 more like the query, 1 less.'")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.run("document.querySelectorAll('.mark-more')[5].scrollIntoView({ block: 'center' })")
    box = browser.run("(() => { const r = document.querySelector('#marks').getBoundingClientRect();"
                      " return [r.bottom <= innerHeight, r.right <= innerWidth]; })()")  # fmt: skip
    assert box == [True, True]
    if SHOTS:
        browser.screenshot(Path(SHOTS) / f"marks-{width}-{scheme}.png", whole=False)
    browser.run("document.querySelector('#keep').click()")
    browser.until("document.querySelector('#learned').textContent.startsWith('Kept; ')")
    assert f"hashlens refine {searcher.index.path}" in browser.text("#learned")
    kept = read_clicks(searcher.index.path)[before:]
    hits = [hit["path"] for hit in searcher.search(3, k=20)["hits"] if hit["id"] != 3]
    query = searcher.item(3)["path"]
    assert kept == [(query, hits[2], hits[4]), (query, hits[5], hits[4])]
    assert browser.count(".marks [aria-pressed=true]") == 0


def test_an_upload_cannot_be_marked(browser, made):
    browser.choose_file(made.images / "palace" / "003.jpg")
    results(browser)
    assert browser.count(".marks") == 0 and not browser.run("document.querySelector('#mark-note').hidden")


@pytest.mark.parametrize(("width", "height"), [(1440, 1000), (375, 740)])
@pytest.mark.parametrize("view", ["duplicates", "groups"])
def test_what_is_found_in_the_whole_index(browser, served, searcher, view, width, height):
    browser.size(width, height, mobile=width < 500)
    browser.scheme("dark" if width < 500 else "light")
    browser.run(f"document.querySelector('#views [data-view={view}]').click()")
    browser.until("document.querySelector('#whole-status').textContent !== ''")
    assert browser.run("location.search") == f"?view={view}" and browser.run("document.querySelector('#search').hidden")
    if not browser.run("document.querySelector('#start').hidden"):
        browser.run("document.querySelector('#start').click()")
    browser.until("document.querySelectorAll('#found .group').length > 0")
    browser.until("[...document.querySelectorAll('#found img')].slice(0, 2).every(i => i.complete && i.naturalWidth)")
    assert browser.run("document.querySelector('#start').hidden") and " in 60 images." in browser.text("#whole-status")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    if view == "duplicates":
        assert browser.count("#found h3") == 3 and "keep" in browser.text("#found .group li")
    if SHOTS:
        browser.screenshot(Path(SHOTS) / f"{view}-{width}.png", whole=False)
    path = browser.run("document.querySelector('#found .hit').title")
    browser.run("document.querySelector('#found .hit').click()")
    results(browser)
    assert browser.text("#query-name").startswith(Path(path).name)
    browser.run("history.back()")
    browser.until("!document.querySelector('#whole').hidden && document.querySelectorAll('#found .group').length > 0")


def test_marks_tabs_and_pages_by_keyboard(browser, served, searcher):
    """The folder, a search, two marks that are kept, the duplicates and back, without a mouse."""
    browser.until("document.querySelectorAll('#all li').length === 60")
    reached = []
    for _ in range(30):
        browser.press("Tab")
        reached.append(browser.run("document.activeElement.textContent.trim()"))
        if browser.run("document.activeElement.closest('#all') !== null"):
            break
    assert reached[1:4] == ["Search", "Duplicates", "Groups"]
    browser.press("ArrowRight")
    browser.press("ArrowDown")
    place = "[...document.querySelectorAll('#all .hit')].indexOf(document.activeElement)"
    chosen = browser.run(place)
    assert chosen > 2 and browser.count("#all .hit[tabindex='0']") == 1
    browser.press("Enter")
    results(browser)
    assert browser.run("location.search") == f"?id={chosen}"
    before = len(read_clicks(searcher.index.path))
    browser.run("document.querySelector('#hits .hit').focus()")
    browser.press("ArrowRight")
    browser.press("m")
    browser.press("End")
    browser.press("l")
    assert browser.count(".marks [aria-pressed=true]") == 2
    browser.press("l")  # and back
    assert browser.count(".marks [aria-pressed=true]") == 1
    browser.press("l")
    for _ in range(6):
        browser.press("Tab")
        if browser.run("document.activeElement.id") == "keep":
            break
    browser.press("Enter")
    browser.until("document.querySelector('#learned').textContent.startsWith('Kept; ')")
    assert len(read_clicks(searcher.index.path)) == before + 1
    browser.run("document.querySelector('#views [data-view=duplicates]').focus()")
    browser.press("Enter")
    browser.until("!document.querySelector('#whole').hidden")


def test_choose_a_file(browser, made):
    browser.choose_file(made.images / "palace" / "003.jpg")
    results(browser)
    assert "20 results in" in browser.text("#status") and browser.text("#query-name") == "003.jpg (96 × 72)"
    assert "20 shown of" in browser.text("#ties") and "exact" in browser.text("#ties")
    assert not browser.run(
        "document.querySelector('#unknown').hidden"
    )  # an upload has no label: nothing is right or wrong
    assert browser.count("#hits .right") == browser.count("#hits .wrong") == 0
    assert "of 20 bits differ" in browser.text("#hits li:first-child")
    code = browser.run("document.querySelector('#query-hex').textContent").replace(" ", "")
    assert f"code={code}" in browser.run("location.search")
    assert browser.run("document.querySelector('#query-image').src").startswith("blob:")
    browser.until("document.querySelector('#query-image').naturalWidth === 96")


def test_drop_and_paste(browser, made):
    first, second = ((made.images / name / "001.jpg").read_bytes() for name in ("palace", "digit"))
    browser.give("dragover", ("x.jpg", b""))
    browser.until("!document.querySelector('#drop-hint').hidden")
    browser.give("drop", ("dropped.jpg", first))
    results(browser)
    assert browser.run("document.querySelector('#drop-hint').hidden") and "dropped.jpg" in browser.text("#query-name")
    browser.give("paste", ("pasted.jpg", second))
    browser.until("document.querySelector('#query-name').textContent.includes('pasted.jpg')")
    browser.give("drop", ("one.jpg", first), ("two.jpg", second))
    browser.until(
        "document.querySelector('#status').textContent.includes('One image at a time: using the first, ‘one.jpg’')"
    )


def test_click_a_result_and_go_back(browser):
    browser.run("document.querySelector('#examples button').click()")
    results(browser)
    assert browser.run("location.search") == "?id=0"
    assert not browser.run("document.querySelector('#legend').hidden")
    right, wrong = browser.count("#hits li.right"), browser.count("#hits li.wrong")
    assert right + wrong == 20 and right > 0 and f"{right} with the same label" in browser.text("#status")
    assert browser.count("#hits li .sign svg") == 20  # a sign, not colour alone
    styles = "getComputedStyle(document.querySelector('#legend .{} .frame')).borderTopStyle"
    assert browser.run(styles.format("right")) == "solid" and browser.run(styles.format("wrong")) == "dashed"
    other = browser.run(
        "(() => { const b = document.querySelectorAll('#hits .hit')[5]; b.click(); return b.title; })()"
    )
    browser.until("document.querySelector('#query-name').textContent.startsWith(" + json.dumps(Path(other).name) + ")")
    results(browser)
    assert browser.run("location.search") != "?id=0"
    browser.run("history.back()")
    browser.until(
        "location.search === '?id=0' && document.querySelector('#query-name').textContent.startsWith('000.jpg')"
    )
    browser.run("history.back()")
    browser.until(
        "document.querySelectorAll('#hits li').length === 0"
        " && document.querySelector('#status').textContent.startsWith('No query')"
    )


def test_the_address_holds_the_whole_search(browser, served, searcher):
    browser.open(f"{served.address}?id=3&k=7&label=flower")
    results(browser, 7)
    assert browser.run("[...document.querySelectorAll('#hits .words')].every(e => e.textContent === 'flower')")
    assert browser.run("[document.querySelector('#k').value, document.querySelector('#label').value]") == [
        "7",
        "flower",
    ]
    browser.open(f"{served.address}?code={searcher.item(3)['code']}&radius=20&k=100")
    results(browser, 60)
    assert "all 60 at" in browser.text("#ties")
    browser.open(f"{served.address}?id=<b>&k=x&radius=../..")
    browser.until("document.querySelector('#status').textContent.startsWith('No query')")


def test_numbers_are_those_of_the_search(browser, served, searcher):
    answer = searcher.search(25, k=20, histogram=True)
    browser.open(f"{served.address}?id=25")
    results(browser)
    shown = browser.run(
        "[...document.querySelectorAll('#hits .hit')].map(b => Number(b.textContent.match(/(\\d+) of 20 bits/)[1]))"
    )
    assert shown == [hit["distance"] for hit in answer["hits"]]
    within = sum(answer["histogram"][: answer["ties"]["distance"] + 1])
    counted = f"20 shown of {within}" if within > 20 else "all 20"
    assert browser.text("#ties").startswith(f"{counted} at ≤ {answer['ties']['distance']} bit")
    if within > 20:
        browser.run("document.querySelector('#ties button').click()")
        results(browser, within)
    # the details of a result say which bits differ
    hit = next((hit for hit in answer["hits"] if hit["distance"]), None)
    own, other = (
        f"{int(code, 16):024b}"[:20] for code in (answer["query"]["code"], (hit or answer["hits"][0])["code"])
    )
    differing = [i + 1 for i in range(20) if own[i] != other[i]]
    rank = answer["hits"].index(hit or answer["hits"][0])
    browser.run(f"document.querySelectorAll('#hits .more')[{rank}].click()")
    names = browser.run("[...document.querySelectorAll('#details .barcode')].map(b => b.getAttribute('aria-label'))")
    browser.run("document.querySelector('#details').close()")
    expected = (
        f"{', '.join(map(str, differing[:-1]))} and {differing[-1]}"
        if len(differing) > 1
        else "".join(map(str, differing))
    )
    assert any(name.endswith(expected) for name in names)
    # the histogram, as a table
    rows = browser.run(
        "[...document.querySelectorAll('#counts tr')].map(r => [...r.children].map(c => Number(c.textContent)))"
    )
    assert [[d, n] for d, n, _ in rows] == [[d, n] for d, n in enumerate(answer["histogram"]) if n] and rows[-1][
        2
    ] == 60
    before = browser.run("document.querySelector('#histogram').innerHTML")
    browser.run("document.querySelector('#logarithmic').click()")
    assert browser.run("document.querySelector('#histogram').innerHTML") != before
    assert "total" in browser.text("#timing") and "search" in browser.text("#timing")


def test_on_a_phone_results_are_on_the_first_screen(browser, made):
    browser.size(390, 844, mobile=True)
    try:
        browser.run("document.querySelector('#all .hit, #examples button').click()")
        results(browser)
        browser.run("window.scrollTo(0, 0)")
        boxes = browser.run(
            "[...document.querySelectorAll('#hits .frame')].slice(0, 4).map(f => f.getBoundingClientRect().toJSON())"
        )
        assert boxes[1]["bottom"] < 844  # the first row, whole
        assert len({round(box["height"]) for box in boxes}) == 1, "rows are equal, whatever the shape of the images"
        assert browser.count("#hits .barcode") == 0 and not browser.run("document.querySelector('#query details').open")
    finally:
        browser.size(1280, 900)


def test_by_keyboard_alone(browser, made):
    """From nothing to the details of a result of a result, and out again, without a mouse."""
    focus = "document.activeElement.{}"
    reached = []
    for _ in range(12):
        browser.press("Tab")
        reached.append(
            browser.run(focus.format("id"))
            or browser.run(focus.format("className"))
            or browser.run(focus.format("tagName"))
        )
        if browser.run("document.activeElement.closest('#examples') !== null"):
            break
    assert reached[:7] == ["skip", "A", "A", "A", "api", "keys-button", "file"]
    browser.press("Enter")
    results(browser)
    browser.run("document.querySelector('#hits .hit').focus()")  # where Tab leads; its one stop is checked below
    assert browser.count("#hits .hit[tabindex='0']") == 1
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert browser.run("[...document.querySelectorAll('#hits .hit')].indexOf(document.activeElement)") == 2
    assert browser.run("document.activeElement.tabIndex === 0") and browser.count("#hits .hit[tabindex='0']") == 1
    browser.press("ArrowDown")
    row = browser.run("[...document.querySelectorAll('#hits .hit')].indexOf(document.activeElement)")
    assert row > 3
    browser.press("ArrowUp")
    assert browser.run("[...document.querySelectorAll('#hits .hit')].indexOf(document.activeElement)") == 2
    browser.press("End")
    assert browser.run("[...document.querySelectorAll('#hits .hit')].indexOf(document.activeElement)") == 19
    browser.press(" ")
    browser.until("document.querySelector('#details').open")
    assert "curl --json" in browser.text("#details-curl") and "open_searcher" in browser.text("#details-python")
    browser.press("Escape")
    browser.until("!document.querySelector('#details').open")
    assert (
        browser.run("[...document.querySelectorAll('#hits .hit')].indexOf(document.activeElement)") == 19
    )  # focus is back
    path = browser.run("document.activeElement.title")
    browser.press("Enter")
    browser.until("document.querySelector('#query-name').textContent.startsWith(" + json.dumps(Path(path).name) + ")")
    browser.press("]")
    results(browser, 50)
    browser.press("[")
    results(browser, 20)
    browser.press("?")
    browser.until("document.querySelector('#keys').open")
    browser.press("Escape")
    browser.until("!document.querySelector('#keys').open")
    browser.press("h")
    assert browser.run(focus.format("id")) == "logarithmic"
    browser.run(
        "document.querySelector('#file').addEventListener('click', e => { e.preventDefault(); window.asked = true; })"
    )
    browser.press("/")
    assert browser.run("window.asked === true")
    # keys of one character can be switched off, and never act while one types
    browser.run("document.querySelector('#label').focus()")
    browser.press("?")
    assert (
        not browser.run("document.querySelector('#keys').open")
        and browser.run("document.querySelector('#label').value") == "?"
    )
    browser.run("document.querySelector('#label').value = ''; document.querySelector('#label').blur()")
    browser.run("document.querySelector('#single-keys').click()")
    browser.press("?")
    assert not browser.run("document.querySelector('#keys').open")
    browser.run("localStorage.clear()")


def test_what_cannot_be_searched_for(browser, made):
    whole = (made.images / "palace" / "003.jpg").read_bytes()
    for name, content, words in (
        ("notes.pdf", b"%PDF-1.4 text", "Cannot read the image notes.pdf: not a JPEG"),
        ("a.jpg", whole[:1_000], "a.jpg: truncated; repair or remove it."),
        ("big.jpg", b"\0" * 1_100_000, "1.1 MB: the limit is 1.0 MB (server option --max-upload)."),
    ):
        browser.give("drop", (name, content))
        browser.until(f"document.querySelector('#error').textContent.includes({json.dumps(words)})")
        assert browser.run("document.activeElement.id") == "error"
    browser.give("drop", ("good.jpg", whole))
    results(browser)
    assert browser.text("#error") == ""
    browser.give("drop", ("notes.pdf", b"text"))
    browser.until("document.querySelector('#error').textContent !== ''")
    assert browser.count("#hits li") == 20 and "the previous search" in browser.text("#status")


def test_nothing_near_enough(browser, served, searcher):
    code = searcher.item(3)["code"]
    far = f"{int(code, 16) ^ 0xFFFFF0:06x}"
    nearest = next(d for d, n in enumerate(searcher.search(far, histogram=True)["histogram"]) if n)
    assert nearest > 0
    browser.open(f"{served.address}?code={far}&radius=0")
    browser.until(
        "document.querySelector('#status').textContent.startsWith"
        f"('No image within 0 bits. The nearest is {nearest} bit')"
    )
    browser.run("document.querySelector('#ties button').click()")
    browser.until("document.querySelectorAll('#hits li').length > 0")
    browser.open(f"{served.address}?id=3&label=unheard")
    browser.until("document.querySelector('#status').textContent === 'No image has the label ‘unheard’.'")


def test_the_server_goes_and_comes_back(browser, served):
    browser.run("document.querySelector('#examples button').click()")
    results(browser)
    served.stop()
    try:
        browser.run("document.querySelectorAll('#hits .hit')[3].click()")
        browser.until("document.querySelector('#error').textContent.startsWith('Cannot reach the server at 127.0.0.1')")
        assert browser.count("#hits li") == 20 and not browser.run("document.querySelector('#again').hidden")
    finally:
        served.start()
    browser.run("document.querySelector('#again').click()")
    browser.until("document.querySelector('#error').textContent === '' && location.search !== '?id=0'")
    results(browser)


def test_moved_files_keep_their_place(browser, searcher, made):
    path = made.images / "digit" / "019.jpg"
    path.rename(path.with_suffix(".away"))
    served = Served(lambda: create_app(searcher))  # one that has not seen the image before
    try:
        browser.open(f"{served.address}?id=59&k=100")
        results(browser, 60)
        gone = "[...document.querySelectorAll('#hits .hit')].find(b => b.title.endsWith('digit/019.jpg'))"
        browser.run(f"{gone}.scrollIntoView()")
        browser.until(f"{gone}.querySelector('img').naturalWidth === 240")  # the drawing; the image has 96
        assert browser.run("fetch('v1/items/59/thumb').then(r => r.text())").count("file moved") == 1
    finally:
        served.stop()
        path.with_suffix(".away").rename(path)


def test_an_empty_index(running, tmp_path):
    index = IndexFolder.create(tmp_path / "index", 12, {"fingerprint": "ab" * 32, "name": "none"})
    served = Served(lambda: create_app(Searcher(index)))
    try:
        running.open(served.address)
        running.until("document.querySelector('#status').textContent.startsWith('This index has no images. Add some')")
    finally:
        served.stop()


@pytest.mark.parametrize(("width", "height"), [(360, 740), (768, 1000), (1440, 1000), (3840, 2000)])
def test_every_width(browser, served, width, height):
    """No scrolling sideways, and images for people to look at."""
    browser.size(width, height)
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        browser.open(f"{served.address}?id=25")
        results(browser)
        browser.until(
            "[...document.querySelectorAll('#hits img')].slice(0, 2).every(i => i.complete && i.naturalWidth)"
        )
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        small = browser.run(
            "[...document.querySelectorAll('button, select, summary, .check, .button')].filter(e => e.offsetParent)"
            ".filter(e => Math.min(e.getBoundingClientRect().height, e.getBoundingClientRect().width) < 24)"
            ".map(e => e.outerHTML)"
        )
        assert small == []
        if SHOTS:
            browser.screenshot(Path(SHOTS) / f"page-{width}-{scheme}.png")


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """The text of axe-core, from npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not on this machine, so there is no axe-core")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), "axe-core@4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    file = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not file.exists():
        pytest.skip(f"npm could not download axe-core: {done.stderr.strip().splitlines()[-1:]}")
    return file.read_text(encoding="utf-8")


STATES = {
    "nothing": ("", "document.querySelector('#status').textContent.startsWith('No query')"),
    "duplicates": ("?view=duplicates", "document.querySelector('#whole-status').textContent !== ''"),
    "results": ("?id=25", "document.querySelectorAll('#hits li').length === 20"),
    "code": ("?code=abcde0&k=10", "document.querySelectorAll('#hits li').length === 10"),
    "error": ("?id=999", "document.querySelector('#error').textContent !== ''"),
    "keys": ("?id=25", "document.querySelectorAll('#hits li').length === 20"),
    "details": ("?id=25", "document.querySelectorAll('#hits li').length === 20"),
    "docs": ("docs", "document.querySelector('table')"),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing(browser, served, axe, scheme, state):
    browser.scheme(scheme)
    address, ready = STATES[state]
    browser.open(served.address + address)
    browser.until(ready)
    browser.run("document.querySelectorAll('main details').forEach(d => d.open = true)")
    if state == "keys":
        browser.run("document.querySelector('#keys-button').click()")
    if state == "details":
        browser.run("document.querySelector('#hits .more').click()")
    browser.run(axe + "; undefined")
    found = browser.run(
        "axe.run(document, { resultTypes: ['violations'] }).then(r => r.violations.map("
        "v => v.id + ': ' + v.help + ' ' + v.nodes.map(n => n.html + ' ' + n.failureSummary).slice(0, 3).join(' | ')))"
    )
    assert found == []
    if SHOTS and state in ("details", "keys", "error", "docs", "nothing"):
        browser.screenshot(Path(SHOTS) / f"{state}-{scheme}.png", whole=False)
