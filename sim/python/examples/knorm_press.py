"""KnormPress (arXiv:2406.11430) in ten lines: what it loses on a recorded trace, and what a model then says.

    python knorm_press.py TRACE MODEL TASKS       such as traces/samples/pocket-gqa.safetensors, traces/samples/pocket and
                                                  sim/evaluate/tasks/pocket.jsonl of the project
"""
import itertools
import json
import sys

import kvbound
import numpy as np


class KnormPress:
    def score(self, queries, keys, values, output_projection):
        return -np.linalg.norm(keys, axis=2)  # of the prompt's entries those of smallest keys are kept


trace, model, tasks = sys.argv[1:]
press = KnormPress()
policies = ["snapkv", "snapkv+critical", press, (press, "critical")]
runs = kvbound.replay(trace, policies, budget="20%")["runs"]
with open(tasks, encoding="utf-8") as file:
    few = [json.loads(line) for line in itertools.islice(file, 4)]
outcomes = kvbound.evaluate(model, few, policies, budget="20%")["runs"]
print(f"{'policy':22}{'L':>8}{'theta':>8}{'KL':>8}")
kl = dict(zip(outcomes.columns()["label"], outcomes.columns()["kl"]))
for label, perturbation, bound in zip(runs.axes["run"]["label"], runs["perturbation"], runs["bound"]):
    print(f"{label:22}{perturbation:8.2f}{bound:8.2f}{kl[label]:8.3f}")
