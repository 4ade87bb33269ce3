"""The attention function that record_hf gives to a model in transformers: it judges, rounds, records and delegates."""
import sys

from kvbound.errors import InvalidInput

QUERY_BLOCK = 256  # queries per call of eager attention, which forms all weights of its queries
HIDDEN = -1e30  # a mask's entry below this removes a key: eager masks have the type's lowest number
PROJECTIONS = ("o_proj", "out_proj", "dense")
# tensors that eager attention does not read
HARMLESS = {"position_ids", "cache_position", "position_embeddings"}


def refuse(message):
    raise InvalidInput(message)


class Layer:
    """What the rehearsal found out about one attention layer.

    left_out    why it cannot be recorded although the model can, or None
    """

    def __init__(self, module, heads, kv_heads, head_dim, scale, left_out):
        self.module, self.heads, self.kv_heads, self.head_dim, self.scale = module, heads, kv_heads, head_dim, scale
        self.left_out = left_out
        self.projection = next((getattr(module, name) for name in PROJECTIONS if hasattr(module, name)), None)
        self.attended = None  # the latest attention output, until the projection has read it
        self.positions = 0  # how many were recorded
        self.hook = None  # on the projection

    def shape(self):
        return {"query heads": self.heads, "KV heads": self.kv_heads, "head_dim": self.head_dim, "scale": self.scale,
                "model_dim": self.projection.weight.shape[0]}


