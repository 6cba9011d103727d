"""Progress of long work on standard error: a live bar in a terminal or notebook, elsewhere a line every few seconds."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hashlens.errors import UsageError

PLAIN_SECONDS = 10  # between two lines


class Progress:
    """`say` prints a line, `bar` counts up to a total; `quiet=True` turns both off."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet

    @classmethod
    def of(cls, progress: Progress | bool | None) -> Progress:
        """What `fit(..., progress=True)` means: True shows progress, False and None do not."""
        return progress if isinstance(progress, Progress) else cls(quiet=not progress)

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a bar; yields `advance(n)`."""
        if self.quiet:
            yield lambda n: None
        elif sys.stderr.isatty() or _in_notebook():
            with _live_bar(what, total) as advance:
                yield advance
        else:
            yield self._plain_bar(what, total)

    def _plain_bar(self, what: str, total: int) -> Callable[[int], None]:
        start = last = time.monotonic()
        done = 0

        def advance(n: int) -> None:
            nonlocal done, last
            done += n
            now = time.monotonic()
            if done >= total or now - last >= PLAIN_SECONDS:
                last = now
                rate = done / max(now - start, 1e-9)
                left = f", {duration((total - done) / rate)} left" if 0 < done < total else ""
                self.say(f"{what}  {done:,}/{total:,}  {rate:,.0f}/s{left}")

        return advance


@contextmanager
def _live_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console() if _in_notebook() else Console(stderr=True)
    with RichProgress(*columns, console=console) as live:
        task = live.add_task(what, total=total)
        yield lambda n: live.advance(task, n)


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules


def duration(seconds: float) -> str:
    """Seconds as text, such as 42 s, 3 min 5 s, 2 h 7 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def seconds_of(text: str) -> float:
    """Parse the output of `duration`, or shorter forms: 90, 90s, 10m, 1h30m.

    >>> seconds_of("10m"), seconds_of("1h 30min"), seconds_of("90")
    (600.0, 5400.0, 90.0)
    """
    number = r"(\d+(?:\.\d+)?)\s*"
    parts = re.fullmatch(rf"(?:{number}h)?\s*(?:{number}m(?:in)?)?\s*(?:{number}s?)?", text.strip())
    units = zip(parts.groups("0"), (3600, 60, 1), strict=True) if parts else ()
    found = sum((float(n) * unit for n, unit in units), 0.0)
    if found <= 0:
        raise UsageError(f"write a time like 90s, 10m or 1h30m, got '{text}'")
    return found


def counted(n: int, word: str) -> str:
    """
    >>> counted(1, "image"), counted(2000, "query"), counted(0, "class")
    ('1 image', '2,000 queries', '0 classes')
    """
    plural = f"{word[:-1]}ies" if word.endswith("y") else f"{word}{'es' if word.endswith('s') else 's'}"
    return f"{n:,} {word if n == 1 else plural}"
