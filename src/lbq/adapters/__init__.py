"""Adapters for other libraries.

Every module imports its library when it is itself imported, so ``lbq`` needs none of them:
:mod:`lbq.adapters.spikingjelly`, :mod:`lbq.adapters.snntorch`, :mod:`lbq.adapters.neurobench`,
:mod:`lbq.adapters.brevitas`, :mod:`lbq.adapters.hub`, and for a plain ANN :func:`lbq.from_ann`.
"""
