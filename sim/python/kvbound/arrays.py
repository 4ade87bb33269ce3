"""Arrays of NumPy, torch, JAX and CuPy as the module takes them: views, not copies."""
import numpy as np

from kvbound.errors import InvalidInput


def exported(what, arrays):
    """{name: array}, without those that are None, where the module finds their numbers by the buffer protocol or DLPack.

    Lists become arrays. BF16 of ml_dtypes, which has neither, becomes (its bits, "BF16"). Of a torch tensor that
    requires a gradient the numbers alone are taken.

    raises  InvalidInput for an array on another device
    """
    return {name: array if type(array) is np.ndarray and array.dtype.isbuiltin == 1 else _exported(what, name, array)
            for name, array in arrays.items() if array is not None}


def _exported(what, name, array):
    if isinstance(array, np.ndarray):
        if array.dtype.name == "bfloat16":
            return array.view(np.uint16), "BF16"
        return array
    if type(array).__module__ == "torch":
        try:
            return array.numpy()  # a view, in a fifth of DLPack's time
        except (RuntimeError, TypeError):  # of BF16, with a gradient, or on another device
            pass
    if not hasattr(array, "__dlpack_device__"):
        return np.asarray(array)
    if _is_elsewhere(array):
        raise InvalidInput(f"{what}: {name}: is on the device {getattr(array, 'device', 'of an accelerator')}; "
                           f"expected the CPU: {name}.cpu(), or numpy.asarray({name})")
    return array.detach() if getattr(array, "requires_grad", False) else array


def _is_elsewhere(array):
    try:
        return int(array.__dlpack_device__()[0]) != 1  # kDLCPU
    except ValueError:  # torch's of a device that DLPack does not know
        return True
