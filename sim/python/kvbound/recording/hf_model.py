"""A model in transformers with a Recorder as its attention, and which of its layers a trace can say."""
import contextlib
import os
import re

from kvbound.errors import InvalidInput
from kvbound.recording.attention_recorder import refuse

NAME = "kvbound_recorder"
CONFIG_REFUSALS = {"attn_logit_softcapping": "a logit softcap", "kv_lora_rank": "multi-head latent attention (MLA)",
                   "alibi": "ALiBi biases", "quantization_config": "a quantised checkpoint"}


@contextlib.contextmanager
def recorded_model(model, recorder, ids, layers, note, device=None):
    """(the model, its name for messages, its layers to record), with the recorder as its attention while the block runs.

    model    a Hugging Face directory, a name of the hub, or a model that is loaded: in float32, as afterwards it is again
    ids      that the model will read
    layers   ascending numbers of layers, or None for all that a trace can say; note is called with a line on the others
    device   where torch runs a model that is loaded here
    """
    import transformers
    from transformers.masking_utils import AttentionMaskInterface

    transformers.AttentionInterface.register(NAME, recorder)
    # Without this the model would build no mask for a name that it does not know.
    AttentionMaskInterface.register(NAME, AttentionMaskInterface()["eager"])
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(silent(transformers.logging))
            if isinstance(model, (str, os.PathLike)):
                name = os.fspath(model)
                model = load_model(name, recorder.torch, device)
            else:
                name = type(model).__name__
                stack.enter_context(attention_replaced(model))
            require_vocabulary(model, ids)
            with running(name):
                rehearse(model, recorder, ids)
            yield model, name, chosen_layers(recorder, model.config.get_text_config().num_hidden_layers, layers, note)
    finally:
        recorder.release()


@contextlib.contextmanager
def silent(logging):
    """No warnings and no progress bars of transformers."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def attention_replaced(model):
    """A loaded model with NAME as its attention, for inference."""
    name = type(model).__name__
    require_recordable(name, model.config)
    for key, weight in model.named_parameters():
        if str(weight.dtype) != "torch.float32":
            refuse(f"{name}: {key} is {weight.dtype}; expected float32: model.float()")
    before, was_training = model.config._attn_implementation, model.training
    try:
        model.set_attn_implementation(NAME)
    except ValueError as error:
        refuse(f"{name}: {one_line(error)}")
    if model.config._attn_implementation != NAME:
        refuse(f"{name} has attention of its own: it does not use transformers' interface")
    try:
        model.eval()
        yield
    finally:
        model.set_attn_implementation(before)
        model.train(was_training)


def require_recordable(name, config):
    """Refuses a model whose configuration says that a trace cannot describe its attention."""
    text = config.get_text_config()
    for field, what in CONFIG_REFUSALS.items():
        value = getattr(text, field, None) or getattr(config, field, None)
        if value:
            refuse(f"{name}: {field} is {str(value)[:40]}: {what}, which a trace cannot say")
    if getattr(config, "is_encoder_decoder", False):
        refuse(f"{name}: is_encoder_decoder is true: a trace has one self-attention per layer")


def load_model(path, torch, device):
    """The causal language model in float32, with NAME as its attention."""
    import transformers

    is_local = os.path.isdir(path)
    if not is_local and not re.fullmatch(r"[\w-]+/[\w.-]+", path):
        refuse(f"{path}: no such directory")
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=is_local)
        require_recordable(path, config)
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            path, local_files_only=is_local, dtype=torch.float32, attn_implementation=NAME,
            output_loading_info=True, ignore_mismatched_sizes=True)  # so that they are named
        model = model.to(device or "cpu").eval()
    except InvalidInput:
        raise
    except Exception as error:  # of any kind, depending on what is wrong with the files
        if isinstance(error, KeyError) and NAME in error.args:
            refuse(f"{path}: {config.model_type} has attention of its own: it does not use transformers' interface")
        refuse(f"{path}: transformers cannot load it: {one_line(error)}")
    mismatched = [key if isinstance(key, str) else key[0] for key in loaded["mismatched_keys"]]
    lacking = sorted(loaded["missing_keys"]) + sorted(mismatched)
    if lacking:  # transformers would go on with random numbers
        refuse(f"{path}: the checkpoint lacks {lacking[0]}, or has it in another shape" +
               (f", and {len(lacking) - 1} more" if lacking[1:] else ""))
    return model


def one_line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


@contextlib.contextmanager
def running(path):
    """Turns whatever a model's code throws into one line; our own errors and those of files pass."""
    try:
        yield
    except (InvalidInput, OSError):
        raise
    except Exception as error:
        raise InvalidInput(f"{path}: the model does not run: {one_line(error)}") from error


def require_vocabulary(model, ids):
    vocabulary = model.get_input_embeddings().num_embeddings
    for position, token in enumerate(ids):
        if not 0 <= token < vocabulary:
            refuse(f"token {token} at position {position} is not in the vocabulary of {vocabulary}")


def rehearse(model, recorder, tokens):
    """Runs two tokens to find out what each layer is; refuses a model that cannot be recorded."""
    torch = recorder.torch
    model(input_ids=torch.tensor([(tokens * 2)[:2]], device=model.device), use_cache=True)
    if not recorder.layers:
        refuse(f"{type(model).__name__} made no call of the attention function: it has attention of its own")
    for layer in recorder.layers.values():
        layer.positions = 0
    recorder.checked = None


def chosen_layers(recorder, total, wanted, note):
    """The layers of `total` to record, ascending: those wanted (default: all) that a trace can say. Notes the others."""
    if wanted and not 0 <= wanted[0] <= wanted[-1] < total:
        refuse(f"layers: asks for layer {wanted[0] if wanted[0] < 0 else wanted[-1]}, but the model has layers 0-{total - 1}")
    left_out = {}
    for index in range(total):
        layer = recorder.layers.get(index)
        reason = "no attention" if layer is None else layer.left_out
        if reason:
            left_out.setdefault(reason, []).append(index)
    described = "; ".join(f"{layer_list(layers)} ({reason})" for reason, layers in left_out.items())
    skipped = {index for layers in left_out.values() for index in layers}
    asked = sorted(skipped.intersection(wanted or ()))
    chosen = [index for index in wanted or range(total) if index not in skipped]
    if asked or not chosen:
        refuse(f"{'layers: asks for layers' if asked else 'all layers are'} that a trace cannot say: {described}")
    if left_out:
        note(f"left out: layers {described}")
    first = recorder.layers[chosen[0]].shape()
    for index in chosen:
        for what, size in recorder.layers[index].shape().items():
            if size != first[what]:
                refuse(f"layer {index} has {what} {size}, but layer {chosen[0]} has {first[what]}: a trace has one for all "
                       "layers; choose layers")
    return chosen


def layer_list(layers):
    """Ascending numbers as text: 0,3-5."""
    ranges = []
    for layer in layers:
        if ranges and ranges[-1][1] == layer - 1:
            ranges[-1][1] = layer
        else:
            ranges.append([layer, layer])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
