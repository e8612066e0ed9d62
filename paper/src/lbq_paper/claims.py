"""The paper's claims: the numbers of its tables and of its text, digit by digit.

A printed decimal is a :class:`~decimal.Decimal` of the printed digits, so that 97.30 stays 97.30.
Claims that do not hold, or hold under a condition, are discussed in docs/paper-notes.md.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

Origin = Literal["own", "reproduced", "quoted"]
"""The authors' method, a method they trained again, or a number taken from the cited paper."""

StepRule = Literal["fixed", "learnable"]
"""Origin of a burst's step."""


@dataclass(frozen=True, kw_only=True)
class HyperparameterClaim:
    """One column of Table 1. ``None`` is printed there as "None" or as a dash."""

    datasets: tuple[str, ...]
    max_level: int
    timesteps: tuple[int, ...]
    epochs: int
    resolution: int
    """Side of the square input in pixels."""
    batch_size: int
    optimizer: str
    base_lr: Decimal
    lr_decay: str
    warmup_epochs: int | None
    weight_decay: Decimal
    has_autoaugment: bool | None
    cutout_lengths: tuple[int, ...] | None
    """One length in pixels per dataset of the column."""
    mixup: Decimal | None
    cutmix: Decimal | None
    mixup_off_epoch: int | None
    label_smoothing: Decimal


@dataclass(frozen=True, kw_only=True)
class AccuracyClaim:
    """One accuracy of Tables 2 to 4, in percent. An empty entry of the table is no claim."""

    table: int
    dataset: str
    method: str
    architecture: str
    timesteps: int
    accuracy: Decimal
    origin: Origin

    @property
    def entry(self) -> str:
        """The address under which the prose refers to this number."""
        return f"{self.dataset}/{self.architecture}/{self.method}/T={self.timesteps}"


@dataclass(frozen=True, kw_only=True)
class AblationClaim:
    """One row of Table 5: CIFAR-10, the burst rows with levels up to 5."""

    method: str
    architecture: str
    levels: tuple[int, int] | None
    """Lowest and highest output, or ``None`` where the output is real-valued."""
    step: StepRule | None
    surrogate: str | None
    timesteps: int
    accuracy: Decimal

    @property
    def entry(self) -> str:
        """The address under which the prose refers to this number."""
        return f"ablation/{self.method}/{self.step}" if self.step else f"ablation/{self.method}"


@dataclass(frozen=True, kw_only=True)
class CostClaim:
    """A row of Table 6 or 7."""

    method: str
    max_level: int | None

    @property
    def row(self) -> str:
        """The row as the tables name it: ``LBQ (5)``."""
        return self.method if self.max_level is None else f"{self.method} ({self.max_level})"


@dataclass(frozen=True, kw_only=True)
class AccumulationClaim(CostClaim):
    """One row of Table 6: accumulations per image in millions, summed over two timesteps."""

    unary_acs_m: Decimal
    bit_sparse_acs_m: Decimal
    reduction_percent: Decimal


@dataclass(frozen=True, kw_only=True)
class EnergyClaim(CostClaim):
    """One row of Table 7: operations per image in millions and the energy modelled from them."""

    accuracy: Decimal
    fp_macs_m: Decimal
    acs_m: Decimal | None
    plane_formations_m: Decimal | None
    energy_mj: Decimal
    ratio: Decimal | None
    """Energy of the ANN over this energy."""


@dataclass(frozen=True, kw_only=True)
class TextClaim:
    """A number in the prose or in a caption that is in no table."""

    place: str
    statement: str
    value: Decimal
    unit: str


