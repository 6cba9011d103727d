"""The printed numbers, typed again from the paper's tables, and which of them are comparable."""

from types import SimpleNamespace

import pytest

from hashlens.data.protocols import PROTOCOLS
from hashlens.features.networks import NETWORKS
from hashlens.hashers.methods import METHODS
from hashlens.results.published import NOT_COMPARABLE, PAPER, printed_numbers, published
from hashlens.results.runs import headline, learned_on

SETTING_1, SETTING_2 = (12, 24, 32, 48), (16, 24, 32, 48)

# (protocol, features of the printed number, lengths): method -> MAP, as in tables 1, 2 and 3
TABLES = {
    ("cifar10-1", "cnn-f", SETTING_1): {
        "dtsh": "0.710 0.750 0.765 0.774",
        "dpsh": "0.713 0.727 0.744 0.757",
        "fasth": "0.553 0.607 0.619 0.636",
        "sdh": "0.478 0.557 0.584 0.592",
        "ksh": "0.488 0.539 0.548 0.563",
        "lfh": "0.208 0.242 0.266 0.339",
        "splh": "0.299 0.330 0.335 0.330",
        "itq": "0.237 0.246 0.255 0.261",
        "sh": "0.183 0.164 0.161 0.161",
    },
    ("cifar10-1", "own", SETTING_1): {
        "ninh": "0.552 0.566 0.558 0.581",
        "cnnh": "0.439 0.511 0.509 0.522",
    },
    ("cifar10-1", "gist", SETTING_1): {
        "fasth": "0.305 0.349 0.369 0.384",
        "sdh": "0.285 0.329 0.341 0.356",
        "ksh": "0.303 0.337 0.346 0.356",
        "lfh": "0.176 0.231 0.211 0.253",
        "splh": "0.171 0.173 0.178 0.184",
        "itq": "0.162 0.169 0.172 0.175",
        "sh": "0.127 0.128 0.126 0.129",
    },
    ("nuswide-1", "cnn-f", SETTING_1): {
        "dtsh": "0.773 0.808 0.812 0.824",
        "dpsh": "0.752 0.790 0.794 0.812",
        "fasth": "0.779 0.807 0.816 0.825",
        "sdh": "0.780 0.804 0.815 0.824",
        "ksh": "0.768 0.786 0.790 0.799",
        "lfh": "0.695 0.734 0.739 0.759",
        "splh": "0.753 0.775 0.783 0.786",
        "itq": "0.719 0.739 0.747 0.756",
        "sh": "0.621 0.616 0.615 0.612",
    },
    ("nuswide-1", "own", SETTING_1): {
        "ninh": "0.674 0.697 0.713 0.715",
        "cnnh": "0.611 0.618 0.625 0.608",
    },
    ("nuswide-1", "nuswide-1134", SETTING_1): {
        "fasth": "0.621 0.650 0.665 0.687",
        "sdh": "0.568 0.600 0.608 0.637",
        "ksh": "0.556 0.572 0.581 0.588",
        "lfh": "0.571 0.568 0.568 0.585",
        "splh": "0.568 0.589 0.597 0.601",
        "itq": "0.452 0.468 0.472 0.477",
        "sh": "0.454 0.406 0.405 0.400",
    },
    ("cifar10-2", "cnn-f", SETTING_2): {
        "dtsh": "0.915 0.923 0.925 0.926",
        "dpsh": "0.903 0.885 0.915 0.911",
    },
    ("cifar10-2", "own", SETTING_2): {
        "drsch": "0.615 0.622 0.629 0.631",
        "dsch": "0.609 0.613 0.617 0.620",
        "dsrh": "0.608 0.611 0.617 0.618",
    },
    ("nuswide-2", "cnn-f", SETTING_2): {
        "dtsh": "0.756 0.776 0.785 0.799",
        "dpsh": "0.715 0.722 0.736 0.741",
    },
    ("nuswide-2", "own", SETTING_2): {
        "drsch": "0.618 0.622 0.623 0.628",
        "dsch": "0.592 0.597 0.611 0.609",
        "dsrh": "0.609 0.618 0.621 0.631",
    },
}
CASES = [(*key, method, numbers) for key, rows in TABLES.items() for method, numbers in rows.items()]


