"""kvbound report: the page has the numbers of its documents, keeps what they say from being run, and refuses what is none.

How a browser draws it: browser/report_page_test.py and report_page_view_test.py.

usage: report_test.py KVBOUND      KVBOUND: the program's path
"""
import base64
import hashlib
import json
import os
import re
import shlex

import numpy as np

from support import kvbound_cli
from support.documents import evaluated, judgement, parts, predicted, proved, replayed
from support.kvbound_cli import INVALID, PASS, USAGE, WORLD, CommandLineTest
from support.report_documents import BASE, write_documents, write_large_replay
from support.report_page import Page, column, keys, six_digits


def tensors_of(document):
    return document["parts"][0]["cubes"]["tensors"]


class ReportTest(CommandLineTest):
    """The documents are made once, in the folder of a test of their own."""

    @classmethod
    def setUpClass(cls):
        cls.maker = CommandLineTest()
        cls.maker.setUp()
        cls.documents = write_documents(cls.maker)

    @classmethod
    def tearDownClass(cls):
        cls.maker.doCleanups()

    def path(self, name):
        return self.maker.folder / self.documents[name]

    def document(self, name):
        return json.loads(self.path(name).read_text("utf-8"))

    def report(self, *paths):
        self.passes("report", *paths, "-o", "page.html", "--quiet")
        return Page(self.folder / "page.html")

    def page(self, *names):
        return self.report(*map(self.path, names))

    def trace(self, name):
        return replayed(self.document(name))

    def changed(self, name, change):
        """The path of a copy that `change` has changed."""
        document = self.document(name)
        change(document)
        path = self.folder / "changed.json"
        path.write_text(json.dumps(document), "utf-8")
        return path

    def assert_same(self, cube, name, numbers):
        found = column(cube, name).ravel()
        self.assertGreater(found.size, 0)
        np.testing.assert_array_equal(found, six_digits(numbers), name)


