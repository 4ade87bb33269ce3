"""kvbound prove: verdicts, text and JSON reports that agree, replayed instances, and invalid arguments.

usage: prove_command_test.py KVBOUND      KVBOUND: the program's path
"""
import json
import re

from support import documents, kvbound_cli
from support.kvbound_cli import INCONCLUSIVE, INVALID, MISMATCH, PASS, REPOSITORY, USAGE, WORLD, CommandLineTest

PROOFS = {page.name: page.read_text("utf-8") for page in sorted((REPOSITORY / "proofs").glob("*.md"))}
# {theorem's id: the page that proves it}
THEOREMS = {theorem: page for page, text in PROOFS.items()
            for theorem in re.findall(r'^<a id="([^"]+)"></a>$', text, re.MULTILINE)}
WEAKENED = {claim for text in PROOFS.values() for claim in re.findall(r"`([a-z0-9.-]+:[a-z-]+)`", text)
            if claim.split(":")[0] in THEOREMS}
# Two tokens of equal logits, one kept: o = 1/2, o^ = 0, L = theta = 1/2.
INSTANCE = {"schema": "kvbound-instance-1", "property": "ckv-3.3", "query_heads": 1, "logits": [[0.0, 0.0]],
            "values": [[0.0], [1.0]], "output_projection": [[1.0]], "stage_one": [0], "kept": [0], "epsilon": 0.0}
# Two merged entries of scores 1 and e: m = e/(1 + e), z* = ln((1 + e)/2),
# KL = 0.110944; the range allows 1/8.
MERGING = INSTANCE | {"property": "kkv-kl", "logits": [[0.0, 1.0]], "votes": [1, 1], "query_vectors": [[1.0]], "ema": 0.5}


class ProveTest(CommandLineTest):
    def prove(self, *arguments, code=PASS):
        """Runs `kvbound prove`; returns its text output and its JSON report."""
        text = self.passes("prove", *arguments, "--json", "out.json", code=code)
        return text, documents.proved(documents.read(self.folder / "out.json"))


class Proving(ProveTest):
    def test_the_bound_is_as_tight_as_claimed(self):
        _, document = self.prove("ckv-3.3", "--cases", "300")
        tightest = document["properties"][0]["tightest"]
        self.assertGreaterEqual(tightest, 0.99)
        self.assertLessEqual(tightest, 1)

    def test_too_few_cases_are_inconclusive(self):
        text, document = self.prove("ckv-3.3", "--cases", "1", code=INCONCLUSIVE)
        self.assertEqual(document["properties"][0]["verdict"], "regimes-too-rare")
        self.assertIn(" regimes-too-rare ", text)

    def test_statements_of_eviction_and_of_merging_are_tried_in_regimes_of_their_own(self):
        text, document = self.prove("obc-special", "kkv-2", "--cases", "200")
        tables = [line for line in text.splitlines() if line.startswith("property ")]
        self.assertEqual(len(tables), 3)
        for theorem, table, own, other in zip(document["theorems"], tables[1:], ("stage 2 empty", "parallel queries"),
                                              ("parallel queries", "stage 2 empty")):
            shown = theorem["properties"][0]["regimes"]
            self.assertTrue(own in shown and other not in shown and "one kept" in shown, shown)
            self.assertTrue(all(regime in table for regime in shown) and other not in table, table)

    def test_ids_choose_a_theorem_with_its_weakened_claims_or_one_of_these(self):
        for ids, expected in ((("CKV-3.5",), ["ckv-3.5", "ckv-3.5:small-stage-one", "ckv-3.5:strict"]),
                              (("ckv-window:pooled", "ckv-3.2"),
                               ["ckv-3.2", "ckv-3.2:zeroed-logits", "ckv-window:pooled"]),
                              (("ckv-3.5:strict", "ckv-3.2:zeroed-logits", "ckv-3.5:small-stage-one"),
                               ["ckv-3.2:zeroed-logits", "ckv-3.5:small-stage-one", "ckv-3.5:strict"])):
            text, document = self.prove(*ids, "--cases", "200")
            for claim in expected:
                if claim.split(":")[0] not in expected:
                    self.assertRegex(text, rf"(?m)^{re.escape(claim)} ")
            self.assertEqual([entry["property"] for entry in document["properties"]], expected)

    def test_the_list_names_every_theorem_and_claim_with_its_proof(self):
        listed = self.passes("prove", "--list")
        self.assertEqual(sorted(re.findall(r"(?m)^(\S+): ", listed)), sorted(THEOREMS))
        self.assertEqual(set(re.findall(r"must fail +(\S+): ", listed)), WEAKENED)
        for theorem, page in THEOREMS.items():
            self.assertIn(f"proofs/{page}#{theorem}\n", listed)
        self.assertEqual(re.findall(r"(?m)^(\S+): ", self.passes("prove", "--list", "ckv-3.2")), ["ckv-3.2"])

    def test_results_depend_on_the_seed_but_not_on_threads_or_company(self):
        def findings(*arguments):
            _, document = self.prove(*arguments, "--cases", "200")
            return document["properties"]

        alone = findings("ckv-window", "--threads", "1")
        self.assertEqual(alone, findings("ckv-window", "--threads", "3"))
        self.assertEqual(alone, findings("ckv-3.2", "ckv-window")[2:])
        self.assertNotEqual(alone, findings("ckv-window", "--seed", "2"))

    def test_a_search_climbs_to_the_bound(self):
        text, document = self.prove("ckv-3.3", "ckv-3.2", "--cases", "200", "--search", "2")
        (search,) = document["searches"]
        self.assertEqual((search["property"], search["failure"]), ("ckv-3.3", None))
        self.assertGreaterEqual(search["ratio"], 0.99)
        self.assertLessEqual(search["ratio"], 1)
        self.assertIn("largest L / theta", text)


