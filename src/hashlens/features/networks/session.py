"""An ONNX model in, a function that runs it out; without torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np


def one_core_session(model: bytes | str) -> Callable[[np.ndarray], np.ndarray]:
    """The model, given as bytes or as a file name, as a function of one batch.

    It may be called from several threads at once; each call keeps one core busy.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors have no common class
        what = Path(model).name if isinstance(model, str) else "the ONNX model"
        raise ValueError(f"{what} is unreadable: {str(error).splitlines()[0]}") from error
    return lambda batch: session.run(None, {"input": batch})[0]