class Numbers(ReportTest):
    def test_of_a_replay(self):
        page, trace = self.page("replay"), self.trace("replay")
        cube = page.cube_of("Perturbation against budget")
        for name in ("perturbation", "relative", "bound", "tightness", "stage_one_low"):
            none = [None] * trace["query_heads"]
            self.assert_same(cube, name, [layer[name] or none for run in trace["runs"] for layer in run["layers"]])
        for name in ("budget", "entries", "violations"):
            self.assertEqual(keys(cube, name), [run[name] for run in trace["runs"]])
        self.assertEqual(keys(cube, "canonical"), [run["policy"] for run in trace["runs"]])
        self.assertEqual(keys(cube, "layer"), trace["replayed_layers"])
        self.assertEqual(keys(cube, "bytes"),
                         [sum(map(sum, (layer["kept"] for layer in run["layers"]))) * 2 * trace["head_dim"] * 4 for run in trace["runs"]])
        self.assert_same(page.cube_of("Budgets of KV heads"), "kept", [layer["kept"] for run in trace["runs"] for layer in run["layers"]])

    def test_of_the_base(self):
        trace, cube = self.trace("replay"), self.page("replay").cube_of("Perturbation against budget")
        bases = keys(cube, "base")
        for run, base in zip(trace["runs"], bases):
            self.assertEqual(trace["runs"][base]["policy"], BASE + ":pool=7")
            self.assertEqual(trace["runs"][base]["budget"], run["budget"])

    def test_of_kept_sets_have_their_sizes_as_budgets(self):
        def give(document):
            document["parts"][0]["axes"]["run"]["budget"][0] = "given"
        cube = self.report(self.changed("replay", give)).cube_of("Perturbation against budget")
        runs = self.trace("replay")["runs"]
        self.assertEqual(keys(cube, "budget"), [f"{runs[0]['entries']} (given)", *(run["budget"] for run in runs[1:])])

    def test_of_the_layers_of_a_replay(self):
        page, part = self.page("replay"), parts(self.document("replay"))[0]
        cube = page.cubes[page.data["answer"][0]["layers"]]
        self.assert_same(cube, "layer_relative", np.nanmean(part.column("layer_steps", "layer_relative"), axis=2).tolist())

    def test_of_layers_leave_out_what_is_undefined(self):
        def without_the_first_step(document):
            numbers = document["parts"][0]["cubes"]["layer_steps"]["columns"]["layer_relative"]
            numbers[0] = None
            numbers[1] = 7
        part = parts(self.document("replay"))[0]
        path = self.changed("replay", without_the_first_step)
        expected = part.column("layer_steps", "layer_relative")[0, 0]
        expected[1] = 7
        page = self.report(path)
        found = column(page.cubes[page.data["answer"][0]["layers"]], "layer_relative")[0, 0]
        self.assertEqual(found, six_digits([expected[1:].mean()])[0])

    def test_of_every_figure_of_the_runs(self):
        def add_a_figure(document):
            runs = document["parts"][0]["cubes"]["runs"]["columns"]
            runs["new_figure"] = [0.125 + place for place in range(len(runs["perturbation"]))]
        table = self.report(self.changed("replay", add_a_figure)).data["sections"][0]["table"]
        columns = dict(zip(table["headings"], zip(*([cell["text"] for cell in row] for row in table["rows"]))))
        runs = self.trace("replay")["runs"]
        self.assertEqual(columns["new_figure"], tuple(f"{0.125 + place:#.4g}" for place in range(len(runs))))
        for name in ("policy", "budget", "entries", "perturbation", "violations"):
            self.assertEqual(columns[name], tuple(run[name] if isinstance(run[name], str) else "-" if run[name] is None else
                                                  f"{run[name]:#.4g}" if run[name] % 1 else str(int(run[name])) for run in runs), name)

    def test_of_a_recall(self):
        page, (part,) = self.page("recall"), parts(self.document("recall"))
        for name in ("first_step", "first_step_recent", "mean_step", "mean_step_recent"):
            self.assert_same(page.cube_of("recall@8"), name, part.column("heads", name).ravel().tolist())

    def test_of_predictions(self):
        page, document = self.page("predict"), predicted(self.document("predict"))
        heads = [head for layer in document["layers"] for head in layer["query_heads"]]
        self.assert_same(page.cube_of("Prediction error"), "relative_error_median",
                         [prediction["relative_error"]["median"] for head in heads for prediction in head["predictions"]])
        mass = page.cube_of("Concentration")
        self.assert_same(mass, "mass", [mass["mean"] for head in heads for mass in head["mass"]])
        self.assertEqual(keys(mass, "share"), [float(mass["share"].rstrip("%")) for mass in document["mass"]])
        self.assert_same(page.cube_of("Evicted entries"), "reentered_ever", [head["reentering"]["ever"] for head in heads])
        self.assert_same(page.cube_of("Variance of scores"), "variance_ratio", [head["variances"]["ratio"] for head in heads])

    def test_of_an_evaluation(self):
        page, document = self.page("evaluate"), evaluated(self.document("evaluate"))
        cube = page.cube_of("Divergence")
        self.assertEqual(keys(cube, "kind"), ["needle, answers", "prose"])
        for name in ("kl", "delta_nll"):
            self.assert_same(cube, name, [summary[name] for summary in document["summaries"]])
            self.assert_same(cube, f"{name} from", [summary[f"{name}_low"] for summary in document["summaries"]])
            self.assert_same(cube, f"{name} to", [summary[f"{name}_high"] for summary in document["summaries"]])
        for name in ("perturbation", "entries", "bytes"):
            self.assert_same(cube, name, [summary[name] for summary in document["summaries"]])
        correlations = [one for one in document["correlations"] if one["indicator"] == "perturbation"]
        cube = page.cube_of("Rank correlation")
        self.assert_same(cube, "correlation", [one["of_means"] for one in correlations])
        for end, name in (("from", "of_means_low"), ("to", "of_means_high")):
            self.assert_same(cube, f"correlation {end}", [one["of_means"] if one[name] is None else one[name] for one in correlations])
        self.assertEqual(set(keys(cube, "of")), {f"{outcome}, {budget}" for outcome in ("KL", "ΔNLL")
                                                 for budget in ("budget 20%", "budget 40%", "all budgets together")})

    def test_of_retrieval(self):
        cube, document = self.page("evaluate").cube_of("Retrieval"), evaluated(self.document("evaluate"))
        tasks = [task for task in document["tasks"] if task["depth"] is not None]
        self.assertEqual(keys(cube, "depth"), [task["depth"] for task in tasks])
        self.assertEqual(keys(cube, "tokens"), [task["prompt_tokens"] for task in tasks])
        self.assert_same(cube, "exact", [one["top1"] == task["target"] for task in tasks for one in (task["full"], *task["runs"])])

    def test_of_a_diff(self):
        cube, tensors = self.page("diff").cube_of("Agreement"), judgement(self.document("diff"))["tensors"]
        for name in ("error", "bound", "share"):
            self.assert_same(cube, name, [(tensor["worst"] or {}).get(name) for tensor in tensors])
        self.assertEqual(keys(cube, "tensor"), [tensor["tensor"] for tensor in tensors])

    def test_of_a_backend_beside_the_reference(self):
        page, runs = self.page("backends"), self.trace("backends")["runs"]
        cube = page.cube_of("Agreement")
        judged = [tensor for run in runs for tensor in run["agreement"] or []]
        self.assert_same(cube, "share", [(tensor["worst"] or {}).get("share") for tensor in judged])
        self.assertEqual(set(keys(cube, "run")), {f"{BASE}, 40%, emulated"})
        runs_cube = page.cube_of("Perturbation")
        self.assertEqual(keys(runs_cube, "run"), [f"{BASE}, reference", f"{BASE}, emulated"])
        self.assertEqual(keys(runs_cube, "policy"), [BASE, BASE])
        self.assertEqual(keys(runs_cube, "backend"), ["reference", "emulated"])

    def test_of_theorems(self):
        page, properties = self.page("prove"), proved(self.document("prove"))["properties"]
        self.assert_same(page.cube_of("Cases"), "cases", [one["cases"] for one in properties])
        self.assert_same(page.cube_of("Tightness"), "tightest", [one["tightest"] for one in properties])
        regimes = page.cube_of("Regimes")
        self.assert_same(regimes, "share", [one["regimes"].get(name) for one in properties for name in keys(regimes, "regime")])

    def test_of_times(self):
        page, operations = self.page("bench"), parts(self.document("bench"))[0].rows("operations")
        cube = page.cube_of("Time of operations")
        self.assert_same(cube, "seconds", [one["seconds"] for one in operations])
        self.assertEqual(keys(cube, "operation"), [one["operation"] for one in operations])
        self.assert_same(page.cube_of("Goals"), "of_goal", [one["ratio"] / one["at_least"] if one["at_least"] else one["at_most"] / one["ratio"]
                                                            for one in operations])

    def test_of_predicted_times(self):
        page, part = self.page("model"), parts(self.document("model"))[0]
        cube, operations, launches = page.cube_of("Predicted time"), part.rows("operations"), part.rows("launches")
        self.assert_same(cube, "predicted_seconds", [one["predicted_seconds"] for one in operations])
        self.assert_same(cube, "floor_share", [one["floor_seconds"] / one["predicted_seconds"] for one in operations])
        self.assertEqual(keys(page.cube_of("Roofline"), "kernel"), [launch["kernel"] for launch in launches])
        flop = [launch["mma_flop"] + (launch["warpgroup_mma_flop"] or 0) for launch in launches]
        self.assert_same(page.cube_of("Roofline"), "rate", [work / launch["predicted_seconds"] if work else None
                                                            for work, launch in zip(flop, launches)])


