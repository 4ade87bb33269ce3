"""Arrays of every kind are read where they are, or refused in one line."""
import kvbound
import numpy as np
import pytest
from conftest import attention
from kvbound import _native, testing

Q, K, V = testing.decode_case("sink", tokens=64)
OUT = attention(Q, K, V)


def check(out=OUT, q=Q, k=K, v=V, **options):
    return kvbound.check_attention(out, q, k, v, **options)


def copies(call):
    before = _native.copies()
    call()
    return _native.copies() - before


def test_arrays_in_c_order_are_not_copied():
    assert copies(check) == 0
    assert copies(lambda: check(*(x.astype(t) for x, t in zip((OUT, Q, K, V), ("f8", "f4", "f2", "f2"))))) == 0
    read_only = K.copy()
    read_only.flags.writeable = False
    assert copies(lambda: check(k=read_only)) == 0


def test_strides_of_any_kind_are_copied_and_read_right():
    for make in (np.asfortranarray, lambda x: np.repeat(x, 2, axis=1)[:, ::2], lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
                 lambda x: np.ascontiguousarray(x.transpose(3, 0, 2, 1)).transpose(1, 3, 2, 0)):
        strided = make(K)
        assert np.array_equal(strided, K)
        assert copies(lambda: check(k=strided)) == 1  # noqa: B023
        assert check(k=strided).document()["parts"] == check().document()["parts"]


def test_other_libraries_and_lists():
    class Exported:
        """An array of another library: DLPack alone."""

        def __init__(self, array, device=1):
            self.array, self.device = array, device

        shape = property(lambda self: self.array.shape)

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.device, 0

    assert copies(lambda: check(k=Exported(K))) == 0
    assert check(k=Exported(K)).ok
    with pytest.raises(kvbound.InvalidInput, match=r"check attention: k: is on the device .*expected the CPU: k.cpu\(\)"):
        check(k=Exported(K, 2))
    assert kvbound.check_topk([[1, 0]], [[1.0, 2.0, 0.5]]).ok


@pytest.mark.parametrize(("arguments", "message"), [
    ({"k": K[:, :, :1]}, r"check attention: v.shape: is \[1, 64, 2, 64\]; expected .* kv_heads = 1 as k has it"),
    ({"k": K.astype("c16")}, r"check attention: k.dtype: "),
    ({"k": np.array(["a"])}, r"check attention: k: "),
    ({"k": object()}, r"check attention: k: "),
    ({"q": Q[..., :0]}, r"check attention: "),
    ({"k": np.where(K > 1, np.nan, K)}, r"check attention: k: element \d+ is NaN; expected a finite number"),
    ({"kv_indptr": np.array([0.0])}, r"check attention: "),
])
def test_what_does_not_fit_is_refused_in_one_line(arguments, message):
    with pytest.raises(kvbound.InvalidInput, match=message) as refusal:
        check(**arguments)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("options", "message"), [
    ({"sm_scale": "x"}, "sm_scale"), ({"storage": "F12"}, "storage"), ({"splits": -1}, "splits"), ({"kv_layout": "DHN"}, "kv_layout")])
def test_options_that_are_none_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        check(**options)