class Replaying(CommandLineTest):
    def write(self, document, name="instance.json"):
        (self.folder / name).write_text(document if isinstance(document, str) else json.dumps(document))
        return name

    def test_what_a_run_found_runs_again_from_its_json_and_from_a_printed_line(self):
        text = self.passes("prove", "--cases", "200", "--search", "0.2", "ckv-3.3", "ckv-3.5", "--json", "out.json")
        replayed = self.passes("prove", "--replay", "out.json", "--json", "again.json")
        document = documents.proved(documents.read(self.folder / "again.json"))
        self.assertEqual([(entry["property"], entry["outcome"]) for entry in document["replayed"]],
                         [(claim, "as it must") for claim in ("ckv-3.3:mixed-norms", "ckv-3.3:equality-by-signs", "ckv-3.5:small-stage-one", "ckv-3.5:strict",
                                        "ckv-3.3", "ckv-3.5")])
        self.assertEqual((document["seed"], document["cases"], document["theorems"]), (None, None, []))
        before = documents.proved(documents.read(self.folder / "out.json"))
        self.assertEqual(document["instances"], before["instances"])
        found = before["theorems"][1]["properties"][1]
        self.assertEqual(document["replayed"][2]["failure"], found["failure"])
        self.assertIn(f"fails: {found['failure']}", replayed)
        (line,) = (line for line in text.splitlines() if '"ckv-3.5:strict"' in line)
        self.assertRegex(self.passes("prove", "--replay", self.write(line)), r"\Ackv-3.5:strict: .*\n  fails: theta <")

    def test_an_instance_by_hand_gives_the_ratio_by_hand(self):
        self.assertIn("holds; L / theta = 1\n", self.passes("prove", "--replay", self.write(INSTANCE)))

    def test_an_instance_that_merges_runs_again(self):
        self.assertRegex(self.passes("prove", "--replay", self.write(MERGING)),
                         r"holds; KL / the smallest bound = 0\.88755")
        text = self.passes("prove", "--cases", "200", "kkv-2", "--json", "out.json")
        replayed = self.passes("prove", "--replay", "out.json")
        for claim in ("output-moves", "all-votes", "whole-cache"):
            (line,) = (line for line in text.splitlines() if f'"kkv-2:{claim}"' in line)
            self.assertEqual(set(json.loads(line)["votes"]), {1})
            self.assertRegex(replayed, rf"kkv-2:{claim}: .*\n  fails: ")

    def test_a_weakened_claim_that_holds_is_a_mismatch(self):
        harmless = INSTANCE | {"property": "ckv-3.3:mixed-norms"}
        self.assertIn("NO COUNTEREXAMPLE", self.passes("prove", "--replay", self.write(harmless), code=MISMATCH))

    def test_more_selections_than_can_be_compared_decide_nothing(self):
        tokens = range(40)
        large = INSTANCE | {"property": "ckv-3.5", "logits": [[0.0 for _ in tokens]], "values": [[1.0] for _ in tokens],
                            "kept": list(range(20))}
        self.assertIn("UNDECIDED: it could not be evaluated: more than 2^20 selections",
                      self.passes("prove", "--replay", self.write(large), code=INCONCLUSIVE))

    def refuses_file(self, pattern, document, code=INVALID):
        name = self.write(document)
        with self.subTest(pattern):
            self.refuses(code, rf"instance\.json: .*{pattern}", "prove", "--replay", name, "--json", "out.json")

    def test_files_that_are_no_instances_are_refused(self):
        for text in ("", "{", "[1,", "nonsense", '{"schema": NaN}', "\x00"):
            self.refuses_file(r"at byte \d+: is not valid JSON", text)
        for text in ("[]", "1", '"x"'):
            self.refuses_file("at byte 0: is .*; expected an object", text)
        for text in ("{}", '{"schema": "kvbound-dump"}', '{"schema": ["kvbound-instance-1"]}'):
            self.refuses_file('schema: nowhere is "kvbound-instance-1"', text)
        for opening, closing in ("[]", ('{"a":', "}")):
            self.refuses_file("is nested deeper than 16 levels", opening * 20000 + "1" + closing * 20000)
        twice = json.dumps(INSTANCE)[:-1] + ', "kept": [1]}'
        self.refuses_file('the key "kept" occurs twice', twice)

    def test_fields_that_are_missing_or_no_numbers_are_refused_by_name(self):
        for field in INSTANCE:
            if field != "schema":
                self.refuses_file(f"{field}: is missing", {k: v for k, v in INSTANCE.items() if k != field})
        for field in ("votes", "query_vectors", "ema"):
            self.refuses_file(f"{field}: is missing", {k: v for k, v in MERGING.items() if k != field})
        for field, value, problem in (("votes", 1, ": is 1; expected a list"), ("votes", ["1"], r'\[0\]: is "1"; expected a number'),
                                      ("query_vectors", [1], r"\[0\]: is 1; expected a list"),
                                      ("ema", None, ": is null; expected a number")):
            self.refuses_file(f"{field}{problem}", MERGING | {field: value})
        for field, value, problem in (
                ("property", 3, ": is 3; expected a string"), ("property", "ckv-9", ": no theorem 'ckv-9'; known: ckv-3.2, "),
                ("query_heads", 1.5, ": is 1.5; expected an integer"), ("logits", 1, ": is 1; expected a list"),
                ("logits", [1], r"\[0\]: is 1; expected a list"), ("logits", [[0.0, "x"]], r'\[0\]\[1\]: is "x"; expected a number'),
                ("logits", [[0.0, None]], r"\[0\]\[1\]: is null; expected a number"),
                ("values", [[0.0], [1.0, 2.0]], r"\[1\]: has 2 numbers, those before have 1"),
                ("kept", [0.0], r"\[0\]: is 0.0; expected an integer"),
                ("kept", [2**64 - 1], r"\[0\]: is 18446744073709551615; expected an integer"),
                ("kept", [-1], r"\[0\]: is -1; expected an integer from 0"), ("kept", 0, ": is 0; expected a list"),
                ("epsilon", "0", ': is "0"; expected a number')):
            self.refuses_file(f"{field}{problem}", INSTANCE | {field: value})

    def test_instances_without_sense_are_refused(self):
        for field, value, problem in (
                ("query_heads", 0, "query_heads is below 1"), ("query_heads", 2, "rows of logits is 1 but"),
                ("logits", [], "logits are empty"), ("logits", [[]], "logits are empty"),
                ("logits", [[0.0]], "columns of logits is 1 but rows of values is 2"),
                ("output_projection", [[1.0], [1.0]], "rows of output_projection is 2 but"),
                ("output_projection", [[]], "output_projection is empty"),
                ("stage_one", [], "stage_one is empty"), ("kept", [], "kept is empty"),
                ("kept", [2], "position 2 outside 0..1"),
                ("kept", [1, 0], "not ascending"), ("kept", [0, 0], "not ascending"),
                ("stage_one", [1], "stage_one is not part of kept"), ("epsilon", -1, "epsilon is negative"),
                ("logits", [[0.0, 1e300]], "logits has 1e.300, which is not within"),
                ("values", [[0.0], [1e300]], "values has 1e.300")):
            self.refuses_file(f"is no instance: .*{problem}", INSTANCE | {field: value})
        for field, value, problem in (
                ("votes", [1], "votes is 1 but columns of logits is 2"), ("votes", [1, 0.5], "votes are below 1"),
                ("votes", [1, 1e10], "votes has 1e.10, which is not within"), ("query_vectors", [[0.0]], "next to nothing on its diagonal"),
                ("query_vectors", [[1.0, 0.0]], "columns of query_vectors is 2"), ("ema", 1, "ema is not within 0 and 1")):
            self.refuses_file(f"is no instance: .*{problem}", MERGING | {field: value})
        self.refuses_file("is not valid JSON: number overflow", json.dumps(INSTANCE).replace("[[0.0, 0.0]]", "[[0.0, 1e999]]"))

    def test_files_that_cannot_be_read_are_refused(self):
        self.refuses(WORLD, "missing.json", "prove", "--replay", "missing.json")
        self.refuses(INVALID, "is a directory; expected a regular file", "prove", "--replay", self.folder)
        self.refuses(INVALID, "/dev/null: .*is not valid JSON", "prove", "--replay", "/dev/null")