TEXT = tuple(
    TextClaim(place=place, statement=statement, value=Decimal(value), unit=unit)
    for place, statement, value, unit in (
        ("Figure 2", "accumulations of a level of 5, unary", "5", "per synapse"),
        ("Figure 2", "accumulations of a level of 5, bit-sparse", "2", "per synapse"),
        ("Figure 3", "max level of the drawn surrogate", "5", "level"),
        ("Figure 3", "tail of the drawn surrogate", "0.5", "gradient"),
        ("Section 4.3", "width of a plane formation", "32", "bit"),
        ("Section 5.1", "SGD momentum", "0.9", "share"),
        ("Section 5.1", "CPU cores", "16", "cores"),
        ("Section 5.1", "GPUs", "8", "devices"),
        ("Section 5.5", "smallest learned step, LBQ", "0.036", "membrane"),
        ("Section 5.5", "largest learned step, LBQ", "0.461", "membrane"),
        ("Section 5.5", "coefficient of variation of the step, LBQ", "0.74", "share"),
        ("Section 5.5", "coefficient of variation of the step, V3", "0.31", "share"),
        ("Section 5.5", "active ratio, LBQ", "0.180", "share"),
        ("Section 5.5", "active ratio, V3", "0.236", "share"),
        ("Section 5.5", "normalised entropy, LBQ", "0.753", "share"),
        ("Section 5.5", "normalised entropy, V3", "0.899", "share"),
        ("Section 5.5", "active ratio, V1", "0.173", "share"),
        ("Section 5.5", "active ratio, V2", "0.100", "share"),
        ("Section 5.5", "normalised entropy, V1", "0.751", "share"),
        ("Section 5.5", "normalised entropy, V2", "0.557", "share"),
        ("Section 5.5", "P(k=1 | k>0), V1", "53.0", "%"),
        ("Section 5.5", "P(k=1 | k>0), V2", "69.7", "%"),
        ("Section 5.5", "P(k=1 | k>0), V3", "38.2", "%"),
        ("Section 5.5", "P(k=1 | k>0), LBQ", "49.8", "%"),
        ("Section 5.6", "energy of a MAC, 32-bit float", "4.6", "pJ"),
        ("Section 5.6", "energy of an accumulation", "0.9", "pJ"),
        ("Section 5.6", "energy of a plane formation, 32-bit integer add", "0.1", "pJ"),
        ("Section 5.6", "process of the energy model", "45", "nm"),
    )
)


COST_TIMESTEPS = 2
"""Timesteps of every SNN in Tables 6 and 7."""

HYPERPARAMETERS: tuple[HyperparameterClaim, ...] = (
    HyperparameterClaim(
        datasets=("ImageNet-1K",),
        max_level=5,
        timesteps=(1, 2),
        epochs=320,
        resolution=224,
        batch_size=64,
        optimizer="SGD",
        base_lr=Decimal("1e-1"),
        lr_decay="cosine",
        warmup_epochs=None,
        weight_decay=Decimal("0"),
        has_autoaugment=True,
        cutout_lengths=None,
        mixup=Decimal("0.8"),
        cutmix=Decimal("1.0"),
        mixup_off_epoch=None,
        label_smoothing=Decimal("0.1"),
    ),
    HyperparameterClaim(
        datasets=("CIFAR-10", "CIFAR-100"),
        max_level=5,
        timesteps=(1, 2, 4),
        epochs=300,
        resolution=32,
        batch_size=64,
        optimizer="SGD",
        base_lr=Decimal("2.5e-2"),
        lr_decay="cosine",
        warmup_epochs=None,
        weight_decay=Decimal("5e-4"),
        has_autoaugment=True,
        cutout_lengths=(16, 12),
        mixup=None,
        cutmix=None,
        mixup_off_epoch=None,
        label_smoothing=Decimal("0.0"),
    ),
    *(
        HyperparameterClaim(
            datasets=(dataset,),
            max_level=5,
            timesteps=(timesteps,),
            epochs=300,
            resolution=128,
            batch_size=64,
            optimizer="AdamW",
            base_lr=Decimal("1e-3"),
            lr_decay="cosine",
            warmup_epochs=10,
            weight_decay=Decimal("0.06"),
            has_autoaugment=None,
            cutout_lengths=None,
            mixup=Decimal("0.5"),
            cutmix=Decimal("0.0"),
            mixup_off_epoch=None,
            label_smoothing=Decimal("0.1"),
        )
        for dataset, timesteps in (("CIFAR10-DVS", 10), ("DVS128-Gesture", 16))
    ),
)


