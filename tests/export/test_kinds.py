"""The kinds of node are those of deploy, with all that their constructors take."""

import inspect

from lbq.deploy.nodes import NODES
from lbq.export.kinds import KINDS


def test_every_node_has_a_kind():
    assert {kind.node for kind in KINDS.values()} == set(NODES)


def test_settings_and_tensors_are_the_arguments_of_the_class():
    for name, kind in KINDS.items():
        arguments = set(inspect.signature(kind.node).parameters) - {"args", "kwargs"}
        assert {*kind.settings, *kind.tensors} == arguments, name
