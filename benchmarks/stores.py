"""Servers that tests and benchmarks read images from: S3 and SFTP by rclone, https by nginx, and a failing proxy.

All of them listen on 127.0.0.1 and end with their `with` block.
"""

import http.client
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

KEY, SECRET = "key-of-the-tests", "secret-of-the-tests"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def _running(command: Sequence[str], port: int) -> Iterator[None]:
    """Run a server; continues once it listens."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 30
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if server.poll() is not None or time.monotonic() > until:
                server.kill()
                raise RuntimeError(f"{command[0]} did not start: {server.communicate()[1]}")
            time.sleep(0.05)
        yield
    finally:
        server.terminate()
        server.communicate()


def _rclone(*arguments: str) -> list[str]:
    beside = Path(sys.executable).with_name("rclone")
    program = str(beside) if beside.exists() else shutil.which("rclone")
    assert program, "rclone is missing; install hashlens[dev]"
    return [program, *arguments, "--config", os.devnull, "--log-level", "ERROR"]


@contextmanager
def s3(folder: Path) -> Iterator[str]:
    """The address of an S3 server whose buckets are the folders in `folder`; `credentials` opens it."""
    port = free_port()
    command = _rclone("serve", "s3", str(folder), "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}")
    with _running(command, port):
        yield f"http://127.0.0.1:{port}"


def credentials(endpoint: str) -> dict[str, str]:
    """Environment variables with which AWS's own tools, and so hashlens, find an S3 server."""
    found = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": endpoint}
    return found | {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def sftp(folder: Path, authorized_keys: Path) -> Iterator[int]:
    """The port of an SFTP server of that folder."""
    port = free_port()
    keys = ["--authorized-keys", str(authorized_keys), "--cache-dir", str(authorized_keys.parent / "rclone")]
    with _running(_rclone("serve", "sftp", str(folder), "--addr", f"127.0.0.1:{port}", *keys), port):
        yield port


@contextmanager
def nginx(folder: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    """An https address of that folder, with listings, and the certificate to trust."""
    assert NGINX, "nginx is missing"
    port, certificate, key = free_port(), scratch / "certificate.pem", scratch / "key.pem"
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key)]
    subprocess.run([*made, "-out", str(certificate), *name], check=True, capture_output=True)
    temporary = "".join(f"{kind}_temp_path {scratch}/{kind};" for kind in ("client_body", "proxy", "fastcgi"))
    (scratch / "nginx.conf").write_text(
        f"daemon off; pid {scratch}/nginx.pid; error_log stderr crit; user root; events {{}} http {{ access_log off;"
        f" {temporary} uwsgi_temp_path {scratch}/uwsgi; scgi_temp_path {scratch}/scgi; server {{"
        f" listen 127.0.0.1:{port} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};"
        f" location / {{ root {folder}; autoindex on; }} location /private/ {{ return 403; }} }} }}",
        encoding="utf-8",
    )
    with _running([NGINX, "-c", str(scratch / "nginx.conf"), "-p", str(scratch)], port):
        yield f"https://localhost:{port}", certificate


class _Faulty(BaseHTTPRequestHandler):
    """Forwards requests, but answers some with 500, nothing, or half the answer."""

    protocol_version = "HTTP/1.1"
    server: "_Proxy"

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.draw()
        if fault == "500":
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault == "dropped":
            self.close_connection = True
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            upstream.putheader(name, value)
        upstream.endheaders(body)
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else len(content)
        self.send_header("Content-Length", str(length or 0))
        self.end_headers()
        if fault == "cut" and content:
            content = content[: len(content) // 2]
            self.close_connection = True
        self.wfile.write(content)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass_on

    def log_message(self, *arguments: object) -> None:
        pass


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: int, fraction: float):
        super().__init__(("127.0.0.1", 0), _Faulty)
        self.upstream, self.fraction = upstream, fraction
        self.counts: Counter[str] = Counter()
        self._rng, self._lock = random.Random(0), threading.Lock()

    def draw(self) -> str:
        """The fate of a request."""
        with self._lock:
            bad = self._rng.random() < self.fraction
            fault = self._rng.choice(("500", "dropped", "cut")) if bad else ""
            self.counts[fault or "passed on"] += 1
        return fault

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the client has gone


@contextmanager
def faulty(endpoint: str, fraction: float) -> Iterator[tuple[str, Counter[str]]]:
    """An address that forwards requests to `endpoint` but breaks that fraction; and counts of what it did."""
    proxy = _Proxy(int(endpoint.rpartition(":")[2]), fraction)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}", proxy.counts
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
