"""Data, where everything starts: verified images and labels in memory, and batches of them."""

from faudit.data.batches import augment, batches
from faudit.data.published import CIFAR10_STATS, CIFAR100_STATS, FASHION_STATS, load, reader
from faudit.data.sets import Dataset, Split, check_images, check_labels
from faudit.data.synthetic import student_teacher

__all__ = [
    "CIFAR10_STATS",
    "CIFAR100_STATS",
    "FASHION_STATS",
    "Dataset",
    "Split",
    "augment",
    "batches",
    "check_images",
    "check_labels",
    "load",
    "reader",
    "student_teacher",
]
