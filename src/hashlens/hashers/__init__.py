"""Hashers: the table of methods, pictures or features in, codes out. Everything that lists methods iterates over it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashlens.errors import DataError, UsageError

if TYPE_CHECKING:
    from hashlens.hashers.base import Hasher


@dataclass(frozen=True)
class Method:
    """One row of the table; the class is imported only when it is used."""

    path: str  # module:class
    supervised: bool
    takes: str  # "images" (features too) or "features"
    summary: str
    paper: str


METHODS: dict[str, Method] = {
    "dtsh": Method(
        "hashlens.hashers.deep.dtsh:DTSH",
        True,
        "images",
        "triplet label likelihood, features and codes learnt together",
        "Wang, Shi, Kitani, ACCV 2016",
    ),
    "dpsh": Method(
        "hashlens.hashers.deep.dpsh:DPSH",
        True,
        "images",
        "pairwise label likelihood against remembered codes",
        "Li, Wang, Kang, IJCAI 2016",
    ),
    "cnnh": Method(
        "hashlens.hashers.deep.cnnh:CNNH",
        True,
        "images",
        "codes that factorise the similarities, then a network that predicts them",
        "Xia, Pan, Lai, Liu, Yan, AAAI 2014",
    ),
    "ninh": Method(
        "hashlens.hashers.deep.ninh:NINH",
        True,
        "images",
        "triplet hinge on squared distances, divide-and-encode head",
        "Lai, Pan, Liu, Yan, CVPR 2015",
    ),
    "dsrh": Method(
        "hashlens.hashers.deep.dsrh:DSRH",
        True,
        "images",
        "ranking hinge weighted by the number of shared labels",
        "Zhao, Huang, Wang, Tan, CVPR 2015",
    ),
    "dsch": Method(
        "hashlens.hashers.deep.drsch:DSCH",
        True,
        "images",
        "triplet hinge on weighted bits",
        "Zhang, Lin, Zhang, Zuo, Zhang, TIP 2015",
    ),
    "drsch": Method(
        "hashlens.hashers.deep.drsch:DRSCH",
        True,
        "images",
        "triplet hinge on weighted bits with a Laplacian regulariser",
        "Zhang, Lin, Zhang, Zuo, Zhang, TIP 2015",
    ),
    "dlbhc": Method(
        "hashlens.hashers.deep.dlbhc:DLBHC",
        True,
        "images",
        "a latent sigmoid layer under a classifier",
        "Lin, Yang, Hsiao, Chen, CVPR workshops 2015",
    ),
    "classifier": Method(
        "hashlens.hashers.deep.classifier_code:ClassifierCode",
        True,
        "images",
        "a fixed code of the class that a plain classifier predicts: the sceptic's baseline",
        "after Sablayrolles, Douze, Usunier, Jégou, ICASSP 2017",
    ),
    "semantic": Method(
        "hashlens.hashers.deep.semantic_hashing:SemanticHashing",
        False,
        "features",
        "the noisy middle of an autoencoder that starts as Boltzmann machines",
        "Salakhutdinov, Hinton, IJAR 2009",
    ),
    "dh": Method(
        "hashlens.hashers.deep.deep_hashing:DeepHashing",
        False,
        "features",
        "three layers of tanh units whose signs lose little and whose rows are orthogonal",
        "Liong, Lu, Wang, Moulin, Zhou, CVPR 2015",
    ),
    "dh-supervised": Method(
        "hashlens.hashers.deep.deep_hashing:SupervisedDeepHashing",
        True,
        "features",
        "the same, with pairs of one class drawn together and others apart",
        "Liong, Lu, Wang, Moulin, Zhou, CVPR 2015",
    ),
    "lsh": Method(
        "hashlens.hashers.shallow.lsh:LSH",
        False,
        "features",
        "signs of random projections",
        "Andoni, Indyk, FOCS 2006; Charikar, STOC 2002",
    ),
    "sikh": Method(
        "hashlens.hashers.shallow.sikh:SIKH",
        False,
        "features",
        "signs of random cosines whose expectation is a shift-invariant kernel",
        "Raginsky, Lazebnik, NIPS 2009",
    ),
    "sh": Method(
        "hashlens.hashers.shallow.sh:SH",
        False,
        "features",
        "eigenfunctions of a box along principal directions",
        "Weiss, Torralba, Fergus, NIPS 2008",
    ),
    "bre": Method(
        "hashlens.hashers.shallow.bre:BRE",
        False,
        "features",
        "Hamming distances that reconstruct distances of features",
        "Kulis, Darrell, NIPS 2009",
    ),
    "itq": Method(
        "hashlens.hashers.shallow.itq:ITQ",
        False,
        "features",
        "principal directions, rotated so that the sign loses least",
        "Gong, Lazebnik, CVPR 2011",
    ),
    "isohash": Method(
        "hashlens.hashers.shallow.isohash:IsoHash",
        False,
        "features",
        "principal directions, rotated to equal variance",
        "Kong, Li, NIPS 2012",
    ),
    "agh": Method(
        "hashlens.hashers.shallow.agh:AGH",
        False,
        "features",
        "eigenvectors of an anchor graph, one or two layers",
        "Liu, Wang, Kumar, Chang, ICML 2011",
    ),
    "dgh": Method(
        "hashlens.hashers.shallow.dgh:DGH",
        False,
        "features",
        "discrete codes on an anchor graph",
        "Liu, Mu, Kumar, Chang, NIPS 2014",
    ),
    "sgh": Method(
        "hashlens.hashers.shallow.sgh:SGH",
        False,
        "features",
        "kernel codes that factorise a similarity graph that is never formed",
        "Jiang, Li, IJCAI 2015",
    ),
    "ccaitq": Method(
        "hashlens.hashers.shallow.ccaitq:CCAITQ",
        True,
        "features",
        "directions correlated with the labels, rotated as in ITQ",
        "Gong, Lazebnik, CVPR 2011",
    ),
    "splh": Method(
        "hashlens.hashers.shallow.splh:SPLH",
        True,
        "features",
        "one projection after another, each mending the pairs that the last got wrong",
        "Wang, Kumar, Chang, ICML 2010",
    ),
    "mlh": Method(
        "hashlens.hashers.shallow.mlh:MLH",
        True,
        "features",
        "a bound on a hinge-like loss of Hamming distances",
        "Norouzi, Fleet, ICML 2011",
    ),
    "ksh": Method(
        "hashlens.hashers.shallow.ksh:KSH",
        True,
        "features",
        "kernel bits whose products fit the pairwise labels, one after another",
        "Liu, Wang, Ji, Jiang, Chang, CVPR 2012",
    ),
    "lfh": Method(
        "hashlens.hashers.shallow.lfh:LFH",
        True,
        "features",
        "latent factors of the pairwise labels, then linear regression",
        "Zhang, Zhang, Li, Guo, SIGIR 2014",
    ),
    "fasth": Method(
        "hashlens.hashers.shallow.fasth:FastH",
        True,
        "features",
        "bits by graph cuts, then boosted trees that predict them",
        "Lin, Shen, Shi, van den Hengel, Suter, CVPR 2014",
    ),
    "sdh": Method(
        "hashlens.hashers.shallow.sdh:SDH",
        True,
        "features",
        "discrete codes that a linear classifier can tell apart, on a kernel",
        "Shen, Shen, Liu, Shen, CVPR 2015",
    ),
    "rsh": Method(
        "hashlens.hashers.shallow.rsh:RSH",
        True,
        "features",
        "projections that keep ranking lists",
        "Wang, Liu, Sun, Jiang, ICCV 2013",
    ),
    "cghash": Method(
        "hashlens.hashers.shallow.cghash:CGHash",
        True,
        "features",
        "weighted bits by column generation over triplets",
        "Li, Lin, Shen, van den Hengel, Dick, ICML 2013",
    ),
}


def hasher_class(name: str) -> type[Hasher]:
    if name not in METHODS:
        raise UsageError(f"there is no method '{name}'; choose one of {', '.join(METHODS)}")
    module, _, attribute = METHODS[name].path.partition(":")
    return getattr(import_module(module), attribute)


def make_hasher(name: str, **params: Any) -> Hasher:
    return hasher_class(name)(**params)


def load(folder: str | Path) -> Hasher:
    """The hasher that `save` wrote to `folder`, whatever its method."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        method = config["method"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder} holds no hashlens model (config.json is missing or damaged); give the folder 'model' of a run"
        ) from error
    return hasher_class(method).load(folder)
