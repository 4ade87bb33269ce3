"""Tensors of torch: read where they are, its sums probed."""
import kvbound
import pytest
import torch
from arrays_test import OUT, K, Q, V, check, copies
from conftest import attention
from kvbound import probe, testing
from probe_test import HEADS, require_added_as_found, rounded


def test_tensors_are_read_where_they_are():
    arrays = [torch.from_numpy(x) for x in (OUT, Q, K, V)]
    assert copies(lambda: check(*arrays)) == 0
    assert check(*arrays).document()["parts"] == check().document()["parts"]
    assert copies(lambda: check(q=arrays[1].clone().requires_grad_())) == 0
    halves = [x.to(torch.bfloat16) for x in arrays[1:]]
    out = torch.from_numpy(attention(*(x.float().numpy() for x in halves)))
    assert copies(lambda: check(out, *halves)) == 0
    assert check(out, *halves).ok and not check(out, *arrays[1:])
    assert copies(lambda: check(k=arrays[2].transpose(1, 2).contiguous().transpose(1, 2))) == 1
    with pytest.raises(kvbound.InvalidInput, match=r"k: is on the device meta; expected the CPU"):
        check(k=arrays[2].to("meta"))


@pytest.mark.parametrize("terms", [7, 100, 1000])
def test_its_sums_add_as_the_tree_says(terms):
    require_added_as_found(lambda x: torch.from_numpy(x).sum().numpy(), terms)


@pytest.mark.parametrize("dtype, weights", [("bfloat16", "BF16"), ("float32", None)])
def test_attention_of_torch(dtype, weights):
    """Written out: weights are rounded to the type of the values, behind the softmax."""
    def kernel(q, k, v):
        q, k, v = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in (q, k, v))
        k, v = (x.repeat_interleave(2, 2).transpose(1, 2) for x in (k, v))
        shares = torch.softmax((q[:, :, None] @ k.transpose(2, 3)).float() * q.shape[2]**-0.5, -1)
        return (shares.to(v.dtype) @ v)[:, :, 0].float().numpy()

    found = probe.accumulation_of_attention(kernel, 128, 64, **HEADS)
    assert found.weights == weights and found.bits == 24
    q, k, v = (rounded(x, 8) for x in testing.decode_case("flat", tokens=128, **HEADS))
    options = {"storage": "BF16"} if weights else {}
    out = torch.from_numpy(kernel(q, k, v)).to(getattr(torch, dtype))
    assert found.declared.items() >= options.items()
    assert kvbound.check_attention(out, q, k, v, **found.declared).ok