def _row(
    table: int,
    dataset: str,
    method: str,
    architecture: str,
    accuracies: dict[int, str],
    origin: Origin = "quoted",
) -> tuple[AccuracyClaim, ...]:
    """Spell out one printed row, ``accuracies`` by timesteps."""
    return tuple(
        AccuracyClaim(
            table=table,
            dataset=dataset,
            method=method,
            architecture=architecture,
            timesteps=timesteps,
            accuracy=Decimal(accuracy),
            origin=origin,
        )
        for timesteps, accuracy in accuracies.items()
    )


_C10, _C100, _IMAGENET = "CIFAR-10", "CIFAR-100", "ImageNet-1K"
_DVS, _GESTURE = "CIFAR10-DVS", "DVS128-Gesture"

ACCURACY: tuple[AccuracyClaim, ...] = (
    *_row(2, _C10, "RMP-SNN", "ResNet-20", {2048: "91.36"}),
    *_row(2, _C10, "Burst+LIPooling", "ResNet-20", {64: "96.49"}),
    *_row(2, _C10, "GLIF", "ResNet-19", {2: "94.44", 4: "94.85"}),
    *_row(2, _C10, "TET", "ResNet-19", {2: "94.16", 4: "94.44"}),
    *_row(2, _C10, "RecDis-SNN", "ResNet-19", {2: "93.64", 4: "95.53"}),
    *_row(2, _C10, "MLF", "ResNet-19", {4: "94.25"}),
    *_row(2, _C10, "LT-SNN", "ResNet-19", {2: "94.19"}),
    *_row(2, _C10, "Ternary Spike", "ResNet-20", {2: "94.48", 4: "94.96"}),
    *_row(2, _C10, "DA-LIF", "ResNet-20", {1: "92.89", 2: "93.65", 4: "94.16"}),
    *_row(2, _C10, "FSTA-SNN", "ResNet-20", {1: "93.01", 2: "94.18", 4: "94.72"}),
    *_row(2, _C10, "STAA-SNN", "ResNet-20", {1: "93.08", 2: "94.35", 4: "95.03"}),
    *_row(2, _C10, "LM-HT (L=2)", "ResNet-20", {1: "95.93", 2: "96.40", 4: "96.13"}, "reproduced"),
    *_row(2, _C10, "LBQ", "ResNet-20", {1: "97.28", 2: "97.45", 4: "97.49"}, "own"),
    *_row(2, _C100, "RMP-SNN", "ResNet-20", {2048: "67.82"}),
    *_row(2, _C100, "Burst+LIPooling", "ResNet-20", {256: "80.57"}),
    *_row(2, _C100, "GLIF", "ResNet-19", {2: "71.87", 4: "72.57"}),
    *_row(2, _C100, "TET", "ResNet-19", {2: "75.48", 4: "77.05"}),
    *_row(2, _C100, "RecDis-SNN", "ResNet-19", {2: "76.64", 4: "78.53"}),
    *_row(2, _C100, "LT-SNN", "ResNet-19", {2: "72.78"}),
    *_row(2, _C100, "Ternary Spike", "ResNet-20", {2: "73.41", 4: "74.02"}),
    *_row(2, _C100, "DA-LIF", "ResNet-20", {1: "69.37", 2: "72.07", 4: "73.25"}),
    *_row(2, _C100, "FSTA-SNN", "ResNet-20", {1: "69.64", 2: "72.15", 4: "73.44"}),
    *_row(2, _C100, "STAA-SNN", "ResNet-20", {1: "70.14", 2: "73.20", 4: "75.10"}),
    *_row(2, _C100, "LM-HT (L=2)", "ResNet-20", {1: "78.74", 2: "79.96", 4: "80.67"}, "reproduced"),
    *_row(2, _C100, "LBQ", "ResNet-20", {1: "82.38", 2: "82.82", 4: "82.71"}, "own"),
    *_row(3, _IMAGENET, "Burst+LIPooling", "VGG-16", {256: "74.25"}),
    *_row(3, _IMAGENET, "Hybrid Training", "ResNet-34", {250: "61.48"}),
    *_row(3, _IMAGENET, "RMP-SNN", "ResNet-34", {4096: "68.89"}),
    *_row(3, _IMAGENET, "Adaptive Calibration", "ResNet-34", {8: "72.96"}),
    *_row(3, _IMAGENET, "SEW", "ResNet-18", {4: "63.18"}),
    *_row(3, _IMAGENET, "Real Spike", "ResNet-18", {4: "63.68"}),
    *_row(3, _IMAGENET, "RMP-Loss", "ResNet-18", {4: "63.03"}),
    *_row(3, _IMAGENET, "MPBN", "ResNet-18", {4: "63.14"}),
    *_row(3, _IMAGENET, "LBQ", "ResNet-18", {1: "67.50", 2: "68.23"}, "own"),
    *_row(3, _IMAGENET, "GLIF", "ResNet-34", {4: "67.52"}),
    *_row(3, _IMAGENET, "RecDis-SNN", "ResNet-34", {4: "67.33"}),
    *_row(3, _IMAGENET, "LT-SNN", "ResNet-34", {4: "68.46"}),
    *_row(3, _IMAGENET, "Ternary Spike", "ResNet-34", {4: "70.74"}),
    *_row(3, _IMAGENET, "FSTA-SNN", "ResNet-34", {4: "70.23"}),
    *_row(3, _IMAGENET, "LM-HT (L=2)", "ResNet-34", {2: "70.90"}),
    *_row(3, _IMAGENET, "LBQ", "ResNet-34", {1: "72.45", 2: "73.67"}, "own"),
    *_row(4, _DVS, "SEW", "SEW-ResNet", {16: "74.40"}),
    *_row(4, _DVS, "GLIF", "7B-wideNet", {16: "78.10"}),
    *_row(4, _DVS, "RecDis-SNN", "ResNet-19", {10: "72.42"}),
    *_row(4, _DVS, "MLF", "ResNet-14", {10: "70.36"}),
    *_row(4, _DVS, "MPBN", "ResNet-20", {10: "78.70"}),
    *_row(4, _DVS, "IMLIF", "VGG-13", {40: "80.50"}),
    *_row(4, _DVS, "LT-SNN", "VGG-9", {10: "79.10"}),
    *_row(4, _DVS, "Ternary Spike", "ResNet-20", {10: "79.80"}),
    *_row(4, _DVS, "LM-HT (L=2)", "ResNet-20", {10: "78.20"}, "reproduced"),
    *_row(4, _DVS, "LBQ", "ResNet-20", {10: "80.50"}, "own"),
    *_row(4, _GESTURE, "STBP-tdBN", "ResNet-17", {40: "96.87"}),
    *_row(4, _GESTURE, "IMLIF", "ResNet-19", {40: "97.33"}),
    *_row(4, _GESTURE, "PLIF", "PLIFNet", {20: "97.57"}),
    *_row(4, _GESTURE, "MLF", "ResNet-20", {40: "97.29"}),
    *_row(4, _GESTURE, "MA-SNN", "5-layer SCNN", {20: "98.23"}),
    *_row(4, _GESTURE, "ASA-SNN", "5-layer SCNN", {20: "97.70"}),
    *_row(4, _GESTURE, "SEW", "7B-wideNet", {16: "97.92"}),
    *_row(4, _GESTURE, "LBQ", "ResNet-19", {16: "98.28"}, "own"),
)

