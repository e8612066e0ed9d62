"""The checkout that this package lies in: it holds the records and the pages."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
