"""The traces, policies and budgets that tests/golden/same_numbers.py replays: every method of the grammar, every option.

The unit test tests/golden/same_numbers_test.py checks that no component, option or named choice is left out.
"""
SCORES = ("obcache-value", "obcache-key", "obcache-joint", "exact")
MERGES = ("keepkv", "keepkv:threshold=none", "keepkv-paper", "keepkv:threshold=0.5:key=zip:gqa=mean",
          "keepkv:threshold=0.5:key=convex", "keepkv:gqa=mean", "keepkv:threshold=none:scores=raw",
          "keepkv:threshold=0.5:normalisation=paper", "keepkv:threshold=0.5:predict=current",
          "keepkv:threshold=0.5:period=3", "keepkv:threshold=0.5:ema=0.5:rank=0", "convex:threshold=0.5",
          "convex:gqa=mean:predict=current",
          "convex:threshold=none:scores=raw:normalisation=paper:ema=0.8", "d2o", "d2o:threshold=none", "kvmerger",
          "kvmerger:threshold=0.5", "cam", "cam:neighbours=4:seed=3")
PLAIN = (
    "snapkv", "snapkv:window=16:pool=1", "h2o", "h2o:window=16:sinks=4:recent=8", "h2o:recent=0", "tova", "tova:sinks=4",
    "streaming-llm", "streaming-llm:sinks=0", "random:window=16", "random:seed=7:sinks=0:window=0",
    *(f"{host}+{score}{space}" for host in ("snapkv", "h2o:sinks=2", "tova") for score in SCORES
      for space in ("", ":space=projected")))
SELECTIONS = (
    "snapkv+critical", "snapkv+critical:alpha=adaptive", "snapkv:window=16:pool=1+critical:alpha=0.25:epsilon=0:norm=l2",
    "snapkv+critical:alpha=adaptive:gqa=product-of-means:norm=l2", "h2o+critical",
    "h2o:recent=8+critical:alpha=adaptive:norm=l2", "h2o+critical:gqa=product-of-means", "tova+critical",
    "tova:sinks=1+critical:alpha=adaptive:gqa=product-of-means", "snapkv+theta-sweep",
    "snapkv+theta-sweep:alpha=adaptive:gqa=product-of-means:norm=l2", "h2o+theta-sweep:alpha=0.9:epsilon=1",
    "tova+theta-sweep:norm=l2")
ALLOCATIONS = (
    "snapkv+adakv", "snapkv:pool=1+adakv:safeguard=0", "h2o:recent=8+adakv", "tova+adakv:safeguard=0.5",
    "snapkv:window=8+pyramid", "h2o:recent=4+pyramid", "tova+pyramid:beta=3", "snapkv:window=8+pyramid:shape=cosine:beta=3",
    "streaming-llm+pyramid:shape=cosine:beta=2", "h2o:recent=4+pyramid:shape=cosine", "snapkv+critical+adakv:safeguard=0",
    "tova+exact+adakv", "random:window=8+pyramid", "snapkv:window=8+theta-sweep+pyramid:beta=2", "h2o+critical:alpha=adaptive+adakv")
MERGING = (
    *(f"{host}+{merge}" for host in ("snapkv", "h2o:recent=8") for merge in MERGES),
    "tova+keepkv:threshold=none", "tova+keepkv-paper:threshold=0.5", "tova:sinks=2+d2o:threshold=0.5", "tova+cam",
    "streaming-llm+keepkv:threshold=0.5", "streaming-llm+convex:threshold=none", "streaming-llm+kvmerger:threshold=none",
    "streaming-llm+cam:neighbours=8", "random:window=8+keepkv:threshold=0.5", "tova+keepkv:threshold=none:period=2",
    "snapkv+keepkv:threshold=0.5:order=merge-first", "h2o+keepkv:threshold=none:order=merge-first:gqa=mean",
    "tova+keepkv:threshold=0.9:order=merge-first", "snapkv+critical+keepkv", "h2o+critical+keepkv:threshold=0.5:period=2",
    "tova+exact+d2o:threshold=none", "h2o+obcache-joint:space=projected+keepkv:threshold=0.5",
    "snapkv+theta-sweep+adakv+keepkv:threshold=0.5", "tova+pyramid:beta=2+kvmerger:threshold=0.5",
    "h2o:recent=8+adakv:safeguard=0+keepkv:threshold=none")
GREEDY = ("snapkv:window=8+greedy", "snapkv:window=8+greedy+adakv", "snapkv:window=8+greedy+convex:threshold=none")
POLICIES = PLAIN + SELECTIONS + ALLOCATIONS + MERGING  # without greedy, which on a long prompt is slow at a small budget
EMULATED = ("snapkv", "snapkv:window=16:pool=1", "snapkv+critical", "snapkv+critical:alpha=adaptive",
            "snapkv:pool=3+critical:alpha=0.25:epsilon=0:norm=l2", "snapkv+critical:gqa=product-of-means:norm=l2")

# Policies for which `diff` judges every dump of changed_dumps.py; for the others it judges one in eight.
THOROUGH = ("snapkv", "h2o+critical", "tova+exact:space=projected", "streaming-llm", "snapkv+theta-sweep",
            "h2o:recent=8+adakv", "snapkv:window=8+pyramid", "h2o:recent=8+keepkv", "snapkv+keepkv-paper", "tova+cam",
            "snapkv+keepkv:threshold=0.5:order=merge-first", "h2o+critical+keepkv:threshold=0.5:period=2")
ONE_IN = 8

# Options of `generate`: every kind of attention and storage type, and groups of 1, 2, 3 and 4 query heads.
GENERATED = {
    "mixed-F64": {"kind": "mixed", "dtype": "F64", "tokens": 240, "layers": 3, "query-heads": 4, "kv-heads": 2},
    "power-law-BF16": {"kind": "power-law", "dtype": "BF16", "tokens": 261, "layers": 2, "query-heads": 6, "kv-heads": 2},
    "sink-F16": {"kind": "sink", "dtype": "F16", "tokens": 250, "layers": 2, "query-heads": 4, "kv-heads": 1},
    "needle-F32": {"kind": "needle", "dtype": "F32", "tokens": 239, "layers": 2, "query-heads": 2, "kv-heads": 2},
    "tied-F32": {"kind": "tied", "dtype": "F32", "tokens": 256, "layers": 2, "query-heads": 4, "kv-heads": 2},
    "flat-BF16": {"kind": "flat", "dtype": "BF16", "tokens": 243, "layers": 2, "query-heads": 4, "kv-heads": 2}}
SIZES = {"head-dim": 16, "model-dim": 24, "window-queries": 40, "decode": 7}  # for all generated traces
SAMPLES = ("pocket-gqa", "pocket-mha")
