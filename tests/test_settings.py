"""Settings: every method's are declared with a meaning and a range, and wrong ones are refused before anything else."""

import json
import math

import numpy as np
import pytest

from hashlens import DTSH, METHODS, Training
from hashlens.errors import UsageError
from hashlens.hashers.methods import hasher_class
from hashlens.settings import apply, check, describe, from_json, parse, parse_for, to_json

WRONG = {  # values just outside the range of each setting that has one
    "agh": {"layers": [0, 3], "n_anchors": [1], "n_nearest": [0]},
    "bre": {"n_sample": [1], "n_anchors": [0], "n_sweeps": [-1]},
    "ccaitq": {"rho": [0, 1e-12, math.nan, math.inf], "n_iterations": [-1]},
    "cghash": {"C": [0.0], "n_triplets": [0], "n_starts": [-1], "n_iterations": [0]},
    "cnnh": {"n_sweeps": [0]},
    "dgh": {"rho": [-0.1], "rotate": ["yes"], "n_iterations": [-1], "n_anchors": [1], "n_nearest": [0]},
    "dh": {"lambda1": [-1.0], "lambda2": [-1.0], "lambda3": [-1.0], "epochs": [0]},
    "dpsh": {"memory_from": [-0.1, 1.1]},
    "drsch": {"threshold": [0.0], "slope": [0.0], "growth": [0.0]},
    "dtsh": {
        "n_bits": [0, -3, 2.5, "12", None, True],
        "random_state": [-1, None],
        "head": ["linaer"],
        "image_size": [7],
        "frozen_blocks": [-1],
        "sampling": ["publish"],
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
    "ninh": {"epsilon": [0.0, 0.6]},
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


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_says_what_it_means_and_allows_its_default(name):
    for one in describe(hasher_class(name)):
        assert one.help and one.types
        one.require(one.default)


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
        ("epochs", "a setting is given as name=value, got 'epochs'"),
    ],
)
def test_wrong_text(text, message):
    with pytest.raises(UsageError, match=f"^{message}"):
        parse(DTSH, [text])


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