class BadArguments(CommandLineTest):
    def test_arguments_without_sense_are_refused(self):
        known = r"known: ckv-3\.2, ckv-3\.3, "
        for pattern, *arguments in (
                (known, "ckv-9"), (known, "ckv"), (known, "ckv-3.5:nothing"), ("chosen twice", "ckv-3.2", "ckv-3.2"),
                ("chosen twice", "ckv-3.5", "ckv-3.5:strict"),
                ("none of the chosen theorems has a ratio", "ckv-3.2", "--search", "1"), ("--cases", "--cases", "0"), ("--cases", "--cases", "-1"),
                ("--cases", "--cases", "1e3"), ("--cases", "--cases", "999999999999"), ("--seed", "--seed", "-1"),
                ("--seed", "--seed", "x"), ("--search", "--search", "0"), ("--search", "--search", "nan"),
                ("--search", "--search", "-1"), ("--search", "--search", "1e9"),
                ("exclude each other", "--list", "--cases", "3"), ("exclude each other", "--replay", "x", "--seed", "3"),
                ("unexpected argument", "--replay", "x", "ckv-3.2"), ("--json", "--json", ""),
                ("an empty argument; expected ID", "ckv-3.2", "--plot", ""),
                ("unrecognised|unrecognized", "--case", "3")):
            with self.subTest(arguments):
                self.refuses(USAGE, pattern, "prove", *arguments)

    def test_an_output_that_is_the_input_is_refused(self):
        (self.folder / "instance.json").write_text(json.dumps(INSTANCE))
        self.refuses(USAGE, "an input", "prove", "--replay", "instance.json", "--json", "./instance.json")
        self.assertEqual(json.loads((self.folder / "instance.json").read_text()), INSTANCE)


class WholeCatalogue(ProveTest):
    suite = "long"

    def test_every_theorem_holds_and_every_weakened_claim_fails(self):
        text, document = self.prove("--cases", "300", "--seed", "5")
        properties = document["properties"]
        self.assertEqual({entry["property"] for entry in properties if entry["kind"] == "theorem"}, set(THEOREMS))
        self.assertEqual({entry["property"] for entry in properties if entry["kind"] == "weakened"}, WEAKENED)
        self.assertEqual((document["cases"], document["seed"]), (300, 5))
        for entry in properties:
            with self.subTest(entry["property"]):
                must_hold = entry["kind"] == "theorem"
                wanted = "no-counterexample" if must_hold else "counterexample-found"
                self.assertEqual(entry["verdict"], wanted)
                self.assertEqual(entry["failure"] is None, must_hold)
                self.assertRegex(text, rf"(?m)^{re.escape(entry['property'])} +{wanted} +{entry['cases']} ")
                if must_hold:
                    self.assertEqual(entry["cases"], 300)
                    self.assertGreater(entry["reference_held"], 0.8)
                    self.assertGreaterEqual(min(entry["regimes"].values()), 0.05)


if __name__ == "__main__":
    kvbound_cli.main()
