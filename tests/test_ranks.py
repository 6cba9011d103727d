"""Several ranks train as one process does, whatever happens to one of them; the tests start real ones with torchrun."""

import json
import os
import re
import shutil
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

from hashlens.errors import Stopped, UsageError
from hashlens.ranks import ALONE, Ranks, joined

WORK = str(Path(rank_work.__file__))
TRAIN = ("-m", "hashlens", "train", "digits", "--bits", "12", "--second-bits", "0")
LIMIT = 300  # seconds after which a test fails instead of waiting for ever


def command(n, *arguments, how=("--standalone",)):
    return [sys.executable, "-m", "torch.distributed.run", *how, f"--nproc-per-node={n}", *map(str, arguments)]


def torchrun(n, *arguments, **environment):
    """The finished process; what torchrun itself logs and reports is left out of its stderr."""
    done = subprocess.run(
        command(n, *arguments), env=os.environ | environment, capture_output=True, text=True, timeout=LIMIT
    )
    done.stderr = without_log(done.stderr)
    return done


def without_log(text):
    """What ranks have written."""
    text = re.split(r"^Traceback \(most recent call last\):\n  File .*torch", text, maxsplit=1, flags=re.M)[0]
    return "".join(line for line in text.splitlines(keepends=True) if not re.match(r"[WEI]\d{4} ", line))


def start(*arguments, **environment):
    return subprocess.Popen(
        command(2, *arguments), env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def rank_of(process, rank):
    """The process id of a rank that torchrun has started."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
            return int(child)
    raise AssertionError(f"there is no rank {rank}")


def wait_for(path, process):
    until = time.monotonic() + LIMIT
    while not path.exists():
        assert process.poll() is None and time.monotonic() < until, process.communicate(timeout=LIMIT)
        time.sleep(0.05)


def finish(process):
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, without_log(err)


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
    """Every deep method and every sampling, fifty steps with batches of 21; batch norms, augmentation, mixtures."""
    done = torchrun(2, WORK, "all", tmp_path / "two.safetensors")
    assert done.returncode == 0, done.stderr
    expected, found = rank_work.fit_all(), load_file(tmp_path / "two.safetensors")
    assert len({name.partition(":")[0] for name in expected}) >= 30
    assert_close(found, expected)


def test_a_run_in_one_process_is_resumed_by_two_ranks(tmp_path):
    expected, _, _ = rank_work.train_with("none", tmp_path / "whole")
    steps = iter(range(12))
    with pytest.raises(Stopped, match="epoch 2, step 1"):
        rank_work.train_with("none", tmp_path / "parts", stop=lambda: next(steps) == 11)
    done = torchrun(2, WORK, "none", tmp_path / "parts")
    assert done.returncode == 0, done.stderr
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


def test_nan_on_one_rank_rolls_all_back(tmp_path):
    done = torchrun(2, WORK, "nan", tmp_path)
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "said.txt").read_text()
    assert "epoch 1, step 7: the loss is NaN or infinite; back to the start of the epoch" in said
    assert said.count("NaN") == 1 and "  5/5 " in said
    assert all(torch.isfinite(value).all() for value in load_file(tmp_path / "network.safetensors").values())


def test_a_rank_that_hangs_ends_all(tmp_path):
    done = torchrun(2, WORK, "hangs", tmp_path, HASHLENS_RANK_TIMEOUT="5")
    assert done.returncode != 0
    assert done.stderr.count("RankError: another rank was ended or does not answer") == 1


def test_a_killed_rank_ends_all_and_one_process_resumes(tmp_path, hashlens):
    out = tmp_path / "run"
    process = start(*TRAIN, "--epochs", "15", "--out", out)
    wait_for(out / "checkpoint.safetensors", process)
    os.kill(rank_of(process, 1), signal.SIGKILL)
    code, stdout, stderr = finish(process)
    assert code != 0 and stdout == ""
    assert stderr.count("error: ") == 1 and "error: another rank was ended or does not answer" in stderr
    assert "Traceback" not in stderr
    code, text, _ = hashlens("train", "--resume", out, "--json")
    assert code == 0 and json.loads(text)["epochs"] == 15


def test_ctrl_c_saves_and_one_process_resumes(tmp_path, hashlens):
    out = tmp_path / "run"
    process = start(*TRAIN, "--epochs", "6", "--out", out)
    wait_for(out / "checkpoint.safetensors", process)
    process.send_signal(signal.SIGINT)
    code, stdout, stderr = finish(process)
    assert code != 0 and stdout == ""
    assert stderr.count("stopped and saved at epoch") == 1 and "Traceback" not in stderr
    assert stderr.count("finishing the step") == 1
    code, text, _ = hashlens("train", "--resume", out, "--json")
    result = json.loads(text)
    assert code == 0 and result["epochs"] == 6 and "ranks" not in result["machine"]


# Several machines.


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


@pytest.fixture
def two_hosts():
    """Two network namespaces with a cable between them: [(what comes before a command, its interface, its address)]."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command to make network namespaces with")
    names = [f"hl{os.getpid()}{side}" for side in "ab"]
    made = [ip("netns", "add", name) for name in names]
    try:
        if any(one.returncode for one in made):
            pytest.skip(f"network namespaces are not allowed here: {made[0].stderr.strip()}")
        assert ip("link", "add", names[0], "type", "veth", "peer", "name", names[1]).returncode == 0
        hosts = []
        for number, name in enumerate(names, start=1):
            address = f"10.231.77.{number}"
            ip("link", "set", name, "netns", name)
            for order in (["addr", "add", f"{address}/24", "dev", name], ["link", "set", name, "up"]):
                assert ip("-n", name, *order).returncode == 0
            ip("-n", name, "link", "set", "lo", "up")
            hosts.append((["ip", "netns", "exec", name], name, address))
        yield hosts
    finally:
        for name in names:
            ip("netns", "del", name)


