"""ModelFolder: the path of a run, a model or an exported model in, the model's folder and fingerprint out.

Codes can be mixed if their models have equal fingerprints. config.json has a checksum of itself and of each file beside
it; a model is loaded only from bytes that match them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hashlens.checksums import CHECKSUM, damaged, read_sealed, write_sealed
from hashlens.errors import DataError, HashlensError, MismatchError, StorageError, UsageError
from hashlens.files import sha256
from hashlens.schema import SHA256, conform, optional

CONFIG, WEIGHTS, EXPORTED = "config.json", "model.safetensors", "model.onnx"
GENERAL = Path(__file__).with_name("general")  # the model that comes with the package, for any photos
FORMAT = "hashlens model 2"
REFINED = "refined.json"  # beside an index that learned from clicks: the model it was built with
OTHER_BITS = 1 / 16  # share of a probe's bits that may differ
MODEL = {  # recorded of their model by codes and indexes
    "fingerprint": SHA256,
    "name": re.compile(r"(?!\.\.?$)[^/\\\x00-\x1f]{0,255}"),
    optional("probe"): re.compile(r"([0-9a-f]{2})*"),
}


@dataclass(frozen=True)
class ModelFolder:
    """A folder with config.json and the weights, trained or exported."""

    path: Path

    @classmethod
    def resolve(cls, path: Path | str) -> ModelFolder:
        """The model in the folder of a model, an exported model, a run or a comparison; or "general"."""
        path = Path(path)
        for place in (path, path / "model", *([GENERAL] if path == Path(GENERAL.name) else [])):
            if any((place / name).is_file() for name in (WEIGHTS, EXPORTED)):
                return cls(place)
        if (path / "split.json").is_file():
            raise UsageError(f"{path} has no model yet; finish it with: hashlens train --resume {path}")
        found = "does not exist" if not path.exists() else "is a file" if path.is_file() else f"has no {WEIGHTS}"
        raise DataError(
            f"{path} is not a model ({found}); pass the folder of a run, a model or an exported model, or general"
        )

    @property
    def exported(self) -> bool:
        return not (self.path / WEIGHTS).exists()

    @property
    def name(self) -> str:
        """NAME for runs/NAME/model, else the name of the folder itself."""
        place = self.path.absolute()
        return place.parent.name if place.name == "model" and place.parent.name else place.name

    @property
    def fingerprint(self) -> str:
        """sha256 of everything codes depend on: the weights, and config.json without its writer and measurements."""
        with self.damage_errors():
            config = self.config()
            own = ("hashlens", "class", "files", "int8", *["format"] * (config.get("format") == FORMAT))
            kept = {name: value for name, value in config.items() if name not in own}
            weights = hashlib.sha256(self.content(EXPORTED if self.exported else WEIGHTS)).hexdigest()
        return hashlib.sha256(f"{json.dumps(kept, sort_keys=True)} {weights}".encode()).hexdigest()

    def describe(self) -> dict[str, str]:
        """The record of this model in codes and indexes.

        An exported model that passed its check with equal bits counts as the model it was exported from.
        """
        with self.damage_errors():
            same_as = conform(self.config()["model"], (None, MODEL), "model") if self.exported else None
        return same_as or {"fingerprint": self.fingerprint, "name": self.name}

    def config(self) -> dict[str, Any]:
        """The contents of config.json, verified by its checksum."""
        try:
            return conform(read_sealed(self.path / CONFIG), dict)
        except ValueError as error:
            raise damaged(self.path / CONFIG, error, self._again) from error

    def content(self, name: str, expected: str | None = None) -> bytes:
        """The bytes of a file beside config.json, verified by the SHA-256 in it."""
        expected = expected or self.config().get("files", {}).get(name)
        content = (self.path / name).read_bytes()
        if expected is not None and hashlib.sha256(content).hexdigest() != expected:
            raise damaged(self.path / name, "it has changed since it was written", self._again)
        return content

    def seal(self) -> None:
        """Add a checksum to a config.json from a version without them, after all of it was checked."""
        if CHECKSUM.encode() not in (self.path / CONFIG).read_bytes():
            with suppress(StorageError):
                write_sealed(self.path / CONFIG, self.config())

    def write_config(self, config: dict[str, Any], files: Sequence[str]) -> None:
        """Write config.json with the checksums of the files beside it, which must exist already."""
        digests = {name: sha256(self.path / name) for name in files}
        write_sealed(self.path / CONFIG, {**config, "format": FORMAT, "files": digests})

    @property
    def _again(self) -> str:
        return f"{'export' if self.exported else 'train or copy'} the model again"

    @contextmanager
    def damage_errors(self) -> Iterator[None]:
        """Turn any error from reading a damaged model into one sentence."""
        try:
            yield
        except HashlensError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = " ".join(str(error).split())[:200]
            raise DataError(f"the model in {self.path} is damaged ({why}); {self._again}") from error

    @classmethod
    def find(cls, model: dict[str, str], near: Path) -> ModelFolder:
        """The model that made an index, a codes folder or a run at `near`.

        It is in the folder model of the same run, or called NAME or runs/NAME, here or beside `near`; a model refined
        for an index is inside that index.
        """
        name, (place, *above) = model["name"], [near.absolute(), *near.absolute().parents[:2]]
        named = [base / folder / name for base in (Path(), *above) for folder in ("", "runs")]
        for candidate in [*(base / "model" for base in (place, *above)), place / name, *named, GENERAL]:
            with suppress(DataError, UsageError):
                found = cls.resolve(candidate)
                if found.describe()["fingerprint"] == model["fingerprint"]:
                    return found
        raise UsageError(
            f"{near} was made with the model {name} {model['fingerprint'][:8]}…, which was not found; pass its folder"
            " with --model"
        )

    def used_by(self, model: dict[str, str], near: Path) -> ModelFolder:
        """This model, or the one refined from it for the index at `near`, if that is the `model` it records."""
        before = built_with(near, model)
        if before is None or before["fingerprint"] != self.describe()["fingerprint"]:
            return self
        return ModelFolder.find(model, near)

    @staticmethod
    def require_same(ours: dict[str, str], given: dict[str, str], where: object) -> None:
        """Refuse a model other than the one that made the codes or the index in `where`.

        If both are known, the codes of a few fixed images are compared too, because an exported model could claim any
        fingerprint. A few bits may differ: other machines round differently.
        """
        if ours["fingerprint"] != given["fingerprint"]:
            raise MismatchError(
                f"{where} was made with {ours['name']} {ours['fingerprint'][:8]}…, you gave {given['name']}"
                f" {given['fingerprint'][:8]}…; codes of two models cannot be mixed: use the same model"
            )
        probes = [bytes.fromhex(model.get("probe", "")) for model in (ours, given)]
        n_wrong = sum((a ^ b).bit_count() for a, b in zip(*probes, strict=False))
        if all(probes) and (len(probes[0]) != len(probes[1]) or n_wrong > len(probes[0]) * 8 * OTHER_BITS):
            raise MismatchError(
                f"{given['name']} claims to be the model that made {where}, but makes other codes; use the model"
                " itself, or export it again"
            )


def built_with(near: Path, model: dict[str, str]) -> dict[str, str] | None:
    """The index's record of its model before it was refined to `model`; None if it was not refined."""
    if not (near / model["name"] / CONFIG).is_file() or not (near / REFINED).is_file():
        return None
    try:
        found: dict[str, str] = conform(read_sealed(near / REFINED), {"model": MODEL})["model"]
    except ValueError as error:
        raise damaged(near / REFINED, error, "remove it and give the model that the index was built with") from error
    return None if found["fingerprint"] == model["fingerprint"] else found
