"""A headless Chromium over its DevTools protocol: enough to click, type, paste, drop, look and take screenshots."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

WAIT = 60  # seconds; the machine may be busy
KEYS = {
    "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39,
    "ArrowDown": 40, "Tab": 9, "/": 191, "?": 191, "[": 219, "]": 221,
}  # fmt: skip


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page of one browser."""

    def __init__(self, profile: Path):
        import websocket

        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--mute-audio",
        ]
        options += ["--disable-background-networking", "--remote-debugging-port=0", "--remote-allow-origins=*"]
        options += ["--force-prefers-reduced-motion", f"--user-data-dir={profile}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([find_chromium(), *options], start_new_session=True, **quiet)
        port_file = profile / "DevToolsActivePort"
        wait_for(lambda: port_file.exists() and port_file.read_text().count("\n"), "the browser to start")
        self._port = int(port_file.read_text().split("\n")[0])
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/json") as response:
            target = next(page for page in json.load(response) if page["type"] == "page")
        self._socket = websocket.create_connection(target["webSocketDebuggerUrl"], timeout=WAIT)
        self._numbers = itertools.count(1)
        self.messages: list[str] = []  # what the page said on its console
        self.requests: list[str] = []  # addresses that it asked for
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params):
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def _note(self, message):
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(params["exceptionDetails"])[:500])
        elif message.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.messages.append(
                " ".join(str(one.get("value", one.get("description"))) for one in params["args"])[:500]
            )
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.messages.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def open(self, address: str):
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def run(self, expression: str):
        """The value of an expression in the page; promises are waited for."""
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:1000])
        return found["result"].get("value")

    def until(self, expression: str):
        wait_for(lambda: self.run(f"Boolean({expression})"), expression)

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def count(self, selector: str) -> int:
        return self.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    def press(self, key: str, **modifiers):
        code = KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        facts = {"key": key, "windowsVirtualKeyCode": code, "code": key if len(key) > 1 else "", **modifiers}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **facts)
        self.call("Input.dispatchKeyEvent", type="keyUp", **facts)

    def choose_file(self, *paths: Path, selector: str = "#file"):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def give(self, event: str, *files: tuple[str, bytes]):
        """Drop or paste files, as the browser would hand them to the page."""
        given = json.dumps([[name, base64.b64encode(content).decode()] for name, content in files])
        kind, field = (
            ("DragEvent", "dataTransfer") if event in ("drop", "dragover") else ("ClipboardEvent", "clipboardData")
        )
        self.run(
            f"(() => {{ const data = new DataTransfer();"
            f" for (const [name, content] of {given})"
            " data.items.add(new File([Uint8Array.from(atob(content), c => c.charCodeAt(0))], name));"
            f" const how = {{ {field}: data, bubbles: true, cancelable: true }};"
            f" document.body.dispatchEvent(new {kind}('{event}', how)); }})()"
        )

    def size(self, width: int, height: int, mobile: bool = False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def scheme(self, name: str):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path: Path, whole: bool = True):
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self):
        self._socket.close()
        try:
            os.killpg(self._process.pid, 15)
            self._process.wait(20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            self._process.kill()


def wait_for(ready, what: str):
    end = time.monotonic() + WAIT
    while not ready():
        assert time.monotonic() < end, f"waited {WAIT} seconds for {what}"
        time.sleep(0.05)
