"""Check what a spiking network really does: :func:`lbq.audit`."""

from lbq.auditing.audit import Audit, audit
from lbq.auditing.finding import Finding, Verdict

__all__ = ["Audit", "Finding", "Verdict", "audit"]
