"""Files in the layout of the authors' imagenet-vgg-f.mat, both generations, but of a narrow network."""

import numpy as np
from scipy.io import savemat

WIDTHS = (8, 12, 10, 9, 6, 16, 20)


def made_layers(generation="new", widths=WIDTHS, seed=0):
    """The 21 layers of the authors' file, as structs with the fields that MatConvNet writes, but narrower."""
    rng = np.random.default_rng(seed)

    def conv(name, size, inputs, outputs, stride=1, pad=0):
        kernel = rng.normal(0, np.sqrt(2 / (size * size * inputs)), (size, size, inputs, outputs)).astype(np.float32)
        bias = rng.normal(0, 1, (1, outputs)).astype(np.float32)
        if generation == "old":  # no cell, and one number where all four are the same
            fields = {"filters": kernel, "biases": bias, "stride": float(stride), "pad": float(pad)}
        else:
            cell = np.empty((1, 2), object)
            cell[0, 0], cell[0, 1] = kernel, bias
            fields = {"weights": cell, "stride": [stride, stride], "pad": [pad] * 4, "dilate": 1.0}
        return {"type": "conv", "name": name} | fields

    def pool(name, pad):
        sides = {"stride": [2.0, 2.0], "pad": pad} if generation == "new" else {"stride": 2.0, "pad": pad}
        return {"name": name, "type": "pool", "method": "max", "pool": [3.0, 3.0]} | sides

    def relu(number):
        return {"type": "relu", "name": f"relu{number}"}

    def norm(name, param):
        return {"type": "normalize" if generation == "new" else "lrn", "name": name, "param": param}

    c1, c2, c3, c4, c5, f6, f7 = widths
    return [
        conv("conv1", 11, 3, c1, stride=4), relu(1), norm("norm1", [5, 2, 1e-4, 0.75]), pool("pool1", [0, 1, 0, 1]),
        # other numbers than the real ones, to see that they are read
        conv("conv2", 5, c1, c2, pad=2), relu(2), norm("norm2", [3, 1.5, 2e-3, 0.5]), pool("pool2", 0),
        conv("conv3", 3, c2, c3, pad=1), relu(3), conv("conv4", 3, c3, c4, pad=1), relu(4),
        conv("conv5", 3, c4, c5, pad=1), relu(5), pool("pool5", [0, 0, 0, 0]),
        conv("fc6", 6, c5, f6), relu(6), conv("fc7", 1, f6, f7), relu(7),
        conv("fc8", 1, f7, 10), {"type": "softmax", "name": "prob"},
    ]  # fmt: skip


def made_average(seed=1):
    return np.random.default_rng(seed).uniform(90, 140, (224, 224, 3)).astype(np.float32)


def write_mat(path, layers, generation="new", average=None, compressed=True):
    cell = np.empty((1, len(layers)), object)
    cell[0] = layers
    normalization = {
        "averageImage": made_average() if average is None else average,
        "imageSize": [224.0, 224.0, 3.0],
        "interpolation": "bicubic",
    }
    classes = {"name": "n01440764", "description": "tench"}
    if generation == "new":
        content = {"layers": cell, "meta": {"normalization": normalization, "classes": classes}}
    else:
        content = {"layers": cell, "normalization": normalization, "classes": classes}
    savemat(path, content, do_compression=compressed)
    return path
