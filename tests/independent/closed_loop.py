"""An independent `kvbound evaluate`: a model decodes through compressed caches. NumPy, double precision.

Closed loop: what a compressed cache changes enters the keys, values and queries of later layers and steps. What is kept,
evicted and merged is decided by the modules of replay.py, to which a sequence looks like a trace that grows.
Open loop: the same policies on the steps of the full cache.
"""
import json
from types import SimpleNamespace

import numpy as np

from independent.allocation import layer_budgets
from independent.decoding import DecodingHead
from independent.llama import Llama, log_probabilities
from independent.merged_cache import MergingHead
from independent.policy import parse_policy, resolve_budget
from independent.replay import cached_entries, open_tensors, prompt_choices, read_tensor, replayed_layer
from independent.scores import attention_weights, removal_scores, seen_logits
from independent.selection import select_top

MEASURES = ("perturbation", "relative", "bound", "kept_mass", "layer_perturbation")


def read_model(folder):
    """A Hugging Face checkpoint: config.json, and weights in one safetensors file or in shards with an index."""
    index = folder / "model.safetensors.index.json"
    _, tensors = open_tensors(index if index.exists() else folder / "model.safetensors")
    return Llama(json.loads((folder / "config.json").read_text("utf-8")),
                 {name: read_tensor(entry) for name, entry in tensors.items()})


class Task:
    """prompt, target: token ids; compress_at: the prompt's tokens that are read before the caches are compressed."""

    def __init__(self, prompt, target, compress_at=None):
        self.prompt, self.target = list(map(int, prompt)), list(map(int, target))
        self.compress_at = len(self.prompt) if compress_at is None else compress_at
        self.tokens = self.prompt + self.target[:-1]
        self.steps = len(self.tokens) - self.compress_at

    @classmethod
    def read(cls, line):
        fields = json.loads(line)
        return cls(fields["prompt"], fields["continuation"] if "continuation" in fields else fields["answer"],
                   fields.get("compress_at"))


class Sequence:
    """The keys, values and queries of a sequence, as replay.Trace has them; NaN until they have been computed."""

    def __init__(self, model, task, window):
        c = model.config
        self.layers, self.query_heads, self.kv_heads = (
            c[f"num_{name}"] for name in ("hidden_layers", "attention_heads", "key_value_heads"))
        self.head_dim, self.model_dim, self.group = model.head_dim, c["hidden_size"], self.query_heads // self.kv_heads
        self.prompt_tokens, self.decode_tokens, self.scale = task.compress_at, task.steps, self.head_dim**-0.5
        self.window_queries = min(window, self.prompt_tokens)
        self.first_query = self.prompt_tokens - self.window_queries
        self.parts = []
        for layer in range(self.layers):
            rows = model.layer(layer, "self_attn.o_proj.weight").T.astype(float)
            projection = rows.reshape(self.query_heads, self.head_dim, self.model_dim)
            part = SimpleNamespace(index=layer, output_projection=projection)
            for name, heads, first in (("key", self.kv_heads, 0), ("value", self.kv_heads, 0),
                                       ("query", self.query_heads, self.first_query)):
                setattr(part, name, np.full((heads, len(task.tokens) - first, self.head_dim), np.nan))
            self.parts.append(part)

    def layer(self, index):
        return self.parts[index]

    def enter(self, index, heads, first=0):
        """Adds the layer's key, value and query [heads, tokens, head_dim] of the positions first, first + 1, ..."""
        for name, rows in heads.items():
            begin = first - (self.first_query if name == "query" else 0)
            rows = rows[:, max(0, -begin):]
            getattr(self.parts[index], name)[:, max(0, begin):max(0, begin) + rows.shape[1]] = rows


