"""The scripts in examples/ run as they are; those that take longer than seconds with make docs-test."""

import os
import subprocess
import sys

import pytest

from docs.pages import example_scripts

QUICK = ("find_duplicates", "search_service_client")
NOT_HERE = ("table1_on_gist",)  # reads all of CIFAR-10; benchmarks/comparisons.py computes the same table


@pytest.mark.parametrize("script", example_scripts(), ids=lambda path: path.stem)
def test_example(script, tmp_path, monkeypatch):
    if script.stem not in QUICK and not os.environ.get("HASHLENS_LONG"):
        pytest.skip("make docs-test runs it")
    if script.stem in NOT_HERE and os.environ.get("HASHLENS_LONG") != "all":
        pytest.skip("HASHLENS_LONG=all runs it")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


@pytest.mark.parametrize("script", example_scripts(), ids=lambda path: path.stem)
def test_example_is_short_and_says_what_it_does(script):
    text = script.read_text(encoding="utf-8")
    compile(text, script.name, "exec")
    assert text.startswith('"""') and text.count("\n") <= 70
