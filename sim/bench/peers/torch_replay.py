"""What torch_operations.py computes from a trace, written as a dump, which `kvbound diff` compares with the reference."""
from torch_work import DTYPES

from kvbound.errors import InvalidInput


def read_trace(torch, path, dtype, device):
    """A trace's sizes, and a function from a layer's number to its tensors. throws InvalidInput if it is none."""
    from safetensors import SafetensorError, safe_open

    from kvbound.recording.trace_reader import Trace
    metadata = Trace(path).metadata
    try:
        file = safe_open(path, "pt", device=device)
        sizes = {
            name: int(metadata[name])
            for name in ("layers", "query_heads", "kv_heads", "head_dim", "prompt_tokens", "decode_tokens",
                         "window_queries")
        }
        sizes["scale"] = float(metadata.get("scale", sizes["head_dim"]**-0.5))
    except (SafetensorError, KeyError, ValueError) as error:
        raise InvalidInput(f"{path}: is not a trace: {error}") from None

    def layer(index):
        return {
            name: file.get_tensor(f"layers.{index}.{name}").to(getattr(torch, dtype))
            for name in ("key", "value", "query", "output_projection")
        }

    return sizes, layer


def entries_of(text, tokens, least):
    entries = tokens * int(text[:-1]) // 100 if text.endswith("%") else int(text)
    if not least < entries <= tokens:
        raise InvalidInput(f"--budget {text}: {entries} entries; expected {least + 1} to {tokens}")
    return entries


def decoded(ops, torch, cache, policy, tensors, sizes, layer):
    """Outputs [T, H, d] of the decode steps, and the positions [T, G] that they evict or None."""
    n, outputs, evicted = sizes["prompt_tokens"], [], []
    for t in range(sizes["decode_tokens"]):
        entry = tensors["key"][:, n + t], tensors["value"][:, n + t]
        positions = torch.cat([cache.positions, torch.full_like(cache.positions[:, :1], n + t)], 1)
        output, cache, slot = ops.step(cache, policy, entry, tensors["query"][:, sizes["window_queries"] + t],
                                       layer.scale)
        outputs.append(output)
        if slot is not None:
            evicted.append(positions.gather(1, slot[:, None])[:, 0])
    return torch.stack(outputs), torch.stack(evicted) if evicted else None


def replay(torch, options):
    """Writes what torch_operations.py computes from a trace as a dump."""
    import torch_operations as ops

    from kvbound.recording.dump_writer import write_dump
    trace, dump = options.replay
    name, = options.policy
    policy, (storage, dtype) = ops.POLICIES[name], DTYPES[options.dtype]
    sizes, tensors_of = read_trace(torch, trace, dtype, options.device)
    if sizes["window_queries"] < policy.window:
        raise InvalidInput(
            f"{trace}: records {sizes['window_queries']} prompt queries; {name} needs {policy.window}")
    n, results = sizes["prompt_tokens"], []
    budget = entries_of(options.budget, n,
                        policy.window if policy.host == "snapkv" else policy.sinks + policy.recent)
    for index in range(sizes["layers"]):
        tensors = tensors_of(index)
        projection = tensors["output_projection"].view(sizes["query_heads"], sizes["head_dim"], -1)
        layer = ops.Layer(tensors["key"][:, :n], tensors["value"][:, :n],
                          tensors["query"][:, :sizes["window_queries"]], projection, sizes["scale"])
        cache = ops.compress(layer, policy, budget)
        result = {
            "kept": cache.positions, "score": cache.score, "stage_two_score": cache.stage_two_score,
            "projected_value_norms": cache.projected_value_norms, "votes": cache.votes
        }
        if cache.votes is not None:
            result |= {
                "votes": cache.votes.flatten(), "merged_key": cache.keys.flatten(0, 1),
                "merged_value": cache.values.flatten(0, 1)
            }
        if sizes["decode_tokens"]:
            result["output"], result["evicted"] = decoded(ops, torch, cache, policy, tensors, sizes, layer)
        results.append({tensor: array for tensor, array in result.items() if array is not None})
    write_dump(dump, trace, name, budget, f"torch-{torch.__version__}", results, storage=storage,
               accumulate="F64" if options.dtype == "fp64" else "F32")
