"""Data sets: the built-in ones return a pair (train, test); arrays, sequences and iterables become one data set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ._dp import (
    Dataset,
    cifar10,
    cifar100,
    digits,
    fashion_mnist,
    from_arrays,
    image_folder,
    image_list,
    image_shards,
    image_targets,
    mnist,
    split_off,
    synthetic,
    with_classes,
)


class _Sequence(Dataset):
    def __init__(self, source: Any, labels: Sequence[int], **description: Any) -> None:
        super().__init__(**description)
        self._source = source
        self._labels = [int(label) for label in labels]

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Any:
        return self._source[index]

    def label(self, index: int) -> int:
        return self._labels[index]


def from_sequence(source: Any, labels: Sequence[int] | None = None, *, classes: int | None = None,
                  class_names: Sequence[str] | None = None, mean: Sequence[float] | None = None,
                  std: Sequence[float] | None = None) -> Dataset:
    """A data set of an object with __len__() and __getitem__(), which loader threads call.

    An item is an image, uint8 (C, H, W), and its class number. Without `labels` the attribute `targets` or `labels` of
    the object is used, as torchvision's data sets have it, or else each item is read once.
    """
    for name in ("targets", "labels"):
        if labels is None:
            labels = getattr(source, name, None)
    if labels is None:
        labels = [source[index][1] for index in range(len(source))]
    labels = [int(label) for label in labels]
    names = list(class_names) if class_names is not None else list(getattr(source, "classes", []))
    shape = tuple(source[0][0].shape)
    return _Sequence(source, labels, image_shape=shape, classes=classes or len(names) or max(labels) + 1,
                     class_names=names or None, mean=mean, std=std)


def from_iterable(samples: Iterable[Any], **description: Any) -> Dataset:
    """A data set of pairs (image, class number), which are copied into arrays. `description`: as of from_arrays()."""
    import numpy as np

    images, labels = zip(*samples, strict=True)
    return from_arrays(np.stack([np.asarray(image) for image in images]), np.asarray(labels, np.int32), **description)


def as_dataset(data: Any) -> Dataset:
    """A Dataset as it is; a pair of arrays (images, labels) by from_arrays(); another object by from_sequence()."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, (tuple, list)) and len(data) == 2 and getattr(data[0], "ndim", 0) == 4:
        return from_arrays(data[0], data[1])
    return from_sequence(data)


__all__ = sorted(name for name in globals()
                 if not name.startswith("_") and name not in ("annotations", "Any", "Iterable", "Sequence", "Dataset"))
