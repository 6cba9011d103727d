"""What `from hashlens import ...` gives: everything, typed, and nothing before it is used."""

import subprocess
import sys
from pathlib import Path

import pytest

import hashlens
from hashlens.hashers.methods import METHODS

ROOT = Path(__file__).parent.parent


def test_every_name_is_there():
    names = set(dir(hashlens))
    assert {method.path.partition(":")[2] for method in METHODS.values()} <= names
    for name in names:
        assert getattr(hashlens, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'DTHS'"):
        _ = hashlens.DTHS


@pytest.mark.parametrize(
    "use", ["import hashlens; hashlens.METHODS; dir(hashlens)", "import sys; sys.argv = ['hashlens', 'methods']"]
)
def test_nothing_heavy_is_imported_before_it_is_used(use):
    run = "; import contextlib\nfrom hashlens.cli import main\nwith contextlib.suppress(SystemExit): main()\n"
    check = "\nimport sys; assert not {'torch', 'numba', 'sklearn', 'scipy', 'pandas'} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-c", use + (run if "argv" in use else "") + check], check=True, capture_output=True
    )


def test_a_type_checker_sees_wrong_settings(tmp_path):
    right = "from hashlens import DTSH, ITQ, Training\nITQ(12, n_iterations=3)\nDTSH(training=Training(epochs=3))\n"
    wrong = 'DTSH(bits=48)\nITQ(12, 3)\nITQ(n_bits="12")\nDTSH().fit\nDTSH().fti\n'
    (tmp_path / "snippet.py").write_text(right + wrong, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", tmp_path / "snippet.py"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    lines = [line.partition("snippet.py:")[2].split(":")[0] for line in said.splitlines() if ": error:" in line]
    assert lines == ["4", "5", "6", "8"], said
    assert 'Unexpected keyword argument "bits" for "DTSH"; did you mean "n_bits"?' in said
