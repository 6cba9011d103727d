"""An ONNX model in, a function that runs it out; without torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def one_core_session(model: bytes | str) -> Callable[[np.ndarray], np.ndarray]:
    """The model, or the file it is in, as a function of one batch.

    It may be called from several threads at once: each call keeps one core busy, with a batch of its own.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors have no common class
        raise ValueError(f"the ONNX model cannot be read: {str(error).splitlines()[0]}") from error
    return lambda batch: session.run(None, {"input": batch})[0]
