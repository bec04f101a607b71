"""Triton's interpreter, mended, and without what it does over and over: half of the time of the kernels' tests."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from triton.language import core
from triton.runtime import interpreter


@functools.cache
def prepare() -> None:
    """Call before the first launch, in a process whose kernels are all interpreted: the language stays patched."""
    _allow_loop_bounds()
    _patch_language_once()
    _keep_numpy_dtypes()
    _type_tuples_when_asked()
    builder = interpreter.interpreter_builder
    # Its check of integers for overflow computes them again in int64, and asserts nothing where debug is off.
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _allow_loop_bounds() -> None:
    """Triton 3.6 reads a loop bound by int() of an array of one element, which numpy 2.4 no longer allows."""
    patch = interpreter._patch_lang_tensor

    def with_loop_bounds(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = with_loop_bounds


def _patch_language_once() -> None:
    """Triton goes through its whole language to patch it at every launch and at every call of a function in a kernel,
    such as a sum."""
    patch = functools.cache(interpreter._patch_lang)

    def patch_once(function: Any) -> Any:
        patch(function)  # what it returns would undo it
        return interpreter._LangPatchScope()

    interpreter._patch_lang = patch_once


def _keep_numpy_dtypes() -> None:
    """Triton makes a table of all dtypes whenever it asks for one."""
    plain = interpreter._get_np_dtype
    found: dict[str, np.dtype[Any]] = {}

    def numpy_dtype(dtype: Any) -> np.dtype[Any]:
        name = dtype.scalar.name
        if name not in found:
            found[name] = plain(dtype)
        return found[name]

    interpreter._get_np_dtype = numpy_dtype


def _type_tuples_when_asked() -> None:
    """Triton makes a type, with its name, for the shape of each value: a third of the time of small kernels."""
    plain = core.tuple.__getattr__

    def init(self: Any, args: Any, type: Any = None) -> None:
        self.values = list(args)
        if type is not None:
            self.type = type if isinstance(type, core.tuple_type) else core.tuple_type(type)

    def attribute(self: Any, name: str) -> Any:
        if name != "type":
            return plain(self, name)
        self.type = core._type_for_tuple_values(self.values)
        return self.type

    core.tuple.__init__, core.tuple.__getattr__ = init, attribute