class Pages(ReportTest):
    def test_have_a_part_for_each_document_in_their_order(self):
        page = self.page("recall", "replay", "prove", "replay")
        self.assertEqual([section["id"] for section in page.data["sections"]], ["part-1", "part-2-1", "part-3", "part-4-1"])
        ids = [figure["id"] for figure in page.figures()]
        self.assertEqual(len(set(ids)), len(ids))
        self.assertEqual([one["path"] for one in page.data["provenance"]],
                         [*map(str, map(self.path, ("recall", "replay", "prove", "replay"))), "This page"])

    def test_say_where_numbers_come_from(self):
        page, document = self.page("replay"), self.document("replay")
        facts = dict(page.data["provenance"][0]["facts"])
        self.assertEqual(facts["SHA-256"], hashlib.sha256(self.path("replay").read_bytes()).hexdigest())
        self.assertEqual(facts["SHA-256 of the file"], document["parts"][0]["facts"]["sha256"])
        self.assertEqual(facts["revision"], document["provenance"]["revision"])
        self.assertRegex(dict(page.data["provenance"][-1]["facts"])["drawn by"], r"\AD3 5\.\d+\.\d+ \([\w.-]+\)\Z")
        self.assertIn("Redistribution and use", page.text)  # the library's licence

    def test_are_made_again_by_the_command_that_they_name(self):
        path = self.folder / "it's a name.json"
        path.write_bytes(self.path("recall").read_bytes())
        page = self.report(path)
        before = page.text
        command = shlex.split(dict(page.data["provenance"][-1]["facts"])["made by"])
        self.assertEqual(command[0], "kvbound")
        self.passes(*command[1:])
        self.assertEqual((self.folder / "page.html").read_text("utf-8"), before)

    def test_join_what_a_model_says_with_the_trace_of_that_model(self):
        def of_the_model(document):
            document["parts"][0]["facts"]["model"] = evaluated(self.document("evaluate"))["model"]["name"] + ": of random numbers"
        page = self.report(self.changed("replay", of_the_model), self.path("evaluate"))
        self.assertEqual(len(page.data["answer"]), 1)
        self.assertTrue(page.data["answer"][0]["heads"] and page.data["answer"][0]["outcomes"])
        apart = self.page("replay", "evaluate")
        self.assertEqual([(bool(one["heads"]), bool(one["outcomes"])) for one in apart.data["answer"]], [(True, False), (False, True)])
        origin = "; KL from evaluate.json, backend reference"
        for one in (page.data["answer"][0], apart.data["answer"][1]):
            self.assertTrue(one["subject"].endswith(origin), one["subject"])
        self.assertNotIn("KL from", apart.data["answer"][0]["subject"])

    def test_have_a_picture_of_each_trace(self):
        for name, title in (("replay", f"Change against {BASE}"), ("backends", "Relative L by budget")):
            page = self.page(name)
            picture, = [figure for figure in page.figures() if figure["id"] == page.data["answer"][0]["picture"]]
            self.assertEqual((picture["title"], picture["x"]["value"]), (title, "budget"))

    def test_are_made_of_texts_that_are_empty(self):
        page = self.report(self.changed("replay", lambda document: document["parts"][0]["facts"].update(model="", source="")))
        self.assertEqual(page.data["sections"][0]["title"], "Replay of a model without a name")

    def test_say_which_heads_have_a_cache(self):
        def line(change):
            return self.report(self.changed("replay", lambda document: change(document["parts"][0]["facts"]))).data["sections"][0]["lines"][0]
        text = " KV heads (a cache for each query head), "
        self.assertIn(text, line(lambda facts: facts.update(heads="query")))
        self.assertNotIn(text, line(lambda facts: None))
        self.assertNotIn(text, line(lambda facts: facts.pop("heads")))

    def test_have_what_a_run_says_of_itself(self):
        trace, cube = self.trace("replay"), self.page("replay").cube_of("Perturbation")
        for r, run in enumerate(trace["runs"]):
            for name in ("tightness", "stage_one_low"):
                if run[name] is not None:
                    self.assertAlmostEqual(column(cube, name)[r].mean(), run[name], places=5)
        self.assertEqual(np.isfinite(column(cube, "stage_one_low")).all(axis=(1, 2)).sum(), 2)

    def test_call_policies_by_what_differs_from_the_defaults(self):
        self.assertEqual(list(dict.fromkeys(keys(self.page("replay").cube_of("Perturbation"), "policy"))),
                         [BASE, f"{BASE}+critical", f"{BASE}+adakv", f"{BASE}+keepkv"])

    def test_describe_each_figure(self):
        for figure in self.page(*self.documents).figures():
            with self.subTest(figure["title"]):
                self.assertRegex(figure["how"], r"\.\Z")
                self.assertTrue(figure["x"]["label"] and figure["y"]["label"])
                self.assertIn(figure["kind"], ("lines", "whiskers", "scatter", "heatmap", "dots"))

    def test_name_tensors_outside_their_bounds(self):
        def spoil(document):
            columns = tensors_of(document)["columns"]
            columns["outside"][0], columns["judged"][0] = 3, 20
        page = self.report(self.changed("diff", spoil))
        tensor = judgement(self.document("diff"))["tensors"][0]["tensor"]
        self.assertIn(f"Layer 0, {tensor}, {BASE}+critical at 40% on emulated: 3 of 20 elements are outside their bounds.", page.lines())

    def test_name_tensors_without_a_number(self):
        def spoil(document):
            columns = tensors_of(document)["columns"]
            columns["outside"] = [judged if share is not None else 0 for judged, share in zip(columns["judged"], columns["share"])]
            columns["error"] = columns["share"] = [None] * len(columns["share"])
        page = self.report(self.changed("diff", spoil))
        self.assertEqual(sum("are outside their bounds" in line for line in page.lines()),
                         min(20, sum(tensor["share"] is not None for tensor in judgement(self.document("diff"))["tensors"])))

    def test_name_the_first_of_many_tensors_outside_their_bounds(self):
        def spoil(document):
            part = document["parts"][0]
            part["axes"]["tensor"] = {name: values[:1] * 25 for name, values in part["axes"]["tensor"].items()} | {"layer": [*range(25)]}
            columns = tensors_of(document)["columns"]
            columns.update({name: values[:1] * 25 for name, values in columns.items()} | {"outside": [3] * 25})
        lines = self.report(self.changed("diff", spoil)).lines()
        self.assertEqual(sum(line.startswith("Layer ") for line in lines), 20)
        self.assertIn("Further tensors that differ, which the JSON names: 5.", lines)

    def test_tell_documents_and_traces_of_one_model_apart(self):
        def titles(*documents):
            return [section["title"] for section in self.report(*documents).data["sections"]]
        model = self.page("replay").data["sections"][0]["title"]
        other = self.changed("replay", lambda document: None)
        self.assertEqual(titles(self.path("replay"), other), [f"{model} (replay.json)", f"{model} (changed.json)"])
        def again(document):
            part = document["parts"][0]
            document["parts"].append(part | {"facts": part["facts"] | {"path": "again.safetensors"}})
        first = self.trace("replay")["path"]
        self.assertEqual(titles(self.changed("replay", again)), [f"{model}, {first}", f"{model}, again.safetensors"])
        prove = self.path("prove")
        self.assertEqual(titles(prove, prove), ["Theorems (prove.json)", "Theorems (prove.json), 2"])
        (self.folder / "prove.json").write_bytes(prove.read_bytes())
        self.assertEqual(titles(prove, self.folder / "prove.json"),
                         [f"Theorems ({path.parent.name}/prove.json)" for path in (prove, self.folder / "prove.json")])

    def test_have_whole_paths_in_their_provenance_alone(self):
        trace = "/some/where/trace.safetensors"
        page = self.report(self.changed("replay", lambda document: document["parts"][0]["facts"].update(path=trace)), self.path("diff"))
        subject, = page.data["answer"]
        self.assertTrue(subject["subject"].endswith(" (trace.safetensors)"), subject["subject"])
        self.assertEqual(page.data["sections"][1]["title"], "Another implementation: dump.safetensors")
        self.assertEqual([one["path"] for one in page.data["provenance"][:2]], [str(self.folder / "changed.json"), str(self.path("diff"))])
        self.assertEqual(dict(page.data["provenance"][0]["facts"])["file"], trace)

    def test_say_first_which_theorems_fail(self):
        properties = proved(self.document("prove"))["properties"]
        def section_with(*verdicts):
            def spoil(document):
                part = document["parts"][0]
                ids, columns = part["axes"]["property"]["property"], part["cubes"]["properties"]["columns"]
                for theorem, verdict in zip(part["axes"]["theorem"]["theorem"], verdicts):
                    columns["verdict"][ids.index(theorem)] = verdict
            return self.report(self.changed("prove", spoil)).data["sections"][0]
        claims = sum(not one["kind"] == "theorem" for one in properties)
        behind = f"theorems no counterexample was found; {claims} claims without one of their hypotheses are refuted, as they must be."
        good = section_with("no-counterexample", "no-counterexample")
        self.assertEqual(good["headline"], f"nothing fails. To 2 {behind}")
        self.assertEqual(sorted(row[0]["text"] for row in good["table"]["rows"]), sorted(one["property"] for one in properties))
        bad = section_with("undecided", "violated")
        self.assertEqual(bad["headline"], f"kkv-8 fails. Inconclusive: ckv-3.3. To 0 {behind}")
        self.assertEqual([(row[0]["text"], row[1]["text"], row[1]["wrong"]) for row in bad["table"]["rows"][:2]],
                         [("kkv-8", "fails", True), ("ckv-3.3", "inconclusive: an instance could not be evaluated", False)])
        self.assertEqual(bad["table"]["rows"][0][4]["text"], next(one["claim"] for one in properties if one["property"] == "kkv-8"))

    def test_say_first_which_searches_and_stored_instances_fail(self):
        def search_fails(document):
            part = document["parts"][0]
            part["axes"]["search"] = {"property": ["ckv-3.3"]}
            part["cubes"]["searches"] = {"axes": ["search"], "columns": {"ratio": [1.5], "failure": ["L <= theta: 3 > 2"]}}
        self.assertRegex(self.report(self.changed("prove", search_fails)).data["sections"][0]["headline"], r"\Ackv-3.3 fails\. .* To 1 theorems")
        self.passes("prove", "--replay", self.path("prove"), "--json", "again.json")
        section = self.report("again.json").data["sections"][0]
        count = len(self.document("prove")["parts"][0]["facts"]["instances"])
        self.assertEqual((section["headline"], section["table"]), (f"nothing fails. {count} stored instances were run again.", None))
        document = json.loads((self.folder / "again.json").read_text("utf-8"))
        outcomes = document["parts"][0]["cubes"]["replayed"]["columns"]["outcome"]
        outcomes[:2] = "wrong", "undecided"
        (self.folder / "again.json").write_text(json.dumps(document), "utf-8")
        ids = document["parts"][0]["axes"]["instance"]["property"]
        self.assertTrue(self.report("again.json").data["sections"][0]["headline"].startswith(f"{ids[0]} fails. Inconclusive: {ids[1]}. "))

    def test_say_first_whether_tensors_are_within_their_bounds(self):
        def spoil(document):
            tensors_of(document)["columns"]["outside"][0] = 3
        count = len(judgement(self.document("diff"))["tensors"])
        for path, headline in ((self.path("diff"), f"all {count} judged tensors agree with the reference, within their bounds."),
                               (self.changed("diff", spoil), f"1 of {count} judged tensors differ from the reference.")):
            self.assertEqual(self.report(path).data["sections"][0]["headline"], headline)

    def test_say_of_calls_of_kernels_how_many_agree(self):
        def repeat(document):
            part = document["parts"][0]
            wrong = json.loads(json.dumps(part))
            wrong["facts"] |= {"path": "ours/kernel_test.py::test_wrong", "verdict": "differs"}
            columns = wrong["cubes"]["tensors"]["columns"]
            columns["verdict"], columns["outside"] = ["differs"], [3]
            document["parts"] = [part, part, wrong]
        page = self.page("check")
        self.assertEqual(page.data["sections"][0]["headline"], "all 1 judged tensors agree with the reference, within their bounds.")
        self.assertEqual(page.data["sections"][0]["lines"], ["Calls, by verdict of 1: agrees: 1."])
        section = self.report(self.changed("check", repeat)).data["sections"][0]
        self.assertEqual(section["headline"], "1 of 3 judged tensors differ from the reference.")
        self.assertEqual(section["lines"], ["Calls, by verdict of 3: agrees: 2, differs: 1.",
                                            "kernel_test.py::test_wrong, indices: 3 of 8 elements are outside their bounds."])

    def test_of_a_32_layer_model_have_less_than_3_mb(self):
        write_large_replay(self.path("replay"), self.folder / "large.json", layers=32, heads=32, policies=10, budgets=5)
        page = self.report("large.json")
        self.assertLess(len(page.text), 3e6)
        self.assertEqual(column(page.cube_of("Perturbation"), "perturbation").shape, (50, 32, 32))
        self.assertFalse(any("evenly chosen" in line for line in page.lines()))

    def test_thin_more_heads_than_a_quarter_of_a_million_and_say_so(self):
        document = write_large_replay(self.path("replay"), self.folder / "large.json", layers=36, heads=64, policies=12, budgets=10)
        page = self.report("large.json")
        cube = page.cube_of("Perturbation")
        self.assertEqual(keys(cube, "layer"), list(range(0, 36, 2)))
        self.assert_same(cube, "relative", parts(document)[0].column("heads", "relative")[:, ::2].tolist())
        self.assertTrue(any("figures of 18 of these layers, evenly chosen" in line for line in page.lines()))