class FullRun:
    """The model on the whole task with the full cache; logits [tokens, vocabulary]; hidden: per layer [tokens, model_dim].

    seen: what each KV head of each layer may attend to, as in Llama.run.
    """

    def __init__(self, model, task, window=128, seen=None):
        self.hidden = []
        self.logits, self.layers = model.run(task.tokens, seen, self.hidden)
        self.sequence = Sequence(model, task, window)
        for index, heads in enumerate(self.layers):
            self.sequence.enter(index, {name: heads[name] for name in ("query", "key", "value")})


class ClosedRun:
    """The same with compressed caches: logits and hidden states of the steps, at the positions compress_at, ...

    kept     per layer and KV head: the positions kept after the prompt
    choices  per layer, step and KV head: the entry that is evicted, -1 for none, and what it merges into
    """

    def __init__(self, model, task, full, policy, budget):
        self.sequence = Sequence(model, task, full.sequence.window_queries)
        for index, heads in enumerate(full.layers):
            self.sequence.enter(index, {name: heads[name][:, :task.compress_at] for name in ("query", "key", "value")})
        self.caches, self.kept = [], []
        for index, entries in enumerate(layer_budgets(self.sequence, policy, budget)):
            self.compress(self.sequence.layer(index), policy, entries)
        self.choices, hidden, logits = [[] for _ in self.caches], [[] for _ in self.caches], []
        for step, token in enumerate(task.tokens[task.compress_at:]):
            x = model.embedded([token])
            for index in range(len(self.caches)):
                heads = model.heads(index, x, task.compress_at + step)
                self.sequence.enter(index, {name: rows.swapaxes(0, 1) for name, rows in heads.items()},
                                    task.compress_at + step)
                x = model.layer_output(index, x, self.attend(index, step)[None])
                hidden[index].append(x[0])
            logits.append(model.logits(x)[0])
        self.hidden, self.logits = np.array(hidden), np.array(logits)

    def compress(self, layer, policy, budget):
        scores, budgets, kept, members = prompt_choices(self.sequence, layer, policy, budget)
        arguments = [(self.sequence, layer, policy, int(budgets[group]), group, scores[group], kept[group])
                     for group in range(self.sequence.kv_heads)]
        self.caches.append([MergingHead(*own, members[own[4]]) if policy.merge else DecodingHead(*own) for own in arguments])
        self.kept.append(kept)

    def attend(self, index, step):
        """A decode step of one layer's caches, with evictions and merges: the attention output [query heads, head_dim]."""
        sequence, outputs, choices = self.sequence, [], []
        layer, position = sequence.layer(index), sequence.prompt_tokens + step
        for head in self.caches[index]:
            learn(head, position)
            seen = np.append(head.positions, position)
            gone, _, _ = head.step(step)
            if head.policy.merge:
                outputs.append(head.output)
            else:
                query = layer.query[head.heads, sequence.window_queries + step]
                outputs.append(attention_weights(query, head.key[seen], len(seen), sequence.scale) @ head.value[seen])
            choices.append((int(gone), int(head.merged_into) if head.policy.merge else -2))
        self.choices[index].append(choices)
        return np.concatenate(outputs)

    def seen(self):
        """Which keys each query attends to, to impose this run's evictions on a FullRun: booleans [layers][KV heads]
        [tokens, tokens]."""
        sequence, masks = self.sequence, []
        for kept, choices in zip(self.kept, self.choices):
            masks.append([])
            for group in range(sequence.kv_heads):
                evicted = [of_step[group][0] for of_step in choices]
                prompt = np.ones((sequence.prompt_tokens, sequence.prompt_tokens + sequence.decode_tokens), bool)
                masks[-1].append(np.concatenate((prompt, cached_entries(sequence, kept[group], evicted))))
        return masks


def learn(head, position):
    """Gives a cache the key and the value of a new entry, which were not known when the cache was made."""
    head.key[position], head.value[position] = (part[head.group, position] for part in (head.layer.key, head.layer.value))
    if head.policy.merge:
        head.key_terms[position], head.value_terms[position] = abs(head.key[position]), abs(head.value[position])
    new = head.value[position:position + 1]
    for norms, values, change in zip(head.norms, (new, abs(new)), (np.asarray, np.abs)):
        norms[:, position] = head.value_norms(values, change)[:, 0]


