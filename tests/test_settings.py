"""Settings: every method's are declared with a meaning and a range, and wrong ones are refused before anything else."""

import json
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from hashlens import DTSH, METHODS, Training
from hashlens.errors import UsageError
from hashlens.hashers.methods import hasher_class
from hashlens.settings import apply, check, describe, did_you_mean, from_json, parse, parse_for, setting, to_json

WRONG = {  # values just outside the range of each setting that has one
    "agh": {"layers": [0, 3], "n_anchors": [1], "n_nearest": [0]},
    "bre": {"n_sample": [1], "n_anchors": [0], "n_sweeps": [-1]},
    "ccaitq": {"rho": [0, 1e-12, math.nan, math.inf], "n_iterations": [-1]},
    "cghash": {"C": [0.0], "n_triplets": [0], "n_starts": [-1], "n_iterations": [0]},
    "cnnh": {"n_sweeps": [0]},
    "dgh": {"rho": [-0.1], "rotate": ["yes"], "n_iterations": [-1], "n_anchors": [1], "n_nearest": [0]},
    "dh": {"lambda1": [-1.0], "lambda2": [-1.0], "lambda3": [-1.0], "epochs": [0]},
    "dh-supervised": {"alpha": [-1.0]},
    "dpsh": {"memory_from": [-0.1, 1.1], "eta": [-1.0]},
    "drsch": {"threshold": [0.0], "slope": [0.0], "growth": [0.0], "lambda_": [-0.1]},
    "dsrh": {"rho": [-1.0], "alpha": [-0.1]},
    "dtsh": {
        "n_bits": [0, -3, 2.5, "12", None, True],
        "random_state": [-1, None],
        "head": ["linaer"],
        "image_size": [7],
        "frozen_blocks": [-1],
        "sampling": ["publish"],
        "alpha": [-1.0],
        "lambda_": [-1.0],
        "training": [3],
    },
    "fasth": {"n_partners": [0], "n_sweeps": [-1], "n_trees": [0], "depth": [0, 9], "n_candidates": [0]},
    "isohash": {"n_iterations": [-1]},
    "itq": {"n_iterations": [-1]},
    "ksh": {"n_anchors": [0], "n_iterations": [-1]},
    "lfh": {"beta": [0.0], "lambda_": [0.0, math.inf], "n_iterations": [-1]},
    "mlh": {
        "rho": [-0.1, 1.1],
        "lambda_": [0.0],
        "n_epochs": [-1],
        "batch_size": [0],
        "learning_rate": [0.0],
        "momentum": [-0.1, 1.0],
        "weight_decay": [-0.1],
    },
    "ninh": {"epsilon": [0.0, 0.6], "margin": [-1.0], "beta": [0.0]},
    "rsh": {"lambda_": [0.0]},
    "sdh": {"n_anchors": [0], "width": [0.0], "lambda_": [0], "nu": [-1], "ridge": [0], "n_sweeps": [-1]},
    "semantic": {"hidden": [(8, 0), 8], "noise": [-1.0], "pretraining_epochs": [-1], "epochs": [0]},
    "sgh": {"n_anchors": [0]},
    "sikh": {"gamma": [0.0, math.nan, math.inf]},
    "splh": {"alpha": [-0.1, 1.1], "eta": [-0.1], "n_labelled": [1]},
}
WRONG_TRAINING = {
    "epochs": [0, -1, 2.5],
    "batch_size": [1],
    "last_batch": ["drop"],
    "optimizer": ["adam"],
    "lr": [0, -1e-3, math.nan],
    "head_lr": [0, math.inf],
    "weight_decay": [-1],
    "schedule": ["cosine"],
    "step_epochs": [0],
    "windows": [-1],
    "shift": [-1],
    "precision": ["float16"],
    "device": ["gpu"],
}


def test_a_name_of_the_same_letters_is_suggested_first():
    assert did_you_mean("dhst", ["dh", "dtsh"]) == " (did you mean 'dtsh'?)"
    assert did_you_mean("ks", ["dh", "ksh"]) == " (did you mean 'ksh'?)"
    assert did_you_mean("x", ["dh", "ksh"]) == ""


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_says_what_it_means_and_allows_its_default(name):
    for one in describe(hasher_class(name)):
        assert one.help and one.types
        one.require(one.default)
        for value in one.search or ():  # what tuning tries is allowed, too
            one.require(value)


@pytest.mark.parametrize("method, name", [(method, name) for method, names in WRONG.items() for name in names])
def test_a_wrong_value_is_refused(method, name):
    for value in WRONG[method][name]:
        with pytest.raises(UsageError, match=f"^{name} must be .*, got "):
            check(hasher_class(method)(**{name: value}))


@pytest.mark.parametrize("name", WRONG_TRAINING)
def test_a_wrong_way_of_training_is_refused_at_once(name):
    for value in WRONG_TRAINING[name]:
        with pytest.raises(UsageError, match=f"^{name} must be .*, got "):
            Training(**{name: value})


def test_messages_name_the_limit():
    with pytest.raises(UsageError, match=r"^n_anchors must be >= 1, got 0$"):
        check(hasher_class("ksh")(n_anchors=0))
    with pytest.raises(UsageError, match=r"^epsilon must be > 0 and <= 0.5, got 0.6$"):
        check(hasher_class("ninh")(epsilon=0.6))
    with pytest.raises(UsageError, match=r"^head must be one of linear, layers, divide-and-encode, got linaer$"):
        check(DTSH(head="linaer"))
    check(DTSH(np.int64(12), lambda_=np.float32(3)))


