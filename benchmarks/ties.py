"""What the second code gives on birds100: MAP and precision at 10 by the first code, by both and by the second alone.

    DATA=folder python -m benchmarks.ties

DTSH on fixed features of EfficientNet-Lite0, 48 bits, with a second code of 128 bits. `seen` is the protocol split; for
`unseen` the model learns from the first 80 species and searches among images of the other 20, each of which is a query.
No setting was chosen by these figures.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from hashlens import DTSH, Labels, evaluate_codes, make_protocol, open_source
from hashlens.features.extractor import image_features
from hashlens.files import write_json

OUT = Path(__file__).parent / "results" / "ties.json"
LEARNED = 80  # classes


def scores(query: Any, database: Any, asked: Labels, searched: Labels) -> dict[str, float]:
    found = evaluate_codes(query, database, asked, searched, precision_at=[10])
    alone = evaluate_codes(query.second, database.second, asked, searched, precision_at=[10])
    return {
        **{name: found[name] for name in ("map", "map_tie_aware", "map_both", "map_second")},
        "precision_first": found["precision_at_10"],
        "precision_both": found["precision_both_at_10"],
        "precision_second": alone["precision_at_10"],
        "n_query": len(query),
        "n_database": len(database),
    }


def main() -> None:
    source = open_source(str(Path(os.environ["DATA"]) / "birds100"))
    X = np.asarray(image_features(source.images, "efficientnet-lite0"))
    labels, protocol = source.labels, make_protocol(source, "split", 0)
    assert labels is not None
    result: dict[str, Any] = {"data": "birds100", "method": "dtsh", "n_bits": 48, "second_bits": 128}

    hasher = DTSH(48, second_bits=128).fit(X[protocol.train], labels[protocol.train])
    query, database = hasher.encode(X[protocol.query]), hasher.encode(X[protocol.database])
    result["seen"] = scores(query, database, labels[protocol.query], labels[protocol.database])
    print(result["seen"], flush=True)

    old, new = (np.flatnonzero(some) for some in (labels.values < LEARNED, labels.values >= LEARNED))
    hasher = DTSH(48, second_bits=128).fit(X[old], labels[old])
    asked = np.arange(len(new)) % 5 == 0
    codes = hasher.encode(X[new])
    result["unseen"] = scores(codes[asked], codes[~asked], labels[new[asked]], labels[new[~asked]])
    print(result["unseen"])
    write_json(OUT, result)


if __name__ == "__main__":
    main()
