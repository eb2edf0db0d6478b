"""Arrays and compiled functions by their addresses, so that compiled code can hold many of a kind.

An engine is some twenty arrays; a cluster has hundreds of engines, of different sizes. Compiled code cannot
keep lists of such bundles, but it can follow addresses, as C would. `words_of` notes down where the arrays of
a bundle are, `array_at` reads one of them back. Whoever makes words keeps the arrays alive, and makes the
words anew when an array is replaced by a larger one.

With ``NUMBA_DISABLE_JIT=1`` the same functions run as Python.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array
from numpy.typing import NDArray

from kvsim.compiled import numba_config

WORDS = 4  # of an array: its address, and up to three lengths

_LENGTH_UNKNOWN = 1 << 40
_interpreted: dict[int, Callable[..., Any]] = {}  # functions by number, without compiling


def words_of(arrays: Sequence[NDArray[Any]], out: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Where arrays (C-contiguous, up to three dimensions) are: WORDS numbers each, in one vector."""
    words = np.zeros(WORDS * len(arrays), np.int64) if out is None else out
    for k, array in enumerate(arrays):
        assert array.flags.c_contiguous
        words[WORDS * k] = array.ctypes.data
        words[WORDS * k + 1 : WORDS * k + 1 + array.ndim] = array.shape
    return words


def address_of(words: NDArray[Any]) -> int:
    """For `words_at`."""
    return int(words.ctypes.data)


def _read(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    size = int(np.prod(shape)) * dtype.itemsize
    if size == 0:
        return np.zeros(shape, dtype)
    memory: Any = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)


_I64 = ir.IntType(64)


def _filled(context: Any, builder: Any, array_type: Any, data: Any, shape: Sequence[Any]) -> Any:
    """Code for an array struct over memory that somebody else owns."""
    array = make_array(array_type)(context, builder)
    size = ir.Constant(_I64, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
    strides: list[Any] = []
    stride = size
    for length in reversed(shape):
        strides.insert(0, stride)
        stride = builder.mul(stride, length)
    pointer = builder.inttoptr(data, array.data.type)
    populate_array(array, data=pointer, shape=shape, strides=strides, itemsize=size, meminfo=None)
    return array._getvalue()


if numba_config.DISABLE_JIT:

    def words_at(address: int) -> NDArray[np.int64]:
        return _read(int(address), (1 << 12,), np.dtype(np.int64))

    def rows_at(address: int, dtype: Any, length: int) -> NDArray[Any]:
        return _read(int(address), (int(length),), np.dtype(dtype))

    def array_at(words: NDArray[np.int64], k: int, dtype: Any, ndim: int) -> NDArray[Any]:
        shape = tuple(words[WORDS * k + 1 : WORDS * k + 1 + ndim].tolist())
        return _read(int(words[WORDS * k]), shape, np.dtype(dtype))

else:

    @intrinsic
    def words_at(typing_context: Any, address: Any) -> Any:
        """The words that begin at an address."""
        array_type = types.Array(types.int64, 1, "C")

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            length = ir.Constant(_I64, _LENGTH_UNKNOWN)
            return _filled(context, builder, array_type, args[0], [length])

        return array_type(types.int64), code

    @intrinsic
    def rows_at(typing_context: Any, address: Any, dtype: Any, length: Any) -> Any:
        """`length` rows that begin at an address; `dtype` is a constant."""
        array_type = types.Array(dtype.dtype, 1, "C")

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return _filled(context, builder, array_type, args[0], [args[2]])

        return array_type(address, dtype, length), code

    @intrinsic(prefer_literal=True)
    def array_at(typing_context: Any, words: Any, k: Any, dtype: Any, ndim: Any) -> Any:
        """Array number `k` of some words; `dtype` and `ndim` are constants and must be its own."""
        num_dimensions = ndim.literal_value
        array_type = types.Array(dtype.dtype, num_dimensions, "C")

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector = make_array(signature.args[0])(context, builder, args[0])
            first = builder.mul(args[1], ir.Constant(args[1].type, WORDS))

            def word(j: int) -> Any:
                at = builder.add(first, ir.Constant(first.type, j))
                return builder.load(builder.gep(vector.data, [at]))

            shape = [word(1 + axis) for axis in range(num_dimensions)]
            return _filled(context, builder, array_type, word(0), shape)

        return array_type(words, k, dtype, ndim), code


# ---------------------------------------------------------------- functions

# A choice of a router: (address of its words, number of the request, seconds) -> target
CHOICE = types.int64(types.int64, types.int64, types.float64)
# A stretch of an engine, see `kvsim.engine.step.advance`
STRETCH = types.int64(types.int64, types.int64, types.int64, types.float64, types.int64)


def function_address(function: Any, signature: Any) -> int:
    """Where a `compiled_entry` is; it is compiled, or read from the cache, when it is first asked for."""
    if numba_config.DISABLE_JIT:
        _interpreted[id(function)] = function
        return id(function)
    function.compile(signature.args)
    result = function.overloads[signature.args]
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name))


def _caller(signature: Any) -> Any:
    """A compiled function (address, *args) that calls what is at the address."""
    if numba_config.DISABLE_JIT:
        return lambda address, *args: _interpreted[int(address)](*args)
    _types = {types.int64: _I64, types.float64: ir.DoubleType()}
    native = ir.FunctionType(_types[signature.return_type], [_types[arg] for arg in signature.args])

    def code(context: Any, builder: Any, _: Any, args: Any) -> Any:
        return builder.call(builder.inttoptr(args[0], native.as_pointer()), args[1:])

    given = signature.return_type(types.int64, *signature.args)
    if len(signature.args) == 3:

        @intrinsic
        def call(typing_context: Any, address: Any, a: Any, b: Any, c: Any) -> Any:
            return given, code

        return call

    @intrinsic
    def call_with_five(typing_context: Any, address: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        return given, code

    return call_with_five


call_choice = _caller(CHOICE)
call_stretch = _caller(STRETCH)
