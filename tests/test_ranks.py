"""Several ranks train as one process does, whatever happens to one of them; the tests start real ones with torchrun."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import rank_work
import torch
from safetensors.torch import load_file

from benchmarks import ranks as ranks_benchmark
from hashlens.errors import Stopped, UsageError
from hashlens.ranks import ALONE, Ranks, joined

WORK = str(Path(rank_work.__file__))
TRAIN = ("-m", "hashlens", "train", "digits", "--bits", "12", "--second-bits", "0")
LIMIT = 300  # seconds after which a test fails instead of waiting for ever
long = pytest.mark.skipif(not os.environ.get("HASHLENS_LONG"), reason="starts many processes: make test-long")


def command(n, *arguments, how=("--standalone",)):
    return [sys.executable, "-m", "torch.distributed.run", *how, f"--nproc-per-node={n}", *map(str, arguments)]


class Started:
    """torchrun with n ranks, each of which writes to files of its own."""

    def __init__(self, n, *arguments, logs, prefix=(), how=("--standalone",), cwd=None, **environment):
        self.logs = logs
        how = (*how, "--redirects=3", f"--log-dir={logs}")
        self.process = subprocess.Popen(
            [*prefix, *command(n, *arguments, how=how)],
            env=os.environ | environment,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self):
        """The exit code, and what all ranks have written to standard output and standard error."""
        try:
            self.torchrun_says = self.process.communicate(timeout=LIMIT)[0]
        finally:
            self.process.kill()
        logs = {end: sorted(self.logs.rglob(f"std{end}.log")) for end in ("out", "err")}
        return self.process.returncode, *("".join(file.read_text() for file in files) for files in logs.values())

    def wait_for(self, path):
        until = time.monotonic() + LIMIT
        while not path.exists():
            assert self.process.poll() is None and time.monotonic() < until, self.finish()
            time.sleep(0.05)

    def rank(self, rank):
        """The process id of a rank."""
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
                return int(child)
        raise AssertionError(f"there is no rank {rank}")


def torchrun(n, *arguments, logs, **environment):
    return Started(n, *arguments, logs=logs, **environment).finish()


def assert_close(found, expected, tolerance=5e-4):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name].double(),
            value.double(),
            rtol=0,
            atol=tolerance * value.double().abs().max().item(),
            err_msg=name,
        )


# The same steps.


def test_two_ranks_take_the_steps_of_one_process(tmp_path):
    """Every deep method and every sampling, fifty steps with batches of 21; batch norms, augmentation, mixtures.

    The ranks end as any program does: rank_work.py sees at its end that no thread of gloo is left.
    """
    code, _, err = torchrun(2, WORK, "all", tmp_path / "two.safetensors", logs=tmp_path / "logs")
    assert code == 0, err
    expected, found = rank_work.fit_all(), load_file(tmp_path / "two.safetensors")
    assert len({name.partition(":")[0] for name in expected}) >= 30
    assert_close(found, expected)


@long
def test_a_run_in_one_process_is_resumed_by_two_ranks(tmp_path):
    expected, _, _ = rank_work.train_with("none", tmp_path / "whole")
    steps = iter(range(12))
    with pytest.raises(Stopped, match="epoch 2, step 1"):
        rank_work.train_with("none", tmp_path / "parts", stop=lambda: next(steps) == 11)
    code, _, err = torchrun(2, WORK, "none", tmp_path / "parts", logs=tmp_path / "logs")
    assert code == 0, err
    assert len((tmp_path / "parts" / "metrics.csv").read_text().splitlines()) == 6
    assert_close(load_file(tmp_path / "parts" / "network.safetensors"), expected.state_dict())


def test_parts_of_a_batch():
    ranks = [Ranks(rank, 3) for rank in range(3)]
    rows = np.arange(10)
    assert np.concatenate([rows[one.part(10)] for one in ranks]).tolist() == rows.tolist()
    assert sorted(len(rows[one.part(10)]) for one in ranks) == [3, 3, 4]
    assert [list(one.turns(list(rows))) for one in ranks] == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


def test_one_process_sends_nothing():
    values = np.arange(3)
    assert ALONE.gathered(values) is values and ALONE.any(True) and not ALONE.any(False)
    assert ALONE.from_first(lambda: b"mine") == b"mine" and ALONE.first_with("x") and ALONE.part(7) == slice(0, 7)


# What happens to one rank happens to all.


@long
def test_nan_on_one_rank_rolls_all_back(tmp_path):
    code, _, err = torchrun(2, WORK, "nan", tmp_path, logs=tmp_path / "logs")
    assert code == 0, err
    said = (tmp_path / "said.txt").read_text()
    assert "epoch 1, step 7: the loss is NaN or infinite; back to the start of the epoch" in said
    assert said.count("NaN") == 1 and "  5/5 " in said
    assert all(torch.isfinite(value).all() for value in load_file(tmp_path / "network.safetensors").values())


@long
def test_a_rank_that_hangs_ends_all(tmp_path):
    code, _, err = torchrun(2, WORK, "hangs", tmp_path, logs=tmp_path / "logs", HASHLENS_RANK_TIMEOUT="5")
    assert code != 0
    assert err.count("RankError: another rank was ended or does not answer") == 1


def test_a_killed_rank_ends_all_and_one_process_resumes(tmp_path, hashlens):
    out = tmp_path / "run"
    started = Started(2, *TRAIN, "--epochs", "15", "--out", out, logs=tmp_path / "logs")
    started.wait_for(out / "checkpoint.safetensors")
    os.kill(started.rank(1), signal.SIGKILL)
    code, stdout, stderr = started.finish()
    assert code != 0 and stdout == ""
    assert stderr.count("error: ") == 1 and "error: another rank was ended or does not answer" in stderr
    assert "Traceback" not in stderr
    code, text, _ = hashlens("train", "--resume", out, "--json")
    assert code == 0 and json.loads(text)["epochs"] == 15


@long
def test_ctrl_c_saves_and_one_process_resumes(tmp_path, hashlens):
    out = tmp_path / "run"
    started = Started(2, *TRAIN, "--epochs", "6", "--out", out, logs=tmp_path / "logs")
    started.wait_for(out / "checkpoint.safetensors")
    started.process.send_signal(signal.SIGINT)
    code, stdout, stderr = started.finish()
    assert code != 0 and stdout == ""
    assert stderr.count("stopped and saved at epoch") == 1 and "Traceback" not in stderr
    assert stderr.count("finishing the step") == 1
    code, text, _ = hashlens("train", "--resume", out, "--json")
    result = json.loads(text)
    assert code == 0 and result["epochs"] == 6 and "ranks" not in result["machine"]


# Several machines.


@pytest.fixture
def two_hosts():
    try:
        with ranks_benchmark.two_hosts() as hosts:
            yield hosts
    except PermissionError as error:
        pytest.skip(str(error))


@long
def test_two_ranks_on_two_hosts(two_hosts, tmp_path):
    """Each with its own cache and working folder: one run folder, on the host of rank 0."""
    started = []
    for number, (prefix, interface, _) in enumerate(two_hosts):
        folder = tmp_path / str(number)
        folder.mkdir()
        how = ("--nnodes=2", f"--node-rank={number}", f"--master-addr={two_hosts[0][2]}", "--master-port=29531")
        own = {"GLOO_SOCKET_IFNAME": interface, "HASHLENS_CACHE": str(folder / "cache")}
        own["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # torch wonders about addresses without a name
        arguments = (*TRAIN, "--epochs", "2", "--out", "run", "--json")
        started.append(Started(1, *arguments, logs=folder / "logs", prefix=prefix, how=how, cwd=folder, **own))
    (code, out, err), (other_code, *other_said) = (one.finish() for one in started)
    assert (code, other_code) == (0, 0), (err, other_said)
    result = json.loads(out)
    assert result["machine"]["ranks"] == 2 and result["map"] > 0.9
    assert other_said == ["", ""] and not (tmp_path / "1" / "run").exists()
    assert (tmp_path / "0" / "run" / "result.json").exists()


# Wrong input.


@long
def test_ranks_with_other_data(tmp_path):
    code, _, err = torchrun(2, WORK, "unequal", tmp_path, logs=tmp_path / "logs")
    assert code != 0
    assert err.count("MismatchError: rank 1 does not have the same data as rank 0") == 1


@long
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--set", "batch_size=2"), "a batch of 2 images cannot be shared by 3 ranks; use fewer ranks"),
        (("--method", "itq"), "itq is not trained in steps that ranks can share; run it without torchrun"),
    ],
)
def test_what_ranks_cannot_do(arguments, sentence, tmp_path):
    code, out, err = torchrun(3, *TRAIN, *arguments, "--quiet", "--out", tmp_path / "run", logs=tmp_path / "logs")
    assert code != 0 and out == ""
    assert err.startswith("error: ") and sentence in err and err.count("\n") == 1


WHOLE = {name: "1" for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")} | {
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"RANK": ""}, "LOCAL_RANK is set but RANK is not"),
        ({"MASTER_ADDR": ""}, "RANK is set but MASTER_ADDR is not"),
        ({"WORLD_SIZE": ""}, "RANK is set but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a whole number >= 0, got 'two'"),
        ({"RANK": "2"}, "RANK must be below WORLD_SIZE, got 2 of 2"),
        ({"HASHLENS_RANK_TIMEOUT": "soon"}, "HASHLENS_RANK_TIMEOUT must be a whole number of seconds >= 1, got 'soon'"),
    ],
)
def test_half_an_environment(changes, sentence, monkeypatch, hashlens, tmp_path):
    for name, value in (WHOLE | changes).items():
        monkeypatch.setenv(name, value)
    code, out, err = hashlens("train", "digits", "--out", tmp_path / "run")
    assert (code, out) == (2, "") and err.startswith(f"error: {sentence}")
    assert err.count("\n") == 1 and not (tmp_path / "run").exists()


def test_ranks_that_do_not_come(monkeypatch, hashlens, tmp_path):
    for name, value in (WHOLE | {"MASTER_PORT": "9", "HASHLENS_RANK_TIMEOUT": "1"}).items():
        monkeypatch.setenv(name, value)
    code, _, err = hashlens("train", "digits", "--out", tmp_path / "run")
    assert code == 8 and "error: rank 1 cannot reach the others at localhost:9" in err


def test_a_world_of_one_is_one_process(monkeypatch):
    for name, value in (WHOLE | {"WORLD_SIZE": "1", "RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    with joined() as ranks:
        assert ranks is ALONE
    monkeypatch.delenv("MASTER_ADDR")
    with joined() as ranks:
        assert ranks is ALONE
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError), joined():
        pass