class Safety(ReportTest):
    HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>'\"&\u2028\x07"

    def test_nothing_that_a_document_says_is_part_of_the_page(self):
        def spoil(document):
            document["provenance"]["revision"] = self.HOSTILE
            part = document["parts"][0]
            part["facts"] |= {"model": self.HOSTILE, "source": self.HOSTILE}
            part["axes"]["run"]["policy"] = part["axes"]["run"]["budget"] = [self.HOSTILE] * len(part["axes"]["run"]["policy"])
        page = self.report(self.changed("replay", spoil))
        self.assertEqual(len(re.findall("<script", page.text)), 2)
        self.assertEqual(len(re.findall("</script", page.text)), 2)
        self.assertNotIn("<img", page.text)
        self.assertEqual(keys(page.cube_of("Perturbation"), "policy")[0], self.HOSTILE)

    def test_the_page_s_own_script_and_style_alone_are_allowed(self):
        text = self.page("replay").text
        policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        self.assertEqual(rules["default-src"], "'none'")
        for element, rule in (("script", "script-src"), ("style", "style-src")):
            content = re.search(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)[1]
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            self.assertEqual(rules[rule], f"'sha256-{digest}'")
        self.assertEqual(sorted(rules), ["base-uri", "default-src", "form-action", "img-src", "script-src", "style-src"])
        self.assertEqual(re.findall(r'\b(?:src|href)="[^#]', text.split('<script type="application/json"')[0]), [])