class Recorder:
    """The attention function: delegates to the model's own eager attention, on rounded queries, keys and values.

    It first rehearses (layers is filled, nothing is written), then records into `files`.
    """

    def __init__(self, torch, storage):
        self.torch = torch
        self.storage = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[storage]
        self.layers = {}  # the model's number of the layer: Layer
        self.files = None
        self.checked = None  # the mask that was checked last: layers share it

    def begin(self, files, chosen, prompt_tokens, window_queries, progress):
        """From now on the layers `chosen` are recorded; the model must read its prompt next."""
        self.files, self.chosen, self.progress = files, {layer: row for row, layer in enumerate(chosen)}, progress
        self.first_query = prompt_tokens - window_queries

    def release(self):
        """Takes the hooks off the model."""
        for layer in self.layers.values():
            if layer.hook is not None:
                layer.hook.remove()

    def __call__(self, module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
        index = getattr(module, "layer_idx", None)
        if index is None:
            refuse(f"{type(module).__name__} does not say which layer it is")
        try:
            if self.files is None:
                self._rehearse(index, module, query, key, value, scaling, options)
            return self._attend(self.layers[index], index, query, key, value, attention_mask, options)
        except InvalidInput as error:
            raise InvalidInput(f"layer {index}: {error}") from None

    def _rehearse(self, index, module, query, key, value, scaling, options):
        require_plain_attention(module, options)
        if index in self.layers:
            refuse(f"{type(module).__name__} and {type(self.layers[index].module).__name__} both call themselves this")
        heads, kv_heads, head_dim = query.shape[1], key.shape[1], key.shape[3]
        if value.shape[3] != head_dim or query.shape[3] != head_dim:
            refuse(f"queries, keys and values have {query.shape[3]}, {head_dim} and {value.shape[3]} columns: a trace has "
                   "one head_dim")
        if heads != kv_heads * getattr(module, "num_key_value_groups", 1):
            refuse(f"{heads} query heads on {kv_heads} KV heads, in groups of {module.num_key_value_groups}")
        kinds = getattr(module.config, "layer_types", None)
        if kinds is not None and not (isinstance(kinds, (list, tuple)) and index < len(kinds) and isinstance(kinds[index], str)):
            refuse("the model's layer_types are no list with a name of this layer's kind")
        kind = kinds[index] if kinds is not None else None
        window = options.get("sliding_window")
        left_out = (f"a sliding window of {window}" if window is not None else
                    kind.replace("_", " ") if kind and kind != "full_attention" else None)
        scale = float(scaling if scaling is not None else getattr(module, "scaling", head_dim**-0.5))
        layer = self.layers[index] = Layer(module, heads, kv_heads, head_dim, scale, left_out)
        if not left_out:
            require_projection(layer, index)

    def _attend(self, layer, index, query, key, value, mask, options):
        new, seen = query.shape[2], layer.positions
        if query.shape[0] != 1:
            refuse(f"a batch of {query.shape[0]} sequences")
        if not layer.left_out:
            if key.shape[2] != seen + new:
                refuse(f"the cache has {key.shape[2]} keys where {seen + new} were seen: it drops or pads positions")
            self._require_causal(mask, seen, new)
        query, key, value = (self._rounded(*part) for part in (("query", query), ("key", key), ("value", value)))
        eager, outputs = eager_attention(layer.module), []
        for begin in range(0, new, QUERY_BLOCK):
            rows = slice(begin, begin + QUERY_BLOCK)
            outputs.append(eager(layer.module, query[:, :, rows], key, value, None if mask is None else mask[:, :, rows],
                                 scaling=layer.scale, dropout=0.0, **options)[0])
        # [1, new, heads, head_dim]
        output = outputs[0] if len(outputs) == 1 else self.torch.cat(outputs, dim=1)
        layer.attended = output
        layer.positions += new
        if self.files is not None and new > 1:
            self.progress(f"prompt of {new} tokens, layer {index}")
        if self.files is not None and index in self.chosen:
            self._record(f"layers.{self.chosen[index]}.", seen, query[0], key[0, :, seen:], value[0, :, seen:],
                         output[0].transpose(0, 1))
        return output, None

    def _rounded(self, name, array):
        """The array rounded to the stored type, in its own type."""
        result = array.to(self.storage).to(array.dtype)
        if not result.isfinite().all():
            refuse(f"the largest {name} is {array.abs().max().item():.6g}, which is too large for the stored type")
        return result

    def _record(self, prefix, seen, query, key, value, output):
        """Writes the positions from `seen` on: [heads, new, head_dim] each."""
        new = query.shape[1]
        self.files.write(prefix + "key", key, (slice(None), slice(seen, seen + new)))
        self.files.write(prefix + "value", value, (slice(None), slice(seen, seen + new)))
        skipped = max(0, self.first_query - seen)  # queries of the prompt before the window
        if skipped < new:
            rows = slice(seen + skipped - self.first_query, seen + new - self.first_query)
            self.files.write(prefix + "query", query[:, skipped:], (slice(None), rows))
            self.files.write(prefix + "attention_output", output[:, skipped:], (slice(None), rows))

    def _require_causal(self, mask, seen, new):
        """The mask shows query i of `new` exactly the keys 0 ... seen + i."""
        if mask is None:
            if new > 1:
                refuse("attention got no mask, so that queries would attend to later keys")
            return
        if mask is self.checked:
            return
        if mask.dim() != 4 or mask.shape[0] != 1 or mask.shape[1] != 1 or not mask.is_floating_point():
            refuse(f"a mask of the shape {list(mask.shape)} and type {mask.dtype}: biases that differ between heads")
        keys = self.torch.arange(mask.shape[3], device=mask.device)
        for i in range(0, new, QUERY_BLOCK):
            rows = mask[0, 0, i:i + QUERY_BLOCK]
            last = seen + i + self.torch.arange(len(rows), device=mask.device)[:, None]
            wrong = self.torch.where(keys <= last, rows != 0, rows > HIDDEN).nonzero()
            if len(wrong):
                row, column = wrong[0].tolist()
                refuse(f"the mask adds {rows[row, column].item():.6g} for the query at {seen + i + row} and the key at "
                       f"{column}: it is not the causal mask")
        self.checked = mask


def require_plain_attention(module, options):
    """Refuses attention that softmax(scale * q.k) over all earlier keys does not describe."""
    if options.get("softcap") is not None:
        refuse(f"a logit softcap of {options['softcap']}")
    if options.get("s_aux") is not None or hasattr(module, "sinks"):
        refuse("attention sinks that are parameters")
    if hasattr(module, "kv_lora_rank"):
        refuse("multi-head latent attention (MLA)")
    if not getattr(module, "is_causal", True):
        refuse("attention that is not causal")
    for name, option in options.items():
        if (isinstance(option, float) or hasattr(option, "dtype")) and name not in HARMLESS:
            refuse(f"attention takes {name!r}, which a trace cannot say")
    eager_attention(module)


def eager_attention(module):
    """The eager attention of the model's own source file."""
    function = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return function or refuse(f"{type(module).__module__} has no eager_attention_forward")


def require_projection(layer, index):
    """Refuses a layer whose W^O is not found, or does not read what attention returned. Its bias is not recorded."""
    name = type(layer.module).__name__
    weight = getattr(layer.projection, "weight", None)
    columns = layer.heads * layer.head_dim
    if weight is None or weight.dim() != 2 or not weight.is_floating_point() or weight.shape[1] != columns:
        refuse(f"{name} has no {' or '.join(PROJECTIONS)} with {columns} columns")

    def compare(module, inputs):
        if layer.attended is not None and not inputs[0].flatten().equal(layer.attended.flatten()):
            refuse(f"layer {index}: {name} changes the attention output before W^O: a gate or a norm")
        layer.attended = None
    layer.hook = layer.projection.register_forward_pre_hook(compare)
