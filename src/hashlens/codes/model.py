"""ModelFolder: the path of a run, a model or an exported model in, the model's folder and fingerprint out.

Codes can be mixed if the fingerprints of their models are equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hashlens.errors import DataError, HashlensError, MismatchError, UsageError
from hashlens.files import sha256

CONFIG, WEIGHTS, EXPORTED = "config.json", "model.safetensors", "model.onnx"
GENERAL = Path(__file__).with_name("general")  # the model that comes with the package, for any photos


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
            f"{path} is not a model ({found}); give the folder of a run, a model or an exported model, or general"
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
        """sha256 of what codes depend on: the weights, and config.json without the program that wrote it."""
        with self.damage_errors():
            kept = {name: value for name, value in self.config().items() if name not in ("hashlens", "class")}
            weights = sha256(self.path / (EXPORTED if self.exported else WEIGHTS))
        return hashlib.sha256(f"{json.dumps(kept, sort_keys=True)} {weights}".encode()).hexdigest()

    def describe(self) -> dict[str, str]:
        """What codes and indexes record of their model.

        An exported model that gave the same bits when it was checked counts as the model it was exported from.
        """
        with self.damage_errors():
            same_as = self.config()["model"] if self.exported else None
        return same_as or {"fingerprint": self.fingerprint, "name": self.name}

    def config(self) -> dict[str, Any]:
        return json.loads((self.path / CONFIG).read_text(encoding="utf-8"))

    @contextmanager
    def damage_errors(self) -> Iterator[None]:
        """Turn what reading a damaged model raises into one sentence."""
        try:
            yield
        except HashlensError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            how = "export" if self.exported else "train or copy"
            raise DataError(f"the model in {self.path} is damaged ({error}); {how} it again") from error

    @classmethod
    def find(cls, model: dict[str, str], near: Path) -> ModelFolder:
        """The model that made an index, a codes folder or a run at `near`.

        It is in the folder model of the same run, or called NAME or runs/NAME, here or beside `near`.
        """
        name, (place, *above) = model["name"], [near.absolute(), *near.absolute().parents[:2]]
        named = [base / folder / name for base in (Path(), *above) for folder in ("", "runs")]
        for candidate in [*(base / "model" for base in (place, *above)), *named, GENERAL]:
            with suppress(DataError, UsageError):
                found = cls.resolve(candidate)
                if found.describe()["fingerprint"] == model["fingerprint"]:
                    return found
        raise UsageError(
            f"{near} was made with the model {name} {model['fingerprint'][:8]}…, which was not found; name its folder"
            " with --model"
        )

    @staticmethod
    def require_same(ours: dict[str, str], given: dict[str, str], where: Path | str) -> None:
        """Refuse a model other than the one that made the codes or the index in `where`."""
        if ours["fingerprint"] != given["fingerprint"]:
            raise MismatchError(
                f"{where} was made with {ours['name']} {ours['fingerprint'][:8]}…, you gave {given['name']}"
                f" {given['fingerprint'][:8]}…; codes of two models cannot be mixed: use the same model"
            )
