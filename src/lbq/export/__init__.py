"""The doors out: a lowered network leaves as a file that others can read."""

from lbq.export.bundle import digest, load, save
from lbq.export.rules import RULES, BundleError

__all__ = ["RULES", "BundleError", "digest", "load", "save"]