def recall(sequence, kept, count=40):
    """The share kept, at the prompt's end, of the `count` prompt entries whose eviction would change the first step's
    outputs most: those of largest sum_h ||o_h - o_h(-j)||^2; the mean over layers and KV heads."""
    shares = []
    for index, of_layer in enumerate(kept):
        layer, entries = sequence.layer(index), sequence.prompt_tokens + 1
        for group, positions in enumerate(of_layer):
            key, value, errors = layer.key[group, :entries], layer.value[group, :entries], 0.0
            for head in range(group * sequence.group, (group + 1) * sequence.group):
                query = layer.query[head, sequence.window_queries:][:1]
                errors = errors + removal_scores("exact", seen_logits(query, key, entries, sequence.scale)[0], value)
            shares.append(np.isin(select_top(errors[:-1], count), positions).mean())
    return float(np.mean(shares))


def open_loop(full, policy, budget):
    """The means of replay's measures over layers, steps and query heads (layer_*: layers and steps); NaN for x / 0."""
    sequence, results, relative = full.sequence, [], []
    for index, entries in enumerate(layer_budgets(sequence, policy, budget)):
        layer = sequence.layer(index)
        results.append(replayed_layer(sequence, layer, policy, entries)[0])
        output = full.layers[index]["attention_output"][:, sequence.prompt_tokens:]
        whole = abs(np.einsum("htd,hdm->tm", output, layer.output_projection)).sum(axis=1)
        relative.append(results[-1]["layer_perturbation"] / whole)
    means = {kind: float(np.nanmean([part[kind] for part in results])) if kind in results[0] else None for kind in MEASURES}
    return {**means, "layer_relative": float(np.mean(relative))}


def predictions(task, full, run=None):
    """The logits that predict the target: [target, vocabulary]; the prompt's last ones are the full cache's."""
    rows = np.arange(len(task.target)) + len(task.prompt) - 1
    if run is None:
        return full.logits[rows]
    logits = np.concatenate((full.logits[:task.compress_at], run.logits))
    return logits[rows]


def judged(task, logits, reference=None):
    """nll and top1 per target token, with the largest |logit| and the lead of top1 over the second; with the full cache's
    logits `reference` also kl."""
    logs = log_probabilities(logits)
    second, first = np.sort(logs, axis=-1)[:, -2:].T
    found = {"nll": (-logs[np.arange(len(logs)), task.target]).tolist(), "top1": logs.argmax(axis=-1).tolist(),
             "largest_logit": abs(logits).max(axis=-1).tolist(), "lead": (first - second).tolist()}
    if reference is not None:
        expected = log_probabilities(reference)
        found["kl"] = (np.exp(expected) * (expected - logs)).sum(axis=-1).tolist()
    return found


def evaluate(model, task, policies, budgets, window=128, measure=True):
    """{"full": {nll, top1}, "runs": [{policy, budget (text), kl, nll, top1, hidden_error, the means of open_loop, recall,
    run: ClosedRun}]}, budgets within policies. measure: also the open loop."""
    full = FullRun(model, task, window)
    runs = []
    for text in policies:
        policy = parse_policy(text)
        for budget in budgets:
            entries = resolve_budget(budget, full.sequence, policy)
            run = ClosedRun(model, task, full, policy, entries)
            found = {"policy": text, "budget": budget, "run": run,
                     **judged(task, predictions(task, full, run), predictions(task, full))}
            hidden = np.array(full.hidden, float)[:, task.compress_at:]
            found["hidden_error"] = (np.linalg.norm(run.hidden - hidden, axis=-1)
                                     / np.linalg.norm(hidden, axis=-1)).mean(axis=-1).tolist()
            if measure:
                found.update(open_loop(full, policy, entries), recall=recall(full.sequence, run.kept))
            runs.append(found)
    return {"full": judged(task, predictions(task, full)), "runs": runs}
