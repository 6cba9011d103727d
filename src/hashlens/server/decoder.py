"""One decoding process: images on standard input, their pixels on standard output; started by `decoders.py`.

It reads only its input, writes no files, and has its own limits: CPU time per image, memory, and a low priority, so
that searches stay fast. A message is a line of JSON, with the number `n` of bytes that follow.
"""

import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

if __name__ == "__main__" and sys.platform != "win32":  # before the imports, which take longer than most images
    os.nice(5)  # of 19: on a shared core, a third of a search's time

from PIL import Image

from hashlens.data.images import decode, reason, shrunk
from hashlens.data.resize import crop

BYTES_PER_PIXEL = 24  # peak use: coefficients or planes of the decoder, RGBA, its copy on white, RGB
MEMORY = 2**28  # bytes in addition to those


def pixels(content: bytes, size: int, max_pixels: int) -> tuple[bytes, tuple[int, int]]:
    """Pixels for a network with images of `size`, exactly as from `Images.read`."""
    image, stored = decode(io.BytesIO(content), max_pixels=max_pixels)
    return crop(image, size).tobytes(), stored


def thumbnail(content: bytes, size: int, max_pixels: int) -> tuple[bytes, tuple[int, int]]:
    image, stored = decode(io.BytesIO(content), at_least=size, max_pixels=max_pixels)
    file = io.BytesIO()
    shrunk(image, size).save(file, "JPEG", quality=80)
    return file.getvalue(), stored


TASKS: dict[str, Callable[[bytes, int, int], tuple[bytes, tuple[int, int]]]] = {
    "pixels": pixels,
    "thumbnail": thumbnail,
}


def main(max_pixels: int, seconds: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the server
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    for task in TASKS.values():  # load all code before memory is limited
        task(_blank(), 8, max_pixels)
    _limit_memory(MEMORY + BYTES_PER_PIXEL * max_pixels)
    _write(answers, b"", ready=True)
    while line := requests.readline():
        asked = json.loads(line)
        content = requests.read(asked["n"])
        _limit_cpu(seconds)
        start = time.perf_counter()
        try:
            result, (width, height) = TASKS[asked["task"]](content, asked["size"], max_pixels)
        except Exception as error:  # Pillow raises nearly anything on a damaged file
            _write(answers, b"", reason=reason(io.BytesIO(content), error))
        else:
            _write(answers, result, width=width, height=height, seconds=time.perf_counter() - start)


def _write(file: BinaryIO, content: bytes, **facts: Any) -> None:
    file.write(json.dumps({"n": len(content), **facts}).encode() + b"\n" + content)
    file.flush()


def _blank() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    return file.getvalue()


if sys.platform == "win32":  # Windows has no such limits; the server still kills slow decoders

    def _limit_memory(n_bytes: int) -> None: ...

    def _limit_cpu(seconds: float) -> None: ...

else:
    import resource

    def _limit_memory(n_bytes: int) -> None:
        with suppress(OSError, ValueError):  # the limit is already lower
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + n_bytes, used + n_bytes))
        for limit, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
            resource.setrlimit(limit, (most, most))

    def _limit_cpu(seconds: float) -> None:
        """Limit CPU time from now on; the system ends the process with SIGXCPU."""
        spent = time.process_time()
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        wanted = int(spent + seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard < 0 else min(wanted, hard), hard))


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):  # the server has ended
        main(int(sys.argv[1]), float(sys.argv[2]))
