"""What the paper claims: the shapes of its claims, its numbers in prose, and what is disputed.

The tables themselves are in :mod:`lbq_paper.tables_as_printed`. A printed decimal is a
:class:`~decimal.Decimal` made from its own digits, so that 97.30 stays 97.30. Numbers that only
define notation or count the paper's own parts are not claims.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

Origin = Literal["own", "reproduced", "quoted"]
"""The authors' method, a method they trained again, or a number taken from the cited paper."""

StepRule = Literal["fixed", "learnable"]
"""How the step of a burst comes about."""

Basis = Literal["arithmetic", "read", "inferred"]
"""A dispute follows from the printed numbers, was read in public code, or is our inference."""


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
class RepeatedClaim:
    """A number that the prose repeats from the table entry it names."""

    value: Decimal
    entry: str
    sections: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DifferenceClaim:
    """A gain or gap in percentage points that the prose quotes: one table entry minus another."""

    value: Decimal
    minuend: str
    subtrahend: str
    sections: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TextClaim:
    """A number that stands in the prose or in a caption and in no table."""

    place: str
    statement: str
    value: Decimal
    unit: str


@dataclass(frozen=True, kw_only=True)
class Dispute:
    """A printed claim that does not hold, holds only under a condition, or looks doubtful."""

    place: str
    printed: str
    finding: str
    basis: Basis


_LBQ_C10 = "CIFAR-10/ResNet-20/LBQ/T="
_LBQ_C100 = "CIFAR-100/ResNet-20/LBQ/T="
_LBQ_IMAGENET = "ImageNet-1K/ResNet-34/LBQ/T="
_LBQ_DVS = "CIFAR10-DVS/ResNet-20/LBQ/T="
_LMHT_C10 = "CIFAR-10/ResNet-20/LM-HT (L=2)/T="
_LMHT_C100 = "CIFAR-100/ResNet-20/LM-HT (L=2)/T="
_LMHT_IMAGENET = "ImageNet-1K/ResNet-34/LM-HT (L=2)/T="
_LMHT_DVS = "CIFAR10-DVS/ResNet-20/LM-HT (L=2)/T="

REPEATED = tuple(
    RepeatedClaim(value=Decimal(value), entry=entry, sections=sections)
    for value, entry, sections in (
        ("97.28", f"{_LBQ_C10}1", ("Section 5.2.1",)),
        ("97.45", f"{_LBQ_C10}2", ("Abstract", "Section 1", "Section 5.2.1", "Section 6")),
        ("82.38", f"{_LBQ_C100}1", ("Section 5.2.1",)),
        ("82.82", f"{_LBQ_C100}2", ("Abstract", "Section 1", "Section 5.2.1")),
        ("78.74", f"{_LMHT_C100}1", ("Section 5.2.1",)),
        ("67.50", "ImageNet-1K/ResNet-18/LBQ/T=1", ("Section 5.2.2",)),
        ("68.23", "ImageNet-1K/ResNet-18/LBQ/T=2", ("Section 5.2.2",)),
        ("72.45", f"{_LBQ_IMAGENET}1", ("Section 5.2.2",)),
        ("73.67", f"{_LBQ_IMAGENET}2", ("Abstract", "Section 1", "Section 5.2.2")),
        ("80.50", f"{_LBQ_DVS}10", ("Section 5.3",)),
        ("80.50", "CIFAR10-DVS/VGG-13/IMLIF/T=40", ("Section 5.3",)),
        ("98.28", "DVS128-Gesture/ResNet-19/LBQ/T=16", ("Section 5.3",)),
        ("97.52", "ablation/ANN", ("Abstract", "Section 5.4", "Section 6")),
        ("94.11", "ablation/Ternary Spike/fixed", ("Section 5.4",)),
        ("95.55", "ablation/Ternary Spike/learnable", ("Section 5.4",)),
        ("96.44", "ablation/V1/fixed", ("Section 5.4",)),
        ("96.74", "ablation/V2/fixed", ("Section 5.4",)),
        ("97.30", "ablation/V3/learnable", ("Section 5.4", "Section 5.5")),
        ("97.45", "ablation/LBQ/learnable", ("Section 5.4", "Section 5.5")),
        ("25.41", "accumulation/LBQ (2)/reduction", ("Section 5.6",)),
        ("1589.90", "accumulation/LBQ (5)/unary", ("Section 5.6",)),
        ("945.69", "accumulation/LBQ (5)/bit-sparse", ("Section 5.6",)),
        (
            "40.52",
            "accumulation/LBQ (5)/reduction",
            ("Abstract", "Section 1", "Section 5.6", "Section 6"),
        ),
        ("2828.76", "accumulation/LBQ (20)/unary", ("Section 5.6",)),
        ("1163.20", "accumulation/LBQ (20)/bit-sparse", ("Section 5.6",)),
        ("58.88", "accumulation/LBQ (20)/reduction", ("Section 5.6",)),
        ("97.52", "energy/ANN/accuracy", ("Section 5.6",)),
        ("11.90", "energy/ANN/mj", ("Section 5.6",)),
        ("96.73", "energy/LBQ (2)/accuracy", ("Section 5.6",)),
        ("0.50", "energy/LBQ (2)/mj", ("Section 5.6",)),
        ("97.45", "energy/LBQ (5)/accuracy", ("Section 5.6",)),
        ("0.87", "energy/LBQ (5)/mj", ("Section 5.6",)),
        ("13.72", "energy/LBQ (5)/ratio", ("Section 5.6",)),
    )
)

