"""TensorBoardCallback for TensorBoard: every number of every record, by event and name."""

from pathlib import Path

from lbq.errors import MissingExtraError
from lbq.train.metrics import Record


class TensorBoardCallback:
    """Writes the records of a run as TensorBoard scalars.

    Args:
        folder: where to.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter  # noqa: PLC0415 -- an extra
        except ImportError as error:
            raise MissingExtraError(
                "charts need the tensorboard package: pip install 'lbq[train]'"
            ) from error
        self._writer = SummaryWriter(str(folder))

    def __call__(self, record: Record) -> None:
        """Add a point to the chart of every number in the record."""
        for name, value in record.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if is_number and name != "step":
                self._writer.add_scalar(f"{record['event']}/{name}", value, record["step"])
        self._writer.flush()