_AblationRow = tuple[str, tuple[int, int] | None, StepRule | None, str | None, int, str]
_ABLATION_ROWS: tuple[_AblationRow, ...] = (
    ("ANN", None, None, None, 1, "97.52"),
    ("Binary LIF", (0, 1), None, "Arctan", 2, "91.81"),
    ("Ternary Spike", (-1, 1), "fixed", "Box-ET", 2, "94.11"),
    ("Ternary Spike", (-1, 1), "learnable", "Box-ET", 2, "95.55"),
    ("V1", (0, 5), "fixed", "Box-ET", 2, "96.44"),
    ("V2", (0, 5), "fixed", "ReLSG-ET", 2, "96.74"),
    ("V3", (0, 5), "learnable", "Box-ET", 2, "97.30"),
    ("LBQ", (0, 5), "learnable", "ReLSG-ET", 2, "97.45"),
)

ABLATION: tuple[AblationClaim, ...] = tuple(
    AblationClaim(
        method=method,
        architecture="ResNet-20",
        levels=levels,
        step=step,
        surrogate=surrogate,
        timesteps=timesteps,
        accuracy=Decimal(accuracy),
    )
    for method, levels, step, surrogate, timesteps, accuracy in _ABLATION_ROWS
)

ACCUMULATIONS: tuple[AccumulationClaim, ...] = tuple(
    AccumulationClaim(
        method=method,
        max_level=max_level,
        unary_acs_m=Decimal(unary),
        bit_sparse_acs_m=Decimal(bit_sparse),
        reduction_percent=Decimal(reduction),
    )
    for method, max_level, unary, bit_sparse, reduction in (
        ("Binary", None, "79.59", "79.59", "0.00"),
        ("Ternary", None, "1693.84", "1693.84", "0.00"),
        ("LBQ", 2, "727.58", "542.72", "25.41"),
        ("LBQ", 5, "1589.90", "945.69", "40.52"),
        ("LBQ", 10, "2577.73", "1203.80", "53.30"),
        ("LBQ", 20, "2828.76", "1163.20", "58.88"),
    )
)