class Terminals(ReportTest):
    """--plot and --markdown of the commands that have them; what figures look like: tests/sim/figures/plot_test.cpp."""

    COMMANDS = {
        "replay": ("replay", "trace.safetensors", "--policy", f"{BASE},{BASE}+critical", "--base", BASE, "--budget", "20%,40%"),
        "recall": ("recall", "trace.safetensors", "--k", "8", "--recent", "4"),
        "predict": ("predict", "trace.safetensors", "--budget", "20%", "--policy", BASE),
        "evaluate": ("evaluate", "model", "tasks.jsonl", "--policy", f"{BASE},{BASE}+critical", "--budget", "20%"),
    }

    def printed(self, name, *options):
        return self.passes(*self.COMMANDS[name], *options, "--quiet", cwd=self.maker.folder)

    def test_figures_follow_the_tables(self):
        titles = {"replay": ["Relative L by budget", f"Change of L against {BASE} by layer and query head: {BASE}+critical, reference, budget 40%"],
                  "recall": ["recall@8 by window, all decode steps"],
                  "predict": ["Median relative error by predictor", "Attention on the entries that are paid most"],
                  "evaluate": ["KL by budget, needle", "KL by budget, prose"]}
        for name, expected in titles.items():
            with self.subTest(name):
                plain, plotted = self.printed(name), self.printed(name, "--plot")
                for title in expected:
                    self.assertNotIn(f"\n{title}\n", plain)
                    self.assertIn(f"\n{title}\n\n", plotted)
                self.assertIn(" " + 40 * "#" + " ", plotted)
                self.assertTrue(plotted.isascii())

    def test_bars_are_as_long_as_their_numbers_say(self):
        trace = self.trace("replay")
        plotted = self.passes("replay", "trace.safetensors", "--policy", trace["base"], "--budget", "20%,40%", "--plot", "--quiet",
                              cwd=self.maker.folder)
        means = {run["budget"]: run["relative"] for run in trace["runs"] if run["policy"] == trace["base"]}
        bars = re.findall(r"(\d+%)  (#+) ([\d.]+)$", plotted, re.MULTILINE)
        self.assertEqual([(budget, len(bar), float(number)) for budget, bar, number in bars],
                         [(budget, round(40 * means[budget] / max(means.values())), float(f"{means[budget]:.4g}"))
                          for budget in ("20%", "40%")])

    def test_tables_of_markdown_have_the_same_cells(self):
        for name in self.COMMANDS:
            with self.subTest(name):
                plain = [line.split() for line in self.printed(name).splitlines()]
                rows = [line.strip("|").split("|") for line in self.printed(name, "--markdown").splitlines() if line.startswith("|")]
                cells = [" ".join(cell.strip() for cell in row).replace("\\", "").split() for row in rows if set("".join(row)) - set("-: ")]
                self.assertGreater(len(cells), 2)
                for row in cells:
                    self.assertIn(row, plain)


