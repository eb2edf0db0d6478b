"""Ask the processor for memory that compiled code will need soon.

Pools and indexes of a cluster are larger than the caches of a core, and a hash may name any place: so
every look-up waits for memory. Where the places of the next ones are known, asking for them beforehand lets
those waits overlap. It changes nothing but the time. With ``NUMBA_DISABLE_JIT=1`` it does nothing.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from kvsim.compiled import numba_config

AHEAD = 12  # look-ups; a wait for memory takes about as long as so many of them without it

_I32, _I64 = ir.IntType(32), ir.IntType(64)

if numba_config.DISABLE_JIT:

    def prefetch(array: Any, row: Any) -> None:
        pass

else:

    @intrinsic
    def prefetch(typing_context: Any, array: Any, row: Any) -> Any:
        """Have the beginning of a row of an array brought near. The row need not exist."""

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            own = make_array(signature.args[0])(context, builder, args[0])
            stride = builder.extract_value(own.strides, 0)
            begin = builder.ptrtoint(own.data, _I64)
            place = builder.add(begin, builder.mul(builder.sext(args[1], _I64), stride))
            pointer = builder.inttoptr(place, ir.IntType(8).as_pointer())
            kinds = [pointer.type, _I32, _I32, _I32]
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0"
            )
            read, keep, data = (ir.Constant(_I32, value) for value in (0, 3, 1))
            builder.call(function, [pointer, read, keep, data])
            return context.get_dummy_value()

        return types.void(array, types.int64), code