def test_two_ranks_on_two_hosts(two_hosts, tmp_path):
    """Each with its own cache and working folder: one run folder, on the host of rank 0."""
    started = []
    for (prefix, interface, address), name in zip(two_hosts, ("a", "b"), strict=True):
        (tmp_path / name).mkdir()
        how = (
            "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={two_hosts[0][2]}:29531", "--rdzv-id=hashlens",
            f"--local-addr={address}",
        )  # fmt: skip
        started.append(
            subprocess.Popen(
                [*prefix, *command(1, *TRAIN, "--epochs", "2", "--out", "run", "--json", how=how)],
                cwd=tmp_path / name,
                env=os.environ | {"GLOO_SOCKET_IFNAME": interface, "HASHLENS_CACHE": str(tmp_path / name / "cache")},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ended = [finish(process) for process in started]
    assert [code for code, _, _ in ended] == [0, 0], ended
    (text,) = [out for _, out, _ in ended if out]
    assert json.loads(text)["machine"]["ranks"] == 2 and json.loads(text)["map"] > 0.9
    assert sorted((tmp_path / name / "run" / "result.json").exists() for name in "ab") == [False, True]
    assert sorted((tmp_path / name / "run").exists() for name in "ab") == [False, True]


# Wrong input.


def test_ranks_with_other_data(tmp_path):
    done = torchrun(2, WORK, "unequal", tmp_path)
    assert done.returncode != 0
    assert done.stderr.count("MismatchError: rank 1 does not have the same data as rank 0") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--set", "batch_size=2"), "a batch of 2 images cannot be shared by 3 ranks; use fewer ranks"),
        (("--method", "itq"), "itq is not trained in steps that ranks could share; run it without torchrun"),
    ],
)
def test_what_ranks_cannot_do(arguments, sentence, tmp_path):
    done = torchrun(3, *TRAIN, *arguments, "--quiet", "--out", tmp_path / "run")
    assert done.returncode != 0 and done.stdout == ""
    assert done.stderr.count("error: ") == 1 and f"error: {sentence}" in done.stderr


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