class Refusals(ReportTest):
    def refuses_document(self, pattern, name, change, code=INVALID):
        path = self.changed(name, change)
        self.refuses(code, pattern, "report", path, "-o", "page.html", silent=True)

    def test_of_files_that_are_no_documents(self):
        for text, pattern in (("", r"is not valid JSON"), ("[1, 2]", r"is an array; expected an object"),
                              ('{"a": 1}', r"schema: is missing"), ('{"schema": 1}', r"schema: is 1; expected a string"),
                              ('{"schema": "kvbound-3"}', r'schema: is "kvbound-3"; expected'),
                              ('{"schema": "kvbound-2", "command": "record"}', r'command: is "record"; expected replay or diff'),
                              ('{"schema": "kvbound-bench-model-1"}', r"schema: is version 1 .*; write it again by kvbound bench\n"),
                              ('{"schema": "kvbound-replay-1"}', r"schema: is version 1 of a document, which is not read any more; "
                                                                 r"write it again by kvbound replay"),
                              ('{"schema": "kvbound-2", "a": NaN}', r"is not valid JSON"),
                              ('{"schema": "kvbound-inspect-1"}', r'schema: is "kvbound-inspect-1"; expected'),
                              (self.path("replay").read_text("utf-8")[:5000], r"at byte 5000: is not valid JSON")):
            with self.subTest(text[:40]):
                (self.folder / "bad.json").write_text(text, "utf-8")
                self.refuses(INVALID, r"bad\.json: (at byte \d+: )?" + pattern, "report", "bad.json", "-o", "page.html", silent=True)

    def test_of_documents_that_lack_something(self):
        facts = lambda document: document["parts"][0]["facts"]
        axes = lambda document: document["parts"][0]["axes"]
        cubes = lambda document: document["parts"][0]["cubes"]
        for pattern, name, change in (
                (r"parts\[0\]\.cubes: have an axis run without a key policy", "replay", lambda d: axes(d)["run"].pop("policy")),
                (r"parts: is an array; expected a list that is not empty", "replay", lambda d: d.update(parts=[])),
                (r"parts\[0\]\.cubes\.heads\.columns\.perturbation: has \d+ values; expected \d+", "replay",
                 lambda d: cubes(d)["heads"]["columns"]["perturbation"].pop()),
                (r"parts\[0\]\.cubes\.heads\.columns\.perturbation\[0\]: is \d+\.\d+; expected a string", "replay",
                 lambda d: cubes(d)["heads"]["columns"]["perturbation"].__setitem__(2, "x")),
                (r"parts\[0\]\.cubes\.kv_heads: has no numbers kept", "replay", lambda d: cubes(d)["kv_heads"]["columns"].pop("kept")),
                (r"parts\[0\]\.cubes: have no heads", "replay", lambda d: cubes(d).pop("heads")),
                (r"parts\[0\]\.cubes\.heads: expected the first 3 of the axes", "replay",
                 lambda d: cubes(d)["heads"].update(axes=["layer", "run", "head"])),
                (r"parts\[0\]\.cubes\.runs: has a base_run that is none of its runs", "replay",
                 lambda d: cubes(d)["runs"]["columns"].update(base_run=[9] * len(axes(d)["run"]["policy"]))),
                (r"head_dim: is 99999999; expected", "replay", lambda d: facts(d).update(head_dim=99999999)),
                (r"cubes\.heads: expected the axes layer, head, scored", "recall", lambda d: d["parts"][0]["cubes"]["heads"]["axes"].reverse()),
                (r"have an axis scored whose key window is no integer", "recall",
                 lambda d: d["parts"][0]["axes"]["scored"]["window"].__setitem__(0, 0.5)),
                (r"have no head_shares", "predict", lambda d: d["parts"][0]["cubes"].pop("head_shares")),
                (r"whose key share is no count and no share of entries", "predict",
                 lambda d: d["parts"][0]["axes"]["share"]["share"].__setitem__(0, "few")),
                (r"cubes\.runs: expected the axes kind, run, with places", "evaluate", lambda d: d["parts"][0]["cubes"]["runs"]["axes"].reverse()),
                (r"cubes: have no task_runs", "evaluate", lambda d: d["parts"][0]["cubes"].pop("task_runs")),
                (r"cubes: have an axis run without a key budget", "evaluate", lambda d: d["parts"][0]["axes"]["run"].pop("budget")),
                (r"parts: expected one part", "evaluate", lambda d: d["parts"].append(d["parts"][0])),
                (r"parts\[0\]\.facts\.verdict: is missing", "diff", lambda d: facts(d).pop("verdict")),
                (r"cubes\.properties: has no texts claim", "prove", lambda d: d["parts"][0]["cubes"]["properties"]["columns"].pop("claim")),
                (r"cubes: have a verdict 'x' of 'ckv-3.3'; expected one of kvbound prove", "prove",
                 lambda d: d["parts"][0]["cubes"]["properties"]["columns"]["verdict"].__setitem__(0, "x")),
                (r"cubes: have no regimes", "prove", lambda d: d["parts"][0]["cubes"].pop("regimes")),
                (r"parts\[0\]\.cubes: have no operations", "bench", lambda d: cubes(d).pop("operations")),
                (r"parts\[0\]\.cubes\.operations: has no texts limiter", "model",
                 lambda d: cubes(d)["operations"]["columns"].pop("limiter")),
                (r"parts\[0\]\.cubes\.constants: have no copy_bandwidth", "model",
                 lambda d: axes(d)["constant"]["constant"].__setitem__(7, "x"))):
            with self.subTest(pattern):
                self.refuses_document(pattern, name, change)

    def test_of_more_values_than_memory_has_room_for(self):
        """However they are distributed over files, in less than 2 GB."""
        lists = ",".join(["[" + "0," * 199_000 + "0]"] * 50)
        (self.folder / "many.json").write_text(f'{{"schema": "kvbound-2", "command": "replay", "x": [{lists}]}}', "utf-8")
        with open(self.folder / "page.html", "w"):
            pass
        process = self.start("report", *["many.json"] * 5, "-o", "page.html", "--quiet")
        _, status, usage = os.wait4(process.pid, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), INVALID)
        self.assertRegex(process.stderr.read(), r"\Akvbound: many.json: at byte \d+: its values take more than 1024 MiB of memory up to here\n\Z")
        self.assertLess(usage.ru_maxrss, 2e9 / 1024)
        process.returncode = INVALID
        process.communicate()

    def test_of_paths(self):
        document = self.path("recall")
        self.refuses(USAGE, "FILE.json is missing", "report", "-o", "page.html")
        self.refuses(USAGE, "--out is missing", "report", document)
        self.refuses(WORLD, "cannot open no.json: No such file", "report", "no.json", "-o", "page.html", silent=True)
        self.refuses(WORLD, "cannot create no/page.html", "report", document, "-o", "no/page.html", silent=True)
        own = self.folder / "own.json"
        own.write_bytes(document.read_bytes())
        self.refuses(USAGE, "--out: 'own.json' is an input", "report", "own.json", "-o", "own.json")

    def test_leave_the_page_that_was_there(self):
        (self.folder / "page.html").write_text("before", "utf-8")
        (self.folder / "bad.json").write_text("{", "utf-8")
        self.refuses(INVALID, "bad.json", "report", self.path("recall"), "bad.json", "-o", "page.html", silent=True)
        self.refuses(WORLD, "page.html", "report", self.path("recall"), "-o", "page.html", file_size_limit=1000, silent=False)

    def test_help_has_examples(self):
        text = self.passes("report", "--help", code=PASS)
        self.assertIn("Examples:\n", text)
        self.assertIn("kvbound report replay.json recall.json -o report.html", text)


if __name__ == "__main__":
    kvbound_cli.main()