def _printed(number: str | None) -> Decimal | None:
    return None if number is None else Decimal(number)


ENERGIES: tuple[EnergyClaim, ...] = tuple(
    EnergyClaim(
        method=method,
        max_level=max_level,
        accuracy=Decimal(accuracy),
        fp_macs_m=Decimal(fp_macs),
        acs_m=_printed(acs),
        plane_formations_m=_printed(formations),
        energy_mj=Decimal(energy),
        ratio=_printed(ratio),
    )
    for method, max_level, accuracy, fp_macs, acs, formations, energy, ratio in (
        ("ANN", None, "97.52", "2587.24", None, None, "11.90", None),
        ("Binary", None, "91.81", "3.54", "79.59", None, "0.09", "135.38"),
        ("Ternary", None, "94.11", "3.54", "1693.84", None, "1.54", "7.72"),
        ("LBQ", 2, "96.73", "3.54", "542.72", "0.385", "0.50", "23.58"),
        ("LBQ", 5, "97.45", "3.54", "945.69", "0.695", "0.87", "13.72"),
        ("LBQ", 10, "97.44", "3.54", "1203.80", "0.938", "1.10", "10.82"),
        ("LBQ", 20, "97.35", "3.54", "1163.20", "0.983", "1.06", "11.19"),
    )
)


def printed_entries() -> dict[str, Decimal]:
    """Collect every number the prose refers to under the address it uses."""
    entries = {claim.entry: claim.accuracy for claim in (*ACCURACY, *ABLATION)}
    for claim in ACCUMULATIONS:
        row = f"accumulation/{claim.row}"
        entries[f"{row}/unary"] = claim.unary_acs_m
        entries[f"{row}/bit-sparse"] = claim.bit_sparse_acs_m
        entries[f"{row}/reduction"] = claim.reduction_percent
    for claim in ENERGIES:
        row = f"energy/{claim.row}"
        entries[f"{row}/accuracy"] = claim.accuracy
        entries[f"{row}/mj"] = claim.energy_mj
        if claim.ratio is not None:
            entries[f"{row}/ratio"] = claim.ratio
    return entries