DIFFERENCES = tuple(
    DifferenceClaim(value=Decimal(value), minuend=minuend, subtrahend=subtrahend, sections=sections)
    for value, minuend, subtrahend, sections in (
        ("0.07", "ablation/ANN", f"{_LBQ_C10}2", ("Abstract", "Section 6")),
        ("1.35", f"{_LBQ_C10}1", f"{_LMHT_C10}1", ("Section 5.2.1",)),
        ("1.05", f"{_LBQ_C10}2", f"{_LMHT_C10}2", ("Section 1", "Section 5.2.1")),
        ("1.36", f"{_LBQ_C10}4", f"{_LMHT_C10}4", ("Section 5.2.1",)),
        ("3.64", f"{_LBQ_C100}1", f"{_LMHT_C100}1", ("Section 5.2.1",)),
        ("2.86", f"{_LBQ_C100}2", f"{_LMHT_C100}2", ("Section 1", "Section 5.2.1")),
        ("2.04", f"{_LBQ_C100}4", f"{_LMHT_C100}4", ("Section 5.2.1",)),
        ("2.77", f"{_LBQ_IMAGENET}2", f"{_LMHT_IMAGENET}2", ("Section 5.2.2",)),
        (
            "0.71",
            f"{_LBQ_IMAGENET}2",
            "ImageNet-1K/ResNet-34/Adaptive Calibration/T=8",
            ("Section 5.2.2",),
        ),
        ("2.30", f"{_LBQ_DVS}10", f"{_LMHT_DVS}10", ("Section 5.3",)),
        ("0.86", "ablation/V3/learnable", "ablation/V1/fixed", ("Section 5.4",)),
        ("0.71", "ablation/LBQ/learnable", "ablation/V2/fixed", ("Section 5.4",)),
        ("2.33", "ablation/V1/fixed", "ablation/Ternary Spike/fixed", ("Section 5.4",)),
    )
)

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

DISPUTED: tuple[Dispute, ...] = (
    Dispute(
        place="Table 4, DVS128-Gesture, LBQ",
        printed="98.28",
        finding="no k of 288 test samples rounds to it (283 give 98.26), nor any k of 264",
        basis="arithmetic",
    ),
    Dispute(
        place="Table 7, floating-point MACs of every SNN",
        printed="3.54",
        finding="the stem must run once per image; per timestep the ratios 13.72 and 135.38 "
        "become 13.47 and 114.23",
        basis="arithmetic",
    ),
    Dispute(
        place="Table 7, energy ratio",
        printed="13.72",
        finding="hangs on float32 for both sides; an int8 ANN needs 0.60 mJ, less than the 0.87 mJ "
        "of LBQ (5) in float32",
        basis="arithmetic",
    ),
    Dispute(
        place="Tables 6 and 7, Binary",
        printed="79.59",
        finding="1.5 % of all synapse-timesteps, against 10 to 23 % for LBQ and 33 % for Ternary; "
        "consistent, but too rare to serve as a target",
        basis="arithmetic",
    ),
    Dispute(
        place="Table 2, gain over LM-HT (L=2)",
        printed="1.05",
        finding="compares 5 levels with 2; LBQ (2) of Table 7 gains 0.33",
        basis="arithmetic",
    ),
    Dispute(
        place="Table 5, V3 against LBQ",
        printed="97.30 to 97.45",
        finding="0.15 points, and the 0.07 to the ANN, lie within one standard error (0.16) of an "
        "accuracy over 10,000 images; no seeds or spread are given",
        basis="arithmetic",
    ),
    Dispute(
        place="Section 4, exactness of the inference path",
        printed="exact",
        finding="exact in algebra only; in float32 the floor of (k * step) / step can miss k",
        basis="arithmetic",
    ),
    Dispute(
        place="Table 7, Ternary",
        printed="94.11",
        finding="the fixed-step row of Table 5; the learnable one reaches 95.55 and has no energy",
        basis="arithmetic",
    ),
    Dispute(
        place="Table 2, MLF, ResNet-19",
        printed="94.25",
        finding="the public code of MLF has depths 14, 20, 32, 44 and 68, but no 19",
        basis="read",
    ),
    Dispute(
        place="Table 2, CIFAR-100, GLIF and TET",
        printed="71.87, 72.57 and 75.48, 77.05",
        finding="the rows look swapped: the public code of GLIF states 75.60 and 77.22",
        basis="inferred",
    ),
    Dispute(
        place="Tables 2 and 4, quoted ResNet-20 rows",
        printed="ResNet-20",
        finding="very probably another net of 216 M MACs; the counts of Table 7 need 2587 M",
        basis="inferred",
    ),
    Dispute(
        place="Section 5, source of the ResNet designs",
        printed="citation 9556508",
        finding="most likely DIET-SNN, whose ResNet-20 has 216 M MACs and contradicts Table 7",
        basis="inferred",
    ),
)
