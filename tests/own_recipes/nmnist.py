"""N-MNIST as a user reads it: recordings of a zip file as frames of counts."""

import os
import zipfile

import numpy as np
from torch.utils.data import Dataset

TIMESTEPS, SIDE = 4, 34
TRAIN, TEST = (int(count) for count in os.environ.get("NMNIST_SAMPLES", "1000,100").split(","))


class Nmnist(Dataset):
    """Frames ``[T, 2, 34, 34]`` with equally many events each."""

    def __init__(self, split):
        with zipfile.ZipFile(os.environ["LBQ_DATA"] + "/nmnist-1100/nmnist_small.zip") as archive:
            names = [name for name in archive.namelist() if name.startswith(f"{split}/")]
            names = sorted(name for name in names if name.endswith(".bin"))
            names = names[:: len(names) // (TRAIN if split == "Train" else TEST)]
            self.frames = np.stack([to_frames(archive.read(name)) for name in names])
        self.classes = [int(name.split("/")[-2]) for name in names]

    def __len__(self):
        return len(self.classes)

    def __getitem__(self, index):
        return self.frames[index], self.classes[index]


def to_frames(recording):
    """Sort 40-bit events (x, y, then polarity and time) into frames."""
    events = np.frombuffer(recording, np.uint8).reshape(-1, 5)
    polarity = events[:, 2] >> 7
    frames = np.zeros((TIMESTEPS, 2, SIDE, SIDE), np.float32)
    frame = np.arange(len(events)) * TIMESTEPS // len(events)
    np.add.at(frames, (frame, polarity, events[:, 1], events[:, 0]), 1)
    return frames
