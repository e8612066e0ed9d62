"""CIFAR-10 as a user reads it: a torch Dataset over Hugging Face rows, with plain transforms."""

import os

import numpy as np
import torch
from datasets import load_dataset
from torch.utils.data import Dataset

TRAIN, TEST = (int(count) for count in os.environ.get("CIFAR10_SAMPLES", "2000,500").split(","))
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
STD = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)


class Cifar10(Dataset):
    """Normalised images; training images are flipped and shifted by plain torch randomness."""

    def __init__(self, split):
        rows = load_dataset(os.environ["LBQ_DATA"] + "/cifar10", split=split)
        rows = rows.select(range(TRAIN if split == "train" else TEST))
        self.images = torch.stack([torch.from_numpy(np.array(image)) for image in rows["img"]])
        self.classes = rows["label"][:]
        self.fingerprint = rows._fingerprint
        self.augment = split == "train"

    def __len__(self):
        return len(self.classes)

    def __getitem__(self, index):
        image = (self.images[index].permute(2, 0, 1) / 255 - MEAN) / STD
        if self.augment:
            image = image.flip(-1) if torch.rand(()) < 0.5 else image
            image = image.roll(tuple(torch.randint(-3, 4, (2,)).tolist()), (-2, -1))
        return image, self.classes[index]
