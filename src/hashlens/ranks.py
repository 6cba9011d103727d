"""Ranks: the processes that torchrun starts to train one model together. A process alone is the only rank.

All ranks call the same functions in the same order; each does its part of the work and gets the whole result. Only rank
0 writes and prints. A rank that ends, or does not answer for TIMEOUT seconds, ends all others with one sentence.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hashlens.errors import HashlensError, MismatchError, RankError, UsageError, require

if TYPE_CHECKING:  # not imported at run time, so that `hashlens --help` is quick
    import numpy as np
    from torch import Tensor

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun
START = "torchrun --nproc-per-node=2 -m hashlens train …"
TIMEOUT = "HASHLENS_RANK_TIMEOUT"  # in seconds; 600 if not set
POLITE = 3.0  # seconds for rank 0 to report an error of all ranks first
LOST = (  # for ranks that could not report anything themselves
    "another rank was ended or does not answer, so all ranks end; what was saved after the last epoch is kept: start"
    " all ranks again, with --resume and the run's folder"
)

_times = count()  # counts how often this process has joined others

Part = TypeVar("Part")


class Ranks:
    """This process as one of `size`. Alone, it sends nothing, and every method returns its input."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and prints."""
        return self.rank == 0

    def cuts(self, n: int) -> list[int]:
        """The bounds that divide n rows into one part per rank."""
        return [n * i // self.size for i in range(self.size + 1)]

    def part(self, n: int) -> slice:
        """This rank's rows of n."""
        return slice(*self.cuts(n)[self.rank : self.rank + 2])

    def turns(self, parts: Sequence[Part]) -> Sequence[Part]:
        """This rank's share of `parts`, dealt one by one."""
        return parts[self.rank :: self.size]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return self.each_any(flag)[0]

    def each_any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether it is set on any rank."""
        if self.size == 1:
            return flags
        import torch.distributed as dist

        said = self._tensor([int(flag) for flag in flags])
        with reachable():
            dist.all_reduce(said, dist.ReduceOp.MAX)
        return tuple(map(bool, said.tolist()))

    def wait(self) -> None:
        """Wait until all ranks are here."""
        self.any(False)

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        """The result of `make` on rank 0; only rank 0 calls it."""
        data = make() if self.first else b""
        if self.size == 1:
            return data
        import torch.distributed as dist

        length = self._tensor([len(data)])
        with reachable():
            dist.broadcast(length, 0)
            content = self._bytes(data, int(length))
            dist.broadcast(content, 0)
        return content.cpu().numpy().tobytes()

    def gathered(self, array: np.ndarray | None) -> np.ndarray:
        """The rows of all ranks, in order of ranks; a rank without any passes None."""
        if self.size == 1:
            assert array is not None
            return array
        import numpy as np

        content = b""
        if array is not None:
            content = json.dumps([array.dtype.str, array.shape]).encode() + b"\n" + array.tobytes()
        found = []
        for one in filter(len, self._exchanged(content)):
            header = one[:200].tobytes().partition(b"\n")[0]
            dtype, shape = json.loads(header)
            found.append(np.frombuffer(one, dtype, offset=len(header) + 1).reshape(shape))
        return np.concatenate(found)

    def require_same(self, **facts: Any) -> None:
        """Refuse ranks whose facts differ from those of rank 0."""
        if self.size == 1:
            return
        first, *others = (json.loads(one.tobytes()) for one in self._exchanged(json.dumps(facts).encode()))
        for rank, other in enumerate(others, start=1):
            for name in sorted(first.keys() | other.keys()):
                if (here := first.get(name)) != (there := other.get(name)):
                    raise MismatchError(
                        f"rank {rank} does not have the same {name} as rank 0 ({_short(there)}, not {_short(here)});"
                        " start all ranks with the same command on the same files (copied with their times, as rsync -a"
                        " does)"
                    )

    def first_with(self, mark: str) -> bool:
        """Whether no lower rank has the same mark."""
        if self.size == 1:
            return True
        return [one.tobytes() for one in self._exchanged(mark.encode())].index(mark.encode()) == self.rank

    def _exchanged(self, content: bytes) -> list[np.ndarray]:
        """The content from each rank, as uint8."""
        import torch
        import torch.distributed as dist

        lengths = [self._tensor([0]) for _ in range(self.size)]
        with reachable():
            dist.all_gather(lengths, self._tensor([len(content)]))
            longest = int(max(lengths))
            found = [torch.empty(longest, dtype=torch.uint8, device=lengths[0].device) for _ in lengths]
            dist.all_gather(found, self._bytes(content, longest))
        return [one[: int(n)].cpu().numpy() for one, n in zip(found, lengths, strict=True)]

    def _tensor(self, values: list[int]) -> Tensor:
        import torch
        import torch.distributed as dist

        return torch.tensor(values, device="cuda" if dist.get_backend() == "nccl" else "cpu")

    def _bytes(self, content: bytes, length: int) -> Tensor:
        import torch

        padded = bytearray(content.ljust(length, b"\0")) or bytearray(1)
        return torch.frombuffer(padded, dtype=torch.uint8)[:length].to(self._tensor([]).device)


ALONE = Ranks()


def current() -> Ranks:
    """The ranks of this process's torch.distributed group."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return ALONE
    return Ranks(dist.get_rank(), dist.get_world_size())


@contextmanager
def reachable() -> Iterator[None]:
    """Turn torch's errors about an unreachable rank into one sentence."""
    try:
        yield
    except RuntimeError as error:
        raise RankError(LOST) from error


@contextmanager
def joined() -> Iterator[Ranks]:
    """Context in which this process is one of those started by torchrun; without torchrun, nothing changes.

    A program may join several times, even when already joined. An error of one rank is reported by that rank, an error
    of all by rank 0.
    """
    environment = _environment()
    if environment is None or current().size > 1:
        yield current()
        return
    require("torch", why="torchrun")
    import torch
    import torch.distributed as dist

    # if imported later, as by optimizers, its default arguments would keep our group alive, and with it gloo's threads,
    # which abort a process that ends before them
    import torch.distributed.nn.functional

    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    # set by torchrun unless the user has
    os.environ.setdefault("HASHLENS_THREADS", os.environ.get("OMP_NUM_THREADS") or "1")
    backend = "gloo"
    if torch.cuda.is_available():
        local, gpus = int(environment["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
        if local > gpus:
            raise UsageError(
                f"there are {local} ranks but {gpus} GPUs on this machine; use --nproc-per-node={gpus}, or hide the"
                " GPUs with CUDA_VISIBLE_DEVICES="
            )
        torch.cuda.set_device(int(environment["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    timeout = timedelta(seconds=_timeout())
    try:
        # a new prefix for each join, so that old messages between ranks are not taken for new ones
        store = dist.PrefixStore(f"joined {next(_times)}", _store(rank, size, timeout))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    except RuntimeError as error:
        raise RankError(
            f"rank {rank} cannot reach the others at {environment['MASTER_ADDR']}:{environment['MASTER_PORT']}; start"
            " all of them, and on several machines set GLOO_SOCKET_IFNAME to the network interface between them"
        ) from error

    def ended(number: int, frame: Any) -> NoReturn:
        raise RankError(LOST)

    before = signal.signal(signal.SIGTERM, ended)  # torchrun ends all ranks when one has failed
    try:
        yield Ranks(rank, size)
    except (Exception, KeyboardInterrupt) as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not _speaks(store, rank):
            raise SystemExit(getattr(error, "exit_code", 1)) from error
        if rank > 0 and isinstance(error, HashlensError):
            error.message = f"rank {rank} on {socket.gethostname()}: {error.message}"
        raise
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()
        signal.signal(signal.SIGTERM, before)


@cache
def _store(rank: int, size: int, timeout: timedelta) -> Any:
    """A store that all ranks can read and write until this process ends."""
    from torch.distributed.rendezvous import rendezvous

    return next(rendezvous("env://", rank, size, timeout=timeout))[0]


def _speaks(store: Any, rank: int) -> bool:
    """Whether this rank should report what went wrong."""
    until = time.monotonic() + (POLITE if rank else 0)
    try:
        while time.monotonic() < until and not store.check(["said"]):
            time.sleep(0.05)
        return store.add("said", 1) == 1
    except RuntimeError:  # the process that hosts the store is gone
        return True


def _environment() -> dict[str, str] | None:
    """The environment set by torchrun, if it has started more than one process."""
    found = {name: os.environ[name] for name in NAMES if os.environ.get(name)}
    if not {"RANK", "WORLD_SIZE"} & found.keys() or (found.get("WORLD_SIZE") == "1" and len(found) < len(NAMES)):
        return None
    advice = f"start all ranks with {START}, or unset RANK and WORLD_SIZE to train in one process"
    if missing := [name for name in NAMES if name not in found]:
        raise UsageError(f"{min(found, key=NAMES.index)} is set but {missing[0]} is not; {advice}")
    for name in set(NAMES) - {"MASTER_ADDR"}:
        if not found[name].isdecimal():
            raise UsageError(f"{name} must be a whole number >= 0, got {found[name]!r}; {advice}")
    rank, size = int(found["RANK"]), int(found["WORLD_SIZE"])
    if rank >= size:
        raise UsageError(f"RANK must be below WORLD_SIZE, got {rank} of {size}; {advice}")
    return found if size > 1 else None


def _timeout() -> int:
    wanted = os.environ.get(TIMEOUT, "600")
    if not wanted.isdecimal() or int(wanted) < 1:
        raise UsageError(f"{TIMEOUT} must be a whole number of seconds >= 1, got {wanted!r}")
    return int(wanted)


def same_folder(folder: Path) -> str:
    """A text that is the same for all processes that see the same folder."""
    status = folder.stat()
    return f"{socket.gethostname()} {status.st_dev} {status.st_ino}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
