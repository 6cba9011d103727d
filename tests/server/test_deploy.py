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

import kubernetes_validate
import pytest
import yaml
from running import running

DEPLOY = Path(__file__).parents[2] / "deploy"
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent))
TOKEN, WRITE = "read-" + "r" * 20, "write-" + "w" * 20


def needs(program, found=None):
    return pytest.mark.skipif(not (found or shutil.which(program)), reason=f"{program} is not installed")


@needs("hadolint", HADOLINT)
def test_the_dockerfile_passes_its_linter():
    found = subprocess.run([HADOLINT, DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "")


@needs("systemd-analyze")
def test_the_unit_is_valid_and_closed(tmp_path):
    template, unit = tmp_path / "hashlens@.service", tmp_path / "hashlens@8001.service"
    text = (DEPLOY / "hashlens@.service").read_text()
    template.write_text(text.replace("/opt/hashlens/bin/hashlens", "/bin/true"))  # which exists here
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert verified.returncode == 0 and verified.stderr == ""
    security = ["systemd-analyze", "security", "--offline=yes", "--threshold=15", "--no-pager", template]
    found = subprocess.run(security, capture_output=True, text=True)  # exposure of at most 1.5 of 10
    assert found.returncode == 0, found.stdout[-200:]


def test_the_options_of_deploy_exist(hashlens):
    help_text = hashlens("serve", "--help")[1]
    for name in ("Dockerfile", "hashlens@.service", "kubernetes.yaml"):
        words = (DEPLOY / name).read_text().split()
        options = {word.strip('",').partition("=")[0] for word in words if word.strip('",[').startswith("--")}
        ours = {
            "--proxy",
            "--hostname",
            "--token-file",
            "--access-log",
            "--model",
            "--host",
            "--port",
            "--engine",
        } & options
        assert ours and all(option in help_text for option in ours)


def test_the_manifest_is_one_of_kubernetes():
    manifests = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    assert [one["kind"] for one in manifests] == ["Deployment", "Service", "PodDisruptionBudget"]
    for manifest in manifests:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    manifests[0]["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifests[0], kubernetes_validate.latest_version(), strict=True)


@needs("nginx")
@needs("openssl")
def test_nginx_in_front(made, tmp_path):
    """TLS ends at nginx; tokens, names and limits are the server's; it knows who the clients are."""
    log = tmp_path / "log"
    options = ["--proxy", "127.0.0.1", "--hostname", "photos.example", "--token", TOKEN, "--access-log", log]
    with running(made.index, "--model", made.exported, *options) as started, _nginx(tmp_path, started.port) as ask:
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
def nginx_before(folder, *ports):
    """A function that asks replicas through nginx: status and answer."""
    with _nginx(folder, *ports) as ask:

        def client(path, body=None):
            content = None if body is None else json.dumps(body).encode()
            status, answer = ask(content, path, Authorization=f"Bearer {WRITE}")
            return status, json.loads(answer or b"null")

        yield client


@contextlib.contextmanager
def _nginx(folder, *upstreams):
    """nginx with our configuration before these ports: a function that asks it."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=photos.example", "-addext", "subjectAltName=DNS:photos.example", "-keyout", folder / "key.pem",
         "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = (DEPLOY / "nginx.conf").read_text()
    one = "    server 127.0.0.1:8000 max_fails=1 fail_timeout=5s;"
    for ours, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        (one, "\n".join(one.replace("8000", str(port)) for port in upstreams)),
        ("rate=20r/s", "rate=200r/s"),
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
    trust = ssl.create_default_context(cafile=folder / "cert.pem")

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

    process = subprocess.Popen(["nginx", "-p", folder, "-c", conf], stderr=subprocess.PIPE)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        yield ask
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()
