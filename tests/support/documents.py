"""Result documents of the program (version 2), as tests read them."""
import itertools
import json
import re

import numpy as np


class Row(dict):
    """Keys and figures of one row of a cube; a figure that the document leaves out because it says nothing is None."""

    def __missing__(self, name):
        return None


class Part:
    """One part of a document: facts, and cubes by name."""

    def __init__(self, part):
        self.facts, self.axes, self.cubes = part["facts"], part["axes"], part["cubes"]

    def size(self, axis):
        return len(next(iter(self.axes[axis].values())))

    def shape(self, cube):
        return [self.size(axis) for axis in self.cubes[cube]["axes"]]

    def column(self, cube, name):
        """An array over the cube's axes; NaN where there is no number, and everywhere if the document leaves the figure out."""
        values = self.cubes.get(cube, {"columns": {}})["columns"].get(name)
        if values is None:
            return np.full(self.shape(cube), np.nan) if cube in self.cubes else np.array([])
        return np.array([np.nan if value is None else value for value in values], float).reshape(self.shape(cube))

    def rows(self, cube):
        """Of a cube that the document leaves out: none."""
        if cube not in self.cubes:
            return []
        of = self.cubes[cube]
        places = [[{key: values[i] for key, values in self.axes[axis].items()} for i in range(self.size(axis))] for axis in of["axes"]]
        return [Row({key: value for place in row for key, value in place.items()} | {name: values[i] for name, values in of["columns"].items()})
                for i, row in enumerate(itertools.product(*places))]


def read(path):
    return json.loads(path.read_text("utf-8"))


def provenance(document):
    return document["provenance"]


def parts(document):
    return [Part(part) for part in document["parts"]]


def replayed(document, index=0):
    """A trace of a replay: its facts, times of operations, and `runs` with the figures of each run and of its layers, its changes by
    merges, and its judged tensors."""
    part = parts(document)[index]
    runs = part.rows("runs")
    for r, run in enumerate(runs):
        run["layers"] = [layer_of(part, r, layer) for layer in range(part.size("layer"))] if "layer" in part.axes else []
        run["changes"] = [change for change in part.rows("merges") if change["run"] == r]
        run["agreement"] = [item for item in judged(part) if all(item[key] == run[key] for key in ("policy", "budget", "backend"))] or None
    return part.facts | {"runs": runs, "times": part.rows("times")}


def layer_of(part, run, layer):
    """The figures of one layer of a run: per query head, KV head, or step."""
    found = Row(layer=part.axes["layer"]["layer"][layer])
    for cube in ("layers", "heads", "kv_heads", "layer_steps"):
        for name in part.cubes.get(cube, {"columns": ()})["columns"]:
            values = part.column(cube, name)[run, layer]
            if not np.isnan(values).all():
                found[name] = listed(values) if values.ndim else values.item()
    return found


def listed(values):
    """An array of one axis as a list, None where it is NaN."""
    return [None if np.isnan(value) else value for value in values.tolist()]


def evaluated(document):
    """An evaluation: its facts; `runs`; `tasks`, each with what the full cache and each run made of it; `summaries` of each kind
    and run, `full` of each kind; and `correlations`."""
    part, = parts(document)
    full, *runs = [{key: values[r] for key, values in part.axes["run"].items()} for r in range(part.size("run"))]
    tasks = [row | {"id": row["task"], "depth": row["depth"]} for row in part.rows("tasks")]
    for t, task in enumerate(tasks):
        here = {axis: [i for i, name in enumerate(part.axes[axis]["task"]) if name == task["task"]] for axis in ("token", "step")}
        task["target"] = [part.axes["token"]["target"][i] for i in here["token"]]
        found = [Row({name: listed(part.column("tokens", name)[here["token"], r]) for name in ("kl", "nll", "top1")})
                 for r in range(1 + len(runs))]
        task["full"], task["runs"] = found[0], found[1:]
        for r, run in enumerate(task["runs"], 1):
            run |= {name: values[t * (1 + len(runs)) + r] for name, values in part.cubes["task_runs"]["columns"].items() if name not in run}
            run.setdefault("bound", None)
            run["hidden_error"] = listed(part.column("task_layers", "hidden_error")[t, r])
            run |= {name: listed(part.column("steps", name)[here["step"], r]) for name in ("entries", "stored_entries")}
    rows = part.rows("runs")
    return part.facts | {"runs": runs, "tasks": tasks, "correlations": part.rows("correlations"),
                         "full": [row for row in rows if row["label"] == full["label"]],
                         "summaries": [row for row in rows if row["label"] != full["label"]]}


