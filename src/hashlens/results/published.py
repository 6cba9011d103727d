"""Published numbers: a protocol, a method, a length and features in, the printed MAP and its source out."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any

PAPER = "X. Wang, Y. Shi, K. Kitani, Deep Supervised Hashing with Triplet Labels, ACCV 2016"
HAND_CRAFTED = ("gist", "nuswide-1134")
OTHERS = "other features, another network or other images than here"
NOT_COMPARABLE = f"{OTHERS}: not comparable"
SEARCHED = {"nuswide-1": 159_363, "nuswide-2": 159_363}  # images still available when the paper was written


def published(
    protocol: str, method: str, n_bits: int, features: str, n_searched: int | None = None
) -> dict[str, Any] | None:
    """The MAP printed in PAPER: {"map", "source", "comparable"}; None if there is none for this protocol and length.

    `features` are the fixed features or the backbone that codes were learned on. A number printed for the same features
    is comparable; otherwise that of the most similar features is returned and marked as not comparable. So is a number
    for a database size other than `n_searched`, if the paper's is known.
    """
    length = str(n_bits)
    printed = [entry for entry in printed_numbers().get(protocol, {}).get(method, []) if length in entry["map"]]
    if not printed:
        return None

    def unlike(entry: dict[str, Any]) -> tuple[bool, bool]:
        other_kind = (entry["features"] in HAND_CRAFTED) != (features in HAND_CRAFTED)
        return entry["features"] != features, other_kind

    shown = min(printed, key=unlike)  # the first of equals
    beside = [e for e in printed if e is not shown and e["features"] == shown["features"]]
    sources = [shown["source"], *(f"{entry['source']}: {entry['map'][length]:.3f}" for entry in beside)]
    same_images = n_searched is None or n_searched == SEARCHED.get(protocol, n_searched)
    comparable = shown["features"] == features and same_images
    return {"map": shown["map"][length], "source": "; ".join(sources), "comparable": comparable}


@cache
def printed_numbers() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """published.toml: by protocol and method a list of entries, each with features, source and map."""
    return tomllib.loads(resources.files("hashlens.results").joinpath("published.toml").read_text(encoding="utf-8"))