def test_text_becomes_values():
    texts = ["epochs=3", "alpha=none", "lambda_=5", "flip=true", "head=layers", "image_size=96"]
    values = parse(DTSH, texts)
    assert values == {
        "epochs": 3, "alpha": None, "lambda_": 5.0, "flip": True, "head": "layers", "image_size": 96,
    }  # fmt: skip
    hasher = apply(DTSH(12), values)
    assert (hasher.training, hasher.lambda_, hasher.n_bits) == (Training(epochs=3, flip=True), 5.0, 12)
    assert parse(hasher_class("semantic"), ["hidden=64,32"]) == {"hidden": (64, 32)}


@pytest.mark.parametrize(
    "text, message",
    [
        ("epoch=3", r"dtsh has no setting 'epoch' \(did you mean 'epochs'\?\); see: hashlens methods dtsh"),
        ("n_anchors=3", "dtsh has no setting 'n_anchors'; see"),
        ("epochs=0", "epochs must be >= 1, got 0"),
        ("epochs=few", "epochs must be an integer or none, got 'few'"),
        ("flip=maybe", "flip must be true or false or none, got 'maybe'"),
        ("epochs", "write a setting as name=value, got 'epochs'"),
    ],
)
def test_wrong_text(text, message):
    with pytest.raises(UsageError, match=f"^{message}"):
        parse(DTSH, [text])


class Own:
    mode: Literal["fast", "good"] = setting("fast", "how")
    level: Literal[1, 2] | None = setting(None, "how much")
    steps: list[int] = setting([3, 4], "when", low=1)
    rates: tuple[float, ...] | None = setting((0.5,), "how fast")
    kinds: list[Literal["a", "b"]] = setting(["a"], "which")


def test_literals_and_lists_of_ones_own():
    own = dataclass(Own)
    texts = ["mode=good", "level=2", "steps=5,6", "rates=1,2.5", "kinds=b,a"]
    values = {"mode": "good", "level": 2, "steps": [5, 6], "rates": (1.0, 2.5), "kinds": ["b", "a"]}
    assert parse(own, texts) == values and parse(own, ["level=none"]) == {"level": None}
    assert own(**from_json(own, json.loads(json.dumps(to_json(own(**values)))))) == own(**values)
    check(own())
    assert own().steps is not own().steps
    assert {one.name: one.range for one in describe(own)}["mode"] == "one of fast, good"
    for text, message in {
        "mode=bad": "mode must be one of fast, good, got bad",
        "level=3": "level must be one of 1, 2, got 3",
        "steps=0,1": r"steps must be >= 1, got \[0, 1\]",
        "steps=few": "steps must be integers separated by commas, got 'few'",
        "kinds=a,c": r"kinds must be one of a, b, got \['a', 'c'\]",
        "step=1": r"Own has no setting 'step' \(did you mean 'steps'\?\); its settings: mode, level, steps, .*",
    }.items():
        with pytest.raises(UsageError, match=f"^{message}$"):
            parse(own, [text])


def test_where_a_setting_belongs():
    said = r"^'epochs' is a setting of training: use DTSH\(training=Training\(epochs=2\)\), or --set epochs=2$"
    for use in (DTSH, DTSH().set_params):
        with pytest.raises(UsageError, match=said):
            use(epochs=2)
        with pytest.raises(UsageError, match=r"^dtsh has no setting 'bits' .did you mean 'n_bits'"):
            use(bits=2)
    hasher = DTSH(training=Training(lr=0.1)).set_params(training__epochs=3, training__batch_size=9, n_bits=8)
    assert (hasher.n_bits, hasher.training) == (8, Training(lr=0.1, epochs=3, batch_size=9))
    with pytest.raises(UsageError, match=r"^Training has no setting 'epoch' .did you mean 'epochs'"):
        hasher.set_params(training__epoch=3)
    assert hasher.training.epochs == 3


def test_settings_for_several_methods():
    classes = {name: hasher_class(name) for name in ("dtsh", "ksh", "sgh", "dh")}
    values = parse_for(classes, ["ksh.n_anchors=300", "epochs=3", "dtsh.lr=1e-3"])
    assert values == {"dtsh": {"epochs": 3, "lr": 1e-3}, "ksh": {"n_anchors": 300}, "sgh": {}, "dh": {"epochs": 3}}
    for text, message in {
        "ksj.n_anchors=300": r"'ksj' in 'ksj.n_anchors=300' is not a method compared here \(did you mean 'ksh'\?\)",
        "ksh.n_anchor=300": "ksh has no setting 'n_anchor'",
        "n_anchor=300": "dtsh has no setting 'n_anchor'",
    }.items():
        with pytest.raises(UsageError, match=message):
            parse_for(classes, [text])


@pytest.mark.parametrize("name", METHODS)
def test_settings_survive_json(name):
    cls = hasher_class(name)
    hasher = cls(np.int64(24), **({"training": Training(epochs=3)} if "training" in vars(cls()) else {}))
    copy = cls(**from_json(cls, json.loads(json.dumps(to_json(hasher)))))
    assert copy.get_params() == hasher.get_params()


@pytest.mark.parametrize("wrong", [{"n_bits": [3]}, {"n_bits": {"a": 3}}, {"training": 3}, {"other": 3}])
def test_settings_of_a_damaged_file(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        from_json(DTSH, to_json(DTSH()) | wrong)
