"""What deploy/ offers: linted, verified, and nginx as a real reverse proxy."""

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from running import running

DEPLOY = Path(__file__).parents[2] / "deploy"
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent))
TOKEN = "read-" + "r" * 20


def needs(program, found=None):
    return pytest.mark.skipif(not (found or shutil.which(program)), reason=f"{program} is not installed")


@needs("hadolint", HADOLINT)
def test_the_dockerfile_passes_its_linter():
    found = subprocess.run([HADOLINT, DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


@needs("systemd-analyze")
def test_the_unit_is_valid_and_closed(tmp_path):
    unit = tmp_path / "hashlens.service"
    text = (DEPLOY / "hashlens.service").read_text()
    unit.write_text(text.replace("/opt/hashlens/bin/hashlens", "/bin/true"))  # which exists here
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert verified.returncode == 0 and verified.stderr == ""
    security = ["systemd-analyze", "security", "--offline=yes", "--threshold=15", "--no-pager", unit]
    found = subprocess.run(security, capture_output=True, text=True)  # exposure of at most 1.5 of 10
    assert found.returncode == 0, found.stdout[-200:]


def test_the_options_of_deploy_exist(hashlens):
    help_text = hashlens("serve", "--help")[1]
    for name in ("Dockerfile", "hashlens.service"):
        options = {
            word.strip('",') for word in (DEPLOY / name).read_text().split() if word.strip('",[').startswith("--")
        }
        ours = {"--proxy", "--hostname", "--token-file", "--access-log", "--model", "--host", "--port"} & options
        assert ours and all(option in help_text for option in ours)


@needs("nginx")
@needs("openssl")
def test_nginx_in_front(made, tmp_path):
    """TLS ends at nginx; tokens, names and limits are the server's; it knows who the clients are."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=photos.example", "-addext", "subjectAltName=DNS:photos.example", "-keyout", tmp_path / "key.pem",
         "-out", tmp_path / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    log = tmp_path / "log"
    options = ["--proxy", "127.0.0.1", "--hostname", "photos.example", "--token", TOKEN, "--access-log", log]
    with running(made.index, "--model", made.exported, *options) as started, _nginx(tmp_path, started.port) as port:
        trust = ssl.create_default_context(cafile=tmp_path / "cert.pem")

        def ask(body=None, path="/v1/search", **headers):
            given = {"Host": "photos.example", "Connection": "close", **headers}
            if body is not None:
                given |= {"Content-Type": "application/json", "Content-Length": len(body)}
            lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
            plain = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=("127.0.0.2", 0))
            with trust.wrap_socket(plain, server_hostname="photos.example") as connection:
                connection.sendall(f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\n{lines}\r\n".encode())
                connection.sendall(body or b"")
                answer = b"".join(iter(lambda: connection.recv(65_536), b""))
            head, _, content = answer.partition(b"\r\n\r\n")
            return int(head.split()[1]), content

        body, known = json.dumps({"id": 3}).encode(), {"Authorization": f"Bearer {TOKEN}"}
        status, content = ask(body, **known, **{"X-Forwarded-For": "203.0.113.9"})
        assert status == 200 and json.loads(content)["query"]["id"] == 3
        assert ask(body)[0] == 401
        assert ask(path="/healthz")[0] == 200
        assert ask(body, **known, Origin="https://evil.example")[0] == 403
        assert ask(body, **known, Origin="https://photos.example")[0] == 200
        direct = urllib.request.Request(f"{started.address}/v1/info", headers={**known, "Host": "other.example"})
        with pytest.raises(urllib.error.HTTPError, match="421") as caught:
            urllib.request.urlopen(direct, timeout=60)
        caught.value.close()
        assert started.stop() == 0
    clients = [json.loads(line)["client"] for line in log.read_text().splitlines()]
    assert clients == ["127.0.0.2"] * 5 + ["127.0.0.1"]  # as nginx saw them, not as they said


@contextlib.contextmanager
def _nginx(folder, upstream):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = (DEPLOY / "nginx.conf").read_text()
    for ours, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("127.0.0.1:8000", f"127.0.0.1:{upstream}"),
        ("/etc/nginx/tls", str(folder)),
    ):
        assert ours in text
        text = text.replace(ours, here)
    kept = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    conf = folder / "nginx.conf"
    conf.write_text(
        f"pid {folder}/pid;\nerror_log {folder}/error.log;\ndaemon off;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{kept}{text}}}\n"
    )
    process = subprocess.Popen(["nginx", "-p", folder, "-c", conf], stderr=subprocess.PIPE)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()
