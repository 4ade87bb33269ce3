"""Ten policies ranked by what they lose on a recorded trace, drawn as bars, and as a page by `kvbound report`.

    python rank_policies.py TRACE [PAGE.html]
"""
import subprocess
import sys
import tempfile

import kvbound
import numpy as np

POLICIES = ["snapkv", "snapkv+critical", "snapkv+adakv", "snapkv+pyramid", "h2o", "h2o+obcache-joint", "tova", "streaming-llm",
            "snapkv+keepkv", "random"]

trace, *page = sys.argv[1:]
result = kvbound.replay(trace, POLICIES, budget=["10%", "20%"], base="snapkv", layers=[0, 2])
losses = result["heads"]["relative"].mean(axis=(1, 2))  # [runs]: L / ||output|| over layers and heads
labels, budgets = (result["runs"].axes["run"][key] for key in ("label", "budget"))
for budget in ("10%", "20%"):
    print(f"{budget} kept: relative loss of a head's output")
    runs = np.flatnonzero(budgets == budget)
    for run in runs[np.argsort(losses[runs])]:
        print(f"  {labels[run]:20}{losses[run]:7.3f}  {'#' * round(50 * losses[run] / losses[runs].max())}")
if page:
    with tempfile.NamedTemporaryFile(suffix=".json") as document:
        result.save(document.name)
        subprocess.run(["kvbound", "report", document.name, "-o", page[0], "--quiet"], check=True)
