"""Build: core.c in, a shared library beside it out: python -m hashlens.kernels.build

Run when the package is built, or by hand if a compiler was installed later. It needs only Python and a C compiler (gcc
or clang). The name of the library contains a hash of its source, so that an old one is never used.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = ("core.c", "loops.h")
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-math-errno")


def library() -> Path:
    """The path of the library for these sources, built or not."""
    check = 0
    for name in SOURCES:
        check = zlib.crc32((FOLDER / name).read_bytes(), check)
    return FOLDER / f"core-{check:08x}{'.dll' if sys.platform == 'win32' else '.so'}"


def compile_core() -> Path:
    """Compile, and delete older libraries; raises OSError if that is not possible."""
    import shlex  # not above, because searches only need `library`
    import subprocess
    import sysconfig
    import tempfile

    made = library()
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    command = [part for part in command if part != "-pthread"]
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:  # in one step: another process may use the old one
        temporary = Path(folder) / made.name
        for compiler in (command, ["cc"], ["gcc"], ["clang"]):
            try:
                done = subprocess.run(
                    [*compiler, *FLAGS, str(FOLDER / SOURCES[0]), "-o", str(temporary)], capture_output=True, text=True
                )
            except FileNotFoundError:
                continue
            if done.returncode:
                raise OSError(f"{compiler[0]} could not compile {SOURCES[0]}: {done.stderr.strip()[-500:]}")
            break
        else:
            raise FileNotFoundError("no C compiler was found; install gcc or clang")
        clear()
        temporary.replace(made)
    return made


def clear() -> None:
    """Delete libraries compiled before."""
    for old in FOLDER.glob("core-*"):
        if old.suffix in (".so", ".dll"):
            old.unlink()


if __name__ == "__main__":
    try:
        print(f"compiled {compile_core()}")
    except OSError as error:
        sys.exit(f"error: {error}")
