"""The built site (make docs): links lead somewhere, every page opens in a browser without an error or a request."""

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from server.browser import Browser, find_chromium

SITE = Path(__file__).parent.parent.parent / "site"
SHOTS = os.environ.get("HASHLENS_SHOTS")  # a folder for pictures of the pages, for people to look at
pytestmark = pytest.mark.skipif(not os.environ.get("HASHLENS_LONG"), reason="make docs-test builds the site first")


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.names, self.loaded = [], set(), []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.names |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe") and found.get("src"):
            self.loaded.append(found["src"])
        if tag == "link" and found.get("href") and found.get("rel") not in ("canonical", "next", "prev", "index"):
            self.loaded.append(found["href"])


@pytest.fixture(scope="module")
def parsed():
    found = {}
    for path in sorted(SITE.rglob("*.html")):
        found[path] = Links()
        found[path].feed(path.read_text(encoding="utf-8"))
    assert len(found) > 60, "run: make docs"
    return found


def test_links_lead_somewhere(parsed):
    dead = []
    for page, links in parsed.items():
        for link in links.links:
            address = urlsplit(link)
            if address.scheme:
                assert address.scheme in ("https", "http", "mailto"), link
                continue
            target = (page.parent / unquote(address.path)).resolve() if address.path else page
            if target.is_dir():
                target /= "index.html"
            names = parsed[target].names if target in parsed else {unquote(address.fragment)}
            if not target.exists() or (address.fragment and unquote(address.fragment) not in names):
                dead.append(f"{page.name}: {link}")
    assert not dead, "\n".join(sorted(set(dead)))


def test_nothing_is_loaded_from_elsewhere(parsed):
    for page, links in parsed.items():
        for address in links.loaded:
            assert not urlsplit(address).scheme or address.startswith("data:"), f"{page.name}: {address}"


def test_plain_text_of_every_page_is_listed():
    listed = (SITE / "llms.txt").read_text(encoding="utf-8")
    targets = re.findall(r"\((_sources/[^)]+)\)", listed)
    assert len(targets) > 60
    for target in targets:
        assert (SITE / target).exists(), target


@pytest.mark.skipif(find_chromium() is None, reason="no chromium on this machine")
def test_every_page_opens_without_errors(parsed, tmp_path):
    browser = Browser(tmp_path)
    try:
        for width, scheme in ((1280, "light"), (390, "dark")):
            browser.size(width, 900, mobile=width < 500)
            browser.scheme(scheme)
            for page in parsed:
                browser.open(page.as_uri())
                wide = browser.run("document.documentElement.scrollWidth")
                assert wide <= width + 1, f"{page.name} is {wide} pixels wide on a screen of {width}"
                if SHOTS:
                    name = "-".join(page.relative_to(SITE).with_suffix("").parts)
                    browser.screenshot(Path(SHOTS) / f"{name}-{width}-{scheme}.png")
        browser.open((SITE / "concepts" / "likelihood.html").as_uri())
        before = browser.text("#margin-caption")
        browser.run("(() => { const s = document.getElementById('margin-alpha'); s.value = 3;"
                    " s.dispatchEvent(new Event('input')); })()")  # fmt: skip
        assert browser.text("#margin-caption") != before
        browser.open((SITE / "search.html").as_uri() + "?q=hamming")
        browser.until("document.querySelectorAll('#search-results li').length > 3")
        assert browser.messages == []
        assert all(address.startswith(("file:", "data:", "about:")) for address in browser.requests)
    finally:
        browser.close()
