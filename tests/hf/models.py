"""Tiny models with random weights, saved as Hugging Face checkpoints: the same for every run."""
import torch
import transformers

transformers.logging.disable_progress_bar()
SIZES = dict(vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False)


def save(folder, family, seed=1, **sizes):
    """Saves a model of transformers' classes {family}Config and {family}ForCausalLM; returns the folder."""
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **sizes})
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # logits of attention with a spread of about 3; small steps from layer to layer
            if weight.dim() > 1:
                scale = 3 if "q_proj" in name else 0.25 if "mlp" in name else 1
                weight.normal_(std=scale / weight.shape[-1]**0.5)
            else:
                weight.normal_(mean=1 if "norm" in name else 0, std=0.3)
    model.save_pretrained(folder)
    return folder
