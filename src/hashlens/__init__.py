"""hashlens: similar-image search with short binary codes.

>>> from hashlens import DTSH
>>> codes = DTSH(n_bits=48).fit(images, labels).encode(images)  # doctest: +SKIP

Names are loaded when they are used: `import hashlens` imports neither torch nor numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` below finds, for editors and type checkers
    from hashlens import losses as losses
    from hashlens.codes import Codes as Codes
    from hashlens.codes.encoder import Encoder as Encoder
    from hashlens.data import Source as Source
    from hashlens.data import make_protocol as make_protocol
    from hashlens.data import open_source as open_source
    from hashlens.data.labels import Labels as Labels
    from hashlens.errors import HashlensError as HashlensError
    from hashlens.hashers.base import Hasher as Hasher
    from hashlens.hashers.checks import check_hasher as check_hasher
    from hashlens.hashers.deep.base import DeepHasher as DeepHasher
    from hashlens.hashers.deep.classifier_code import ClassifierCode as ClassifierCode
    from hashlens.hashers.deep.cnnh import CNNH as CNNH
    from hashlens.hashers.deep.deep_hashing import DeepHashing as DeepHashing
    from hashlens.hashers.deep.deep_hashing import SupervisedDeepHashing as SupervisedDeepHashing
    from hashlens.hashers.deep.dlbhc import DLBHC as DLBHC
    from hashlens.hashers.deep.dpsh import DPSH as DPSH
    from hashlens.hashers.deep.drsch import DRSCH as DRSCH
    from hashlens.hashers.deep.drsch import DSCH as DSCH
    from hashlens.hashers.deep.dsrh import DSRH as DSRH
    from hashlens.hashers.deep.dtsh import DTSH as DTSH
    from hashlens.hashers.deep.ninh import NINH as NINH
    from hashlens.hashers.deep.semantic_hashing import SemanticHashing as SemanticHashing
    from hashlens.hashers.deep.training import Training as Training
    from hashlens.hashers.methods import METHODS as METHODS
    from hashlens.hashers.methods import load as load
    from hashlens.hashers.methods import make_hasher as make_hasher
    from hashlens.hashers.shallow.agh import AGH as AGH
    from hashlens.hashers.shallow.base import KernelHasher as KernelHasher
    from hashlens.hashers.shallow.base import LinearHasher as LinearHasher
    from hashlens.hashers.shallow.bre import BRE as BRE
    from hashlens.hashers.shallow.cghash import CGHash as CGHash
    from hashlens.hashers.shallow.dgh import DGH as DGH
    from hashlens.hashers.shallow.fasth import FastH as FastH
    from hashlens.hashers.shallow.isohash import IsoHash as IsoHash
    from hashlens.hashers.shallow.itq import CCAITQ as CCAITQ
    from hashlens.hashers.shallow.itq import ITQ as ITQ
    from hashlens.hashers.shallow.ksh import KSH as KSH
    from hashlens.hashers.shallow.lfh import LFH as LFH
    from hashlens.hashers.shallow.lsh import LSH as LSH
    from hashlens.hashers.shallow.mlh import MLH as MLH
    from hashlens.hashers.shallow.rsh import RSH as RSH
    from hashlens.hashers.shallow.sdh import SDH as SDH
    from hashlens.hashers.shallow.sgh import SGH as SGH
    from hashlens.hashers.shallow.sh import SH as SH
    from hashlens.hashers.shallow.sikh import SIKH as SIKH
    from hashlens.hashers.shallow.splh import SPLH as SPLH
    from hashlens.index.memory import HammingIndex as HammingIndex
    from hashlens.results.compare import Comparison as Comparison
    from hashlens.results.compare import compare as compare
    from hashlens.results.metrics import evaluate_codes as evaluate_codes
    from hashlens.search import open_searcher as open_searcher
    from hashlens.settings import setting as setting

__version__ = "0.1.0"

_HOMES = {  # besides the classes of METHODS, which its table knows
    "codes": ["Codes"],
    "codes.encoder": ["Encoder"],
    "data": ["Source", "make_protocol", "open_source"],
    "data.labels": ["Labels"],
    "errors": ["HashlensError"],
    "hashers.base": ["Hasher"],
    "hashers.checks": ["check_hasher"],
    "hashers.deep.base": ["DeepHasher"],
    "hashers.deep.training": ["Training"],
    "hashers.methods": ["METHODS", "load", "make_hasher"],
    "hashers.shallow.base": ["KernelHasher", "LinearHasher"],
    "index.memory": ["HammingIndex"],
    "results.compare": ["Comparison", "compare"],
    "results.metrics": ["evaluate_codes"],
    "search": ["open_searcher"],
    "settings": ["setting"],
}


def _homes() -> dict[str, str]:
    from hashlens.hashers.methods import METHODS

    classes = dict(method.path.split(":")[::-1] for method in METHODS.values())
    own = {name: home for home, names in _HOMES.items() for name in names}
    return own | {name: f"hashers.{module}" for name, module in classes.items()}


def __getattr__(name: str) -> Any:
    if name == "losses":
        return import_module("hashlens.losses")
    homes = {} if name.startswith("_") else _homes()
    if name not in homes:
        raise AttributeError(f"module 'hashlens' has no attribute '{name}'")
    return getattr(import_module(f"hashlens.{homes[name]}"), name)


def __dir__() -> list[str]:
    return sorted(["__version__", "losses", *_homes()])
