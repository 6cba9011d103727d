"""Train on your folder

One folder of images per class in; a model, its MAP and a picture of what it finds out. Without an argument it makes a
small folder of scikit-learn's digits, so that it runs in a minute.

    python examples/train_on_your_folder.py photos/
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_digits

from hashlens import DTSH, HammingIndex, Training, evaluate_codes, make_protocol, open_source


def digits_as_folder(folder: Path) -> Path:
    images, labels = load_digits(return_X_y=True)
    for row, (image, label) in enumerate(zip(images[:600], labels[:600], strict=True)):
        file = folder / str(label) / f"{row}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image.reshape(8, 8) * 15).astype(np.uint8)).resize((32, 32)).save(file)
    return folder


given = sys.argv[1:]
source = open_source(given[0] if given else digits_as_folder(Path("digit-photos")))
split = make_protocol(source)  # a tenth of each class are queries
settings = {} if given else {"backbone": "small-cnn", "training": Training(epochs=6)}  # quick, for tiny images

hasher = DTSH(48, second_bits=128, **settings)
hasher.fit(source.images[split.train], source.labels[split.train], progress=True)
database, queries = hasher.encode(source.images[split.database]), hasher.encode(source.images[split.query])
scores = evaluate_codes(queries, database, source.labels[split.query], source.labels[split.database])
print(f"MAP {scores['map']:.3f}, random {scores['map_random']:.3f}: {scores['definition']}")
hasher.save("my-model")  # hashlens search my-model ... or hashlens.load("my-model")

index = HammingIndex(database.n_bits, second_bits=128)
index.add(database)
distances, ids = index.search(queries[:5], k=8, by="both")  # the second code orders images at equal distance
figure = Figure(figsize=(9, 6), layout="constrained")
for q in range(5):
    shown = [split.query[q], *split.database[ids[q]]]
    second = np.unpackbits(queries.second.packed[q] ^ database.second.packed[ids[q]], axis=1).sum(axis=1)
    for place, row in enumerate(shown):
        axes = figure.add_subplot(5, 9, q * 9 + place + 1)
        axes.imshow(Image.open(source.images.open(row)).convert("RGB"))
        axes.set_title("query" if not place else f"{distances[q][place - 1]} + {second[place - 1]} bits", fontsize=7)
        axes.axis("off")
figure.savefig("train_on_your_folder.png", dpi=110)
