"""Presses of the kvpress that is installed against their papers, as a table in Markdown.

    python -m kvbound.kvpress --bytes TEXT [MODEL ...]

MODEL is a Hugging Face directory or a name of the hub, of models whose tokens are bytes, or `random`: a model of 12 query heads
on 4 KV heads with random weights. A cell says how many entries are kept otherwise than the paper's definition says, and the mean
overlap of kept sets: for a press as it is, and for each difference alone that is needed to reproduce it.
"""
import argparse
import importlib.metadata
from pathlib import Path

from kvbound.kvpress.press_check import check


def random_model(seed=1):
    """A Llama of 3 layers, 12 query heads on 4 KV heads of 32 dimensions and 256 tokens, whose attention's logits spread by 3."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=256, hidden_size=192, intermediate_size=320, num_hidden_layers=3, num_attention_heads=12,
                         num_key_value_heads=4, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=False)
    model = LlamaForCausalLM(config).float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=(3 if "q_proj" in name else 1) / weight.shape[-1]**0.5, generator=generator)
    return model.eval()


def presses(ratio):
    """The presses of the table."""
    from kvpress import (AdaKVPress, CriticalAdaKVPress, CriticalKVPress, ExpectedAttentionPress, KnormPress, SnapKVPress,
                         StreamingLLMPress, TOVAPress)

    return [SnapKVPress(ratio), CriticalKVPress(SnapKVPress(ratio)), AdaKVPress(SnapKVPress(ratio)),
            CriticalAdaKVPress(SnapKVPress(ratio)), StreamingLLMPress(ratio), TOVAPress(ratio), KnormPress(ratio),
            ExpectedAttentionPress(ratio)]


def table(results, columns):
    """results   {column: [PressCheck of each press]}"""
    lines = [f"| press | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for row in zip(*(results[column] for column in columns)):
        cells = " | ".join("agrees" if found.ok else f"{found.entries:,} ({found.overlap:.1%})" for found in row)
        lines.append(f"| **{row[0].press}** against {f'`{row[0].policy}`' if row[0].policy else 'its paper'} | {cells} |")
        texts = {one.text: None for found in row for one in found.differences}  # ordered
        for text in texts:
            alone = [next((one for one in found.differences if one.text == text), None) for found in row]
            lines.append(f"| {text} | {' | '.join(f'{one.entries:,} ({one.overlap:.1%})' if one else '-' for one in alone)} |")
        left = [f"{sum(len(one.press_alone) for one in found.unexplained)} unexplained" if found.unexplained else
                "-" if found.ok else f"{found.near_ties} near ties" if found.near_ties else "exactly" for found in row]
        lines.append(f"| *these reproduce it* | {' | '.join(left)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser("python -m kvbound.kvpress", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", metavar="MODEL", nargs="*", default=["random"])
    parser.add_argument("--bytes", metavar="TEXT", type=Path, required=True, help="a text whose bytes are the token ids")
    parser.add_argument("--tokens", metavar="N", type=int, default=1000, help="of the text (default: 1000)")
    parser.add_argument("--ratios", metavar="R[,R]", default="0.5,0.9", help="compression ratios (default: 0.5,0.9)")
    options = parser.parse_args()
    ids = list(options.bytes.read_bytes()[:options.tokens])
    results = {}
    for model in options.models:
        name, loaded = (model, random_model()) if model == "random" else (Path(model).name, model)
        for ratio in map(float, options.ratios.split(",")):
            results[f"{name}, {ratio:g}"] = [check(press, loaded, ids) for press in presses(ratio)]
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("kvpress", "transformers", "torch"))
    print(f"{versions}; {len(ids)} tokens.\n\n{table(results, list(results))}")


if __name__ == "__main__":
    main()
