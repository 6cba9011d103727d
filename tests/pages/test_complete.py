"""Nothing is undocumented: commands, options, settings, metrics, public names, HTTP and environment variables."""

import inspect
import re
from pathlib import Path

import pytest

import hashlens
from docs import pages
from hashlens import losses
from hashlens.hashers.methods import METHODS, hasher_class
from hashlens.index import ENGINES
from hashlens.results.metrics import METRICS
from hashlens.settings import describe

ROOT = Path(__file__).parent.parent.parent


def test_every_command_and_option_is_explained():
    page = pages.cli_page()
    for path, command in pages.commands():
        assert f"## {path}\n" in page
        assert command.help, path
        if hasattr(command, "commands"):
            continue
        section = page.partition(f"## {path}\n")[2].partition("\n## ")[0]
        for one in command.params:
            assert one.help, f"{path} {one.name}"
            for name in one.opts if one.param_type_name == "option" else [one.name.upper()]:
                assert f"`{name}`" in section, f"{path} {name}"


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_its_page(name):
    cls, page = hasher_class(name), pages.method_page(name)
    about = inspect.getdoc(cls)
    assert re.search(r"(19|20)\d\d", about), "its citation"
    assert "ifferences from" in about, "what differs from the paper"
    for setting in describe(cls):
        assert setting.help, f"{name} {setting.name}"
        assert f"| `{setting.name}` |" in page


def test_every_engine_setting_is_explained():
    page = pages.names_page()
    for name in ENGINES:
        assert f"### {name}\n" in page


def test_every_metric_is_explained():
    page = pages.metrics_page()
    for metric in METRICS:
        assert metric.help and f"| `{metric.key}" in page


def test_every_public_name_is_explained():
    page = pages.api_page()
    methods = {hasher_class(name).__name__ for name in METHODS}
    for name in set(dir(hashlens)) - {"__version__", "losses"}:
        obj = getattr(hashlens, name)
        if callable(obj):
            assert (inspect.getdoc(obj) or "").strip(), name
        assert name in methods or f"hashlens.{name}" in page, name
    for name in vars(losses):
        if name.endswith("Loss"):
            assert f"hashlens.losses.{name}" in page and inspect.getdoc(getattr(losses, name)), name


def test_every_request_is_explained():
    page = pages.http_page()
    assert page.count("\n## ") >= 10
    for path, methods in pages.openapi()["paths"].items():
        for method, facts in methods.items():
            assert facts.get("summary"), path
            assert f"{method.upper()} {path}" in page.replace("\\", "")


def test_every_variable_is_explained():
    read = {name for path in (ROOT / "src").rglob("*.py") for name in re.findall(r"HASHLENS_[A-Z_]+[A-Z]", text(path))}
    assert read == set(pages.VARIABLES)


def test_every_quoted_message_is_one_of_ours():
    """The messages of the troubleshooting page, in bold and code, up to the parts that vary."""
    source = " ".join("".join(re.split(r'"\s*\n\s*f?"', text(path))) for path in (ROOT / "src").rglob("*.py"))
    for message in re.findall(r"^\*\*`(.+?)`", text(ROOT / "docs" / "troubleshooting.md"), re.MULTILINE):
        for piece in re.split(r"…|'\w+'|\(did you mean.*|pip install .*|cifar10-1|torch|pillow_heif", message):
            assert piece.strip(' ";') in source, piece


def test_every_example_is_on_the_page():
    page = pages.examples_page()
    assert len(pages.example_scripts()) >= 8
    for path in pages.example_scripts():
        assert f"<summary>{path.name}</summary>" in page


def text(path):
    return path.read_text(encoding="utf-8")
