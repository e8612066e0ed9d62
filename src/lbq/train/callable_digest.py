"""The SHA-256 of a callable's computation, as far as Python can see it.

Equal code gives equal digests in any process: names of files, line numbers, addresses and
docstrings are not part of it. Code of installed packages is compared by name.
"""

import functools
import hashlib
import inspect
import sys
import sysconfig
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lbq.config_io import Document, digest
from lbq.train.provenance import structure_digest

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice)
_NAMED = (torch.dtype, torch.device, np.dtype)
_CODE = (types.FunctionType, staticmethod, classmethod, property, type)
_BASE_ATTRIBUTES = frozenset(vars(nn.Module())) - {"_parameters", "_buffers", "_modules"}
"""Hooks and flags that every module has."""


def callable_digest(function: Any) -> str | None:
    """Return the SHA-256 of the code and the settings of a callable; None if it has no code.

    It covers bytecode, constants, defaults, captured values and, for objects, class and attributes;
    helpers and constants of the caller's own modules too. Tensors are covered by value, trained
    ones by shape. Captured objects of other kinds are covered by class only.
    """
    function = getattr(function, "_torchdynamo_orig_callable", function)  # of torch.compile
    description = _Description(_module_of(function))
    found = description.of(function)
    return digest(found) if description.has_code else None


def _module_of(value: Any) -> str:
    if isinstance(value, functools.partial):
        return _module_of(value.func)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    own = value if inspect.isroutine(value) or isinstance(value, type) else type(value)
    return str(getattr(own, "__module__", None))


@dataclass
class _Description:
    """Describes values as JSON data."""

    module: str
    """Where the callable was defined."""
    has_code: bool = False
    seen: dict[int, tuple[int, Any]] = field(default_factory=dict[int, tuple[int, Any]])
    """Objects that may refer to themselves, by id, in the order in which they were met."""

    def of(self, value: Any) -> Document:
        """Describe any value."""
        if isinstance(value, _PLAIN):
            return [type(value).__name__, repr(value)]
        if isinstance(value, _NAMED):
            return str(value)
        if isinstance(value, types.CodeType):
            return self._code(value, list(value.co_consts))
        if isinstance(value, Tensor | np.ndarray | np.generic):
            return _array(value)  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(value, tuple):
            return ["tuple", *map(self.of, value)]  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(value, set | frozenset):  # in no order
            return ["set", *sorted(digest(self.of(item)) for item in value)]  # pyright: ignore[reportUnknownVariableType]
        if id(value) in self.seen:
            return ["again", self.seen[id(value)][0]]
        self.seen[id(value)] = len(self.seen), value
        if isinstance(value, list):
            return ["list", *map(self.of, value)]  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(value, dict):
            return ["dict", *([self.of(key), self.of(item)] for key, item in value.items())]  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, functools.partial):
            return [self.of(part) for part in (value.func, value.args, value.keywords)]  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType, reportUnknownVariableType]
        return self._function_or_object(value)

    def _function_or_object(self, value: Any) -> Document:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return [self.of(value.__func__), self.of(value.__self__)]
        if isinstance(value, staticmethod | classmethod):
            return self.of(value.__func__)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        if isinstance(value, property):
            return [self.of(part) for part in (value.fget, value.fset)]
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, torch.jit.ScriptFunction):
            self.has_code = True
            return value.code
        if isinstance(value, types.ModuleType) or inspect.isroutine(value):
            return _name(value)
        return [self._class(type(value)), *self._attributes(value)]

    def _is_own(self, module: str) -> bool:
        return module == self.module or not _is_installed(module)

    def _function(self, function: types.FunctionType) -> Document:
        if not self._is_own(function.__module__):
            return _name(function)
        self.has_code = True
        code, constants = function.__code__, list(function.__code__.co_consts)
        if isinstance(function.__doc__, str) and constants[:1] == [function.__doc__]:
            constants[0] = None
        read = [name for name in _names_in(code) if name in function.__globals__]
        return [
            self._code(code, constants),
            self.of(function.__defaults__),
            self.of(function.__kwdefaults__),
            [self.of(_contents(cell)) for cell in function.__closure__ or ()],
            [[name, self._fixed(function.__globals__[name])] for name in read],
        ]

    def _fixed(self, value: Any) -> Document:
        """Describe a value of a module or a class; one that may change while it runs, by kind."""
        is_fixed = isinstance(value, (*_PLAIN, *_NAMED, *_CODE, tuple))
        return self.of(value) if is_fixed else _name(value)

    def _code(self, code: types.CodeType, constants: list[Any]) -> Document:
        names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
        counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
        described = [self.of(constant) for constant in constants]
        return [code.co_code.hex(), described, [list(group) for group in names], counts]

    def _class(self, kind: type) -> Document:
        """Describe a class by its name, and by its code if that is the caller's own."""
        parts: list[Document] = []
        for base in kind.__mro__:
            parts.append(_name(base))
            if self._is_own(base.__module__):
                self.has_code = True
                members = {
                    name: member
                    for name, member in vars(base).items()
                    if not (name.startswith("__") and not isinstance(member, _CODE))
                }
                parts.append([[name, self._fixed(member)] for name, member in members.items()])
        return parts

    def _attributes(self, value: Any) -> list[Document]:
        """Describe the state of an object, if its class is known to have no other."""
        is_module = isinstance(value, nn.Module)
        if not (is_module or self._is_own(type(value).__module__)):
            return []
        self.has_code = True
        if is_module and any(each.requires_grad for each in value.parameters()):
            return [structure_digest(value)]
        slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
        found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        found |= getattr(value, "__dict__", {})
        hidden = _BASE_ATTRIBUTES if is_module else ()
        return [[name, self.of(each)] for name, each in sorted(found.items()) if name not in hidden]


def _is_installed(module: str) -> bool:
    """Return whether a module belongs to Python, an installed package or this one."""
    top = module.partition(".")[0]
    if top in {"lbq", "torch", "numpy"} or top in sys.stdlib_module_names - {"__main__"}:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return file is not None and any(Path(file).is_relative_to(folder) for folder in folders)


def _names_in(code: types.CodeType) -> list[str]:
    """List the names that code, and the code inside it, reads from its module or from objects."""
    names, codes = set[str](), [code]
    while codes:
        one = codes.pop()
        names.update(one.co_names)
        codes += [each for each in one.co_consts if isinstance(each, types.CodeType)]
    return sorted(names)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet set
        return None


def _array(value: Tensor | np.ndarray | np.generic) -> Document:
    kind: list[Document] = ["array", str(value.dtype), list(value.shape)]
    if isinstance(value, Tensor):
        if value.requires_grad or value.is_meta:
            return kind
        value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return [*kind, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]


def _name(value: Any) -> Document:
    own = value if hasattr(value, "__name__") else type(value)
    return [str(getattr(own, "__module__", None)), getattr(own, "__qualname__", own.__name__)]
