"""Bundles (``.lbq``): the file format of lowered networks."""

from lbq.formats.bundle.bundle import digest, load_network, save_network
from lbq.formats.bundle.container import RULES, BundleError

__all__ = ["RULES", "BundleError", "digest", "load_network", "save_network"]