def predicted(document):
    """A prediction: facts; `predictions`, `reentering`, `variances` and `mass` over all, and of each of the `layers` by
    `query_heads`."""
    part, = parts(document)

    def figures(row):
        """Of a predictor, a share or what re-enters."""
        if "predictor" in row:
            return {"scores": row["scores"], "predictor": row["predictor"]} | {
                error: {"mean": row[error], "median": row[f"{error}_median"], "undefined": row[f"{error}_undefined"]}
                for error in ("relative_error", "entry_error")}
        if "share" in row:
            return {"share": row["share"], "mean": row["mass"], "median": row["mass_median"], "least": row["mass_least"]}
        return {"evicted": row["evicted"], "ever": row["reentered_ever"], "at_a_step": row["reentered_at_a_step"]}

    def variances(row):
        """Of an entry's scores, None where no entry was seen by enough queries."""
        return {name: row.get(column) for name, column in
                (("whole", "whole_variance"), ("window", "window_variance"), ("ratio", "variance_ratio"))}

    def of_head(cube, layer, head, figures=figures):
        return [figures(row) for row in part.rows(cube) if (row["layer"], row["head"]) == (layer, head)]

    layers = [{"layer": row["layer"], "budget": row["layer_entries"],
               "query_heads": [{"predictions": of_head("head_predictors", row["layer"], head),
                                "mass": of_head("head_shares", row["layer"], head),
                                "variances": of_head("heads", row["layer"], head, variances)[0],
                                "reentering": of_head("heads", row["layer"], head)[0]} for head in range(part.facts["query_heads"])]}
              for row in part.rows("layers")]
    reentering, = part.rows("reentering")
    return part.facts | {"layers": layers, "predictions": [figures(row) for row in part.rows("predictors")],
                         "mass": [figures(row) for row in part.rows("shares")],
                         "variances": variances(next(iter(part.rows("variances")), {})),
                         "reentering": {name: reentering[f"reentered_{name}"] for name in ("ever", "at_a_step")}}


def inspected(document):
    """An inspection: facts; `verified` layers; `layers`, each with its `query_heads` and its `kv_heads` with their `ties`; and the
    `means` of each layer and of all."""
    part, = parts(document)

    def of_layer(cube, number):
        return [{key: value for key, value in row.items() if key != "layer"} for row in part.rows(cube) if row["layer"] == number]

    layers = []
    for number in part.axes.get("layer", {"layer": []})["layer"]:
        kv_heads, ties = of_layer("kv_heads", number), of_layer("ties", number)
        for head in kv_heads:
            head["ties"] = [Row(one) for one in ties if one["kv_head"] == head["kv_head"]]
        layers.append({"layer": number, "query_heads": of_layer("heads", number), "kv_heads": kv_heads})
    return part.facts | {"verified": part.rows("verified"), "layers": layers, "means": part.rows("layers") + part.rows("all")}


def proved(document):
    """What `prove` found: facts; `theorems`, each with its `properties` and their `regimes`; `searches`; and `replayed` instances."""
    part, = parts(document)
    theorems, regimes = [theorem | {"properties": []} for theorem in part.rows("theorems")], part.rows("regimes")
    for one in part.rows("properties"):
        one["regimes"] = {row["regime"]: row["share"] for row in regimes if row["property"] == one["property"] and row["share"] is not None}
        next(theorem for theorem in theorems if theorem["theorem"] == one["theorem"])["properties"].append(one)
    return part.facts | {"seed": document["provenance"]["seed"], "theorems": theorems, "searches": part.rows("searches"), "replayed": part.rows("replayed"),
                         "properties": [one for theorem in theorems for one in theorem["properties"]]}


def index_of(text):
    """[5, 3] of "layers.2.output[5, 3]"."""
    return [int(number) for number in re.findall(r"\d+", text[text.find("["):])] if text else None


def judged(part):
    """The judged tensors of a part, each with its worst element, or None, and its functionals."""
    items = part.rows("tensors")
    for item in items:
        item["worst"] = None
        if item["worst_at"]:
            item["worst"] = Row({name: item[name] for name in ("claimed", "expected", "error", "bound", "share", "ulps", "note")},
                                index=index_of(item["worst_at"]))
        item["diagnosis"] = {"fault": item["diagnosis"], "rows": item["diagnosed_rows"]} if item["diagnosis"] else None
        item["functionals"] = [row | {"name": row["functional"]} for row in part.rows("functionals")
                               if all(row[key] == item[key] for key in ("policy", "budget", "backend", "layer", "tensor"))]
    return items


def compared(part):
    """The compared tensors of a part, each with its rows that are not identical."""
    items, differing = part.rows("tensors"), part.rows("differing")
    for row in differing:
        row.update(row=index_of(row["row"]), row_b=index_of(row["row_b"]))
    for item in items:
        item["distances"] = None
        if item["ulps"] is not None:
            item["distances"] = Row({name: item[name] for name in ("unit", "ulps", "row_ulps", "value_a", "value_b")},
                                    index=index_of(item["farthest"]))
        item["differing"] = [row for row in differing if (row["layer"], row["tensor"]) == (item["layer"], item["tensor"])]
    return items


def judgement(document):
    """What `diff` and `check` say: facts, judged tensors, and unlikely outputs."""
    part, = parts(document)
    return part.facts | {"tensors": judged(part), "unlikely": part.rows("unlikely")}


def comparison(document):
    """What `diff` and `check` say with --against: facts, compared tensors, and KV heads whose caches differ."""
    part, = parts(document)
    pairs = [[row["case_a"], row["case_b"]] for row in part.rows("pairs")]
    return part.facts | {"tensors": compared(part), "apart": part.rows("apart"), "compared": pairs}


def without_times_and_hosts(path):
    """The text of a replay's document without what another run may have otherwise: seconds, times of operations, the machine."""
    text = re.sub(r'^( *)"times": \{\n.*?^\1\},?\n', "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r'^( *)"operation": \{\n.*?^\1\},?\n', "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r'^ *"(?:compress_seconds|step_seconds|device|threads)": [^\n]*\n', "", text, flags=re.MULTILINE)