@pytest.mark.parametrize(("protocol", "features", "lengths", "method", "numbers"), CASES)
def test_every_number_is_as_printed(protocol, features, lengths, method, numbers):
    found = [published(protocol, method, n_bits, features) for n_bits in lengths]
    assert [f"{number['map']:.3f}" for number in found] == numbers.split()
    assert all(number["comparable"] for number in found)
    fixed = METHODS[method].takes == "features"
    table = "table 3" if protocol.endswith("2") else "table 2" if fixed and features == "cnn-f" else "table"
    assert all(number["source"].startswith(table) for number in found)
    assert all(("GIST" in number["source"]) == (features == "gist") for number in found)


def test_there_are_no_other_numbers():
    entries = [(p, m, e) for p, methods in printed_numbers().items() for m, es in methods.items() for e in es]
    known = {(protocol, features, method) for protocol, features, _, method, _ in CASES}
    assert {(p, e["features"], m) for p, m, e in entries} == known
    assert len(entries) == len(known) + 1, "DPSH has two rows in table 3"
    for protocol, method, entry in entries:
        assert protocol in PROTOCOLS and method in METHODS
        assert tuple(map(int, entry["map"])) == (SETTING_1 if protocol.endswith("1") else SETTING_2)
        assert set(entry) == {"features", "source", "map"}
    assert "own" not in NETWORKS, "it stands for networks that are not ours"


def test_the_second_row_of_dpsh_stands_beside_the_first():
    number = published("cifar10-2", "dpsh", 16, "cnn-f")
    assert number["map"] == 0.903
    assert "DPSH*" in number["source"] and "from the DPSH article" in number["source"]
    assert number["source"].endswith("0.763")


@pytest.mark.parametrize(
    ("protocol", "method", "features", "printed"),
    [
        ("cifar10-1", "itq", "efficientnet-lite0", 0.246),  # other network: the row with features of a network
        ("cifar10-1", "itq", "nuswide-1134", 0.169),  # other hand-crafted features
        ("nuswide-1", "itq", "gist", 0.468),
        ("cifar10-1", "dtsh", "efficientnet-lite0", 0.750),
        ("cifar10-1", "dtsh", "gist", 0.750),
        ("cifar10-1", "ninh", "cnn-f", 0.566),
        ("cifar10-2", "dpsh", "resnet50", 0.885),
    ],
)
def test_other_features_are_not_comparable(protocol, method, features, printed):
    number = published(protocol, method, 24, features)
    assert (number["map"], number["comparable"]) == (printed, False)


@pytest.mark.parametrize(
    ("protocol", "method", "n_bits"),
    [("cifar10-1", "dtsh", 16), ("cifar10-2", "itq", 24), ("split", "dtsh", 24), ("cifar10-1", "lsh", 24)],
)
def test_where_nothing_is_printed_there_is_nothing(protocol, method, n_bits):
    assert published(protocol, method, n_bits, "cnn-f") is None


def test_a_run_says_whether_its_printed_number_is_comparable():
    result = {
        "metrics": {
            "map": 0.8,
            "map_tie_aware": 0.8,
            "map_random": 0.1,
            "map_unlearned": None,
            "definition": "MAP@all",
        },
        "protocol": {"name": "cifar10-1", "seed": 0, "n_train": 1, "n_query": 1, "n_database": 1},
        "seconds": {"total": 1},
    }
    for features, comparable in (("cnn-f", True), ("resnet50", False)):
        text = headline(result | {"paper": published("cifar10-1", "dtsh", 24, features)})
        assert "0.750    the paper, tables 1 and 2, CNN-F" in text
        assert (NOT_COMPARABLE not in text) == comparable
    assert "ACCV 2016" in PAPER


def test_learned_on_is_the_trained_network_or_the_fixed_features():
    assert learned_on(SimpleNamespace(backbone_="cnn-f")) == "cnn-f"
    assert learned_on(SimpleNamespace(features="gist")) == "gist"


def test_nuswide_is_comparable_only_for_as_many_images_as_the_paper_had():
    for n_searched, comparable in ((159_363, True), (193_734, False), (None, True)):
        assert published("nuswide-1", "itq", 12, "nuswide-1134", n_searched)["comparable"] is comparable
    assert published("cifar10-1", "itq", 12, "gist", 59_000)["comparable"] is True
