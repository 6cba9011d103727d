"""The table of methods: all lists of methods are made from it, and a method is imported only when it is used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashlens.codes.model import ModelFolder
from hashlens.errors import DataError, UsageError, require
from hashlens.schema import TEXT, conform
from hashlens.settings import did_you_mean

if TYPE_CHECKING:
    from hashlens.hashers.base import Hasher


IMAGES, FEATURES, LABELLED = "images and labels", "features", "features and labels"


@dataclass(frozen=True)
class Method:
    """One row of the table; the class is imported on first use."""

    path: str  # module below hashlens.hashers, and class
    learns_from: str  # methods that learn from images also take features
    summary: str
    paper: str

    @property
    def deep(self) -> bool:
        return self.path.startswith("deep.")

    @property
    def supervised(self) -> bool:
        return "labels" in self.learns_from

    @property
    def takes(self) -> str:
        return self.learns_from.partition(" ")[0]


METHODS: dict[str, Method] = {
    "dtsh": Method("deep.dtsh:DTSH", IMAGES, "likelihood of triplets of labels", "Wang, Shi, Kitani, ACCV 2016"),
    "dpsh": Method("deep.dpsh:DPSH", IMAGES, "likelihood of pairs, against remembered codes", "Li et al., IJCAI 2016"),
    "cnnh": Method("deep.cnnh:CNNH", IMAGES, "a network that predicts factorised codes", "Xia et al., AAAI 2014"),
    "ninh": Method("deep.ninh:NINH", IMAGES, "triplet hinge, divide-and-encode head", "Lai et al., CVPR 2015"),
    "dsrh": Method("deep.dsrh:DSRH", IMAGES, "ranking hinge weighted by shared labels", "Zhao et al., CVPR 2015"),
    "dsch": Method("deep.drsch:DSCH", IMAGES, "triplet hinge on weighted bits", "Zhang et al., TIP 2015"),
    "drsch": Method("deep.drsch:DRSCH", IMAGES, "dsch with a Laplacian regulariser", "Zhang et al., TIP 2015"),
    "dlbhc": Method("deep.dlbhc:DLBHC", IMAGES, "a sigmoid layer below a classifier", "Lin et al., CVPRW 2015"),
    "classifier": Method(
        "deep.classifier_code:ClassifierCode",
        IMAGES,
        "fixed code of the predicted class: the sceptic's baseline",
        "after Sablayrolles et al., ICASSP 2017",
    ),
    "semantic": Method(
        "deep.semantic_hashing:SemanticHashing",
        FEATURES,
        "autoencoder with a noisy code layer, pretrained as Boltzmann machines",
        "Salakhutdinov, Hinton, IJAR 2009",
    ),
    "dh": Method("deep.deep_hashing:DeepHashing", FEATURES, "three layers of tanh units", "Liong et al., CVPR 2015"),
    "dh-supervised": Method(
        "deep.deep_hashing:SupervisedDeepHashing",
        LABELLED,
        "dh, with pairs of one class drawn together, others apart",
        "Liong et al., CVPR 2015",
    ),
    "lsh": Method("shallow.lsh:LSH", FEATURES, "signs of random projections", "Andoni, FOCS 2006; Charikar, STOC 2002"),
    "sikh": Method("shallow.sikh:SIKH", FEATURES, "random cosines of a kernel", "Raginsky, Lazebnik, NIPS 2009"),
    "sh": Method("shallow.sh:SH", FEATURES, "slowest waves along principal directions", "Weiss et al., NIPS 2008"),
    "bre": Method("shallow.bre:BRE", FEATURES, "codes whose distances rebuild those of features", "Kulis, NIPS 2009"),
    "itq": Method("shallow.itq:ITQ", FEATURES, "principal directions, rotated for the sign", "Gong, CVPR 2011"),
    "isohash": Method("shallow.isohash:IsoHash", FEATURES, "rotated to equal variance", "Kong, Li, NIPS 2012"),
    "agh": Method("shallow.agh:AGH", FEATURES, "eigenvectors of an anchor graph", "Liu et al., ICML 2011"),
    "dgh": Method("shallow.dgh:DGH", FEATURES, "discrete codes on an anchor graph", "Liu et al., NIPS 2014"),
    "sgh": Method("shallow.sgh:SGH", FEATURES, "kernel codes that factorise a graph", "Jiang, Li, IJCAI 2015"),
    "ccaitq": Method("shallow.itq:CCAITQ", LABELLED, "ITQ on directions correlated with labels", "Gong, CVPR 2011"),
    "splh": Method("shallow.splh:SPLH", LABELLED, "bits that correct the bits before them", "Wang et al., ICML 2010"),
    "mlh": Method(
        "shallow.mlh:MLH", LABELLED, "upper bound on a hinge of Hamming distances", "Norouzi, Fleet, ICML 2011"
    ),
    "ksh": Method("shallow.ksh:KSH", LABELLED, "kernel bits that fit the pairwise labels", "Liu et al., CVPR 2012"),
    "lfh": Method("shallow.lfh:LFH", LABELLED, "latent factors of the pairwise labels", "Zhang et al., SIGIR 2014"),
    "fasth": Method("shallow.fasth:FastH", LABELLED, "bits by graph cuts, boosted trees", "Lin et al., CVPR 2014"),
    "sdh": Method("shallow.sdh:SDH", LABELLED, "discrete codes that a classifier separates", "Shen et al., CVPR 2015"),
    "rsh": Method("shallow.rsh:RSH", LABELLED, "projections that keep ranking lists", "Wang et al., ICCV 2013"),
    "cghash": Method("shallow.cghash:CGHash", LABELLED, "weighted bits by column generation", "Li et al., ICML 2013"),
}


def hasher_class(name: str) -> type[Hasher]:
    if name not in METHODS:
        raise UsageError(f"there is no method '{name}'{did_you_mean(name, METHODS)}; see: hashlens methods")
    require(*["torch"] * METHODS[name].deep, "sklearn", why=name)
    module, _, attribute = METHODS[name].path.partition(":")
    return getattr(import_module(f"hashlens.hashers.{module}"), attribute)


def make_hasher(name: str, **params: Any) -> Hasher:
    """The method of that name, with these settings: `make_hasher("itq", n_bits=24)`."""
    return hasher_class(name)(**params)


def load(folder: str | Path, **given: Any) -> Hasher:
    """The hasher that `save` wrote to `folder`, of any method; `given` as in `Hasher.load`.

    Import your own class first: a class named in a file is never imported automatically.
    """
    try:
        config = ModelFolder(Path(folder)).config()
        method, path = (conform(config.get(name), TEXT, name) for name in ("method", "class"))
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder} is not a hashlens model (config.json is missing or damaged); pass the folder 'model' of a run"
        ) from error
    if method in METHODS and path.startswith("hashlens."):
        return hasher_class(method).load(folder, **given)
    from hashlens.hashers.base import Hasher, class_path

    found = {class_path(cls): cls for cls in _subclasses(Hasher)}
    if path not in found:
        raise UsageError(f"the model in {folder} is a {path}; import that class first, or call its load(folder)")
    return found[path].load(folder, **given)


def _subclasses(cls: type[Hasher]) -> Iterator[type[Hasher]]:
    for below in cls.__subclasses__():
        yield below
        yield from _subclasses(below)
