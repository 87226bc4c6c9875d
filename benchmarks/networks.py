"""A trained pipeline's neural network as a differentiable function, for methods that need one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from benchmarks.baselines.ppcef import encode
from lapace.schema import Schema

__all__ = ["network_of"]

Network: TypeAlias = Callable[[Tensor], Tensor]


def network_of(pipeline: Any, schema: Schema, frame: Any) -> Network:
    """The probabilities of a pipeline that ends in scikit-learn's `MLPClassifier`.

    The steps before it (scaling, one column per category, an indicator of missing values) are
    affine in PPCEF's coding; their matrix is found by regression on some rows, exactly.

    Args:
        pipeline: Fitted, of two labels.
        schema: The columns.
        frame: Rows the affine map is found on; enough of them that every category occurs.

    Returns:
        From rows in the coding of `baselines.ppcef.encode` to the probability of each label.
    """
    encoded = encode(schema, schema.cells(frame))
    inputs = np.asarray(pipeline[:-1].transform(frame))
    ones = np.column_stack([encoded, np.ones(len(encoded))])
    found = np.linalg.lstsq(ones, inputs, rcond=None)[0]  # (width + 1, inputs)
    if not np.allclose(ones @ found, inputs, atol=1e-6):
        raise ValueError("The steps before the network are not affine.")
    mlp = pipeline[-1]
    affine, shift = torch.as_tensor(found[:-1]), torch.as_tensor(found[-1])
    layers = [
        (torch.as_tensor(w), torch.as_tensor(b))
        for w, b in zip(mlp.coefs_, mlp.intercepts_, strict=True)
    ]

    def probability(x: Tensor) -> Tensor:
        hidden = x @ affine + shift
        for weights, bias in layers[:-1]:
            hidden = torch.relu(hidden @ weights + bias)
        weights, bias = layers[-1]
        one = torch.sigmoid(hidden @ weights + bias)  # (rows, 1): of the second label
        return torch.cat([1 - one, one], dim=1)

    return probability
