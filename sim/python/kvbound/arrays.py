"""Arrays of NumPy, torch, JAX and CuPy as the module takes them: views, not copies."""
import numpy as np

from kvbound.errors import InvalidInput


def exported(what, arrays):
    """{name: array}, without those that are None, where the module finds their numbers by the buffer protocol or DLPack.

    Lists become arrays. BF16 of ml_dtypes, which has neither, becomes (its bits, "BF16"). Of a torch tensor that
    requires a gradient the numbers alone are taken.

    raises  InvalidInput for an array on another device
    """
    return {name: _exported(what, name, array) for name, array in arrays.items() if array is not None}


def _exported(what, name, array):
    if isinstance(array, np.ndarray):
        if array.dtype.name == "bfloat16":
            return array.view(np.uint16), "BF16"
        return array
    device = getattr(array, "__dlpack_device__", None)
    if device is None:
        return np.asarray(array)
    if int(device()[0]) != 1:  # kDLCPU
        raise InvalidInput(f"{what}: {name}: is on the device {getattr(array, 'device', 'of an accelerator')}; "
                           f"expected the CPU: {name}.cpu(), or numpy.asarray({name})")
    return array.detach() if getattr(array, "requires_grad", False) else array
