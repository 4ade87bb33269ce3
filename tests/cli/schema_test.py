"""The published JSON Schemas describe exactly what the program writes.

usage: schema_test.py KVBOUND      KVBOUND: the program's path
"""
import copy
import json
import os

import jsonschema
import numpy as np

from support import kvbound_cli
from support.dumps import Dump
from support.kernel_files import compacted, decode, long_decode, topk
from support.kvbound_cli import INCONCLUSIVE, MISMATCH, PASS, REPOSITORY, SAMPLES, CommandLineTest, TraceFile
from support.peer_file import PEER, write_peer
from support.tiny_model import TinyModel

GQA, MHA = SAMPLES / "pocket-gqa.safetensors", SAMPLES / "pocket-mha.safetensors"


def validator(path):
    schema = json.loads((REPOSITORY / path).read_text("utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def objects(document, path=()):
    """The paths of all objects in a document."""
    if isinstance(document, dict):
        yield path
    if isinstance(document, (dict, list)):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from objects(value, (*path, key))


def kinds_of_objects(document):
    """The path of one object of each kind: of the same members and types of values, at the same place but for indices."""
    kinds = {}
    for path in objects(document):
        members = frozenset((key, type(value)) for key, value in at(document, path).items())
        kinds.setdefault((tuple(None if isinstance(key, int) else key for key in path), members), path)
    return kinds.values()


def at(document, path):
    for key in path:
        document = document[key]
    return document


class SchemaTest(CommandLineTest):
    def document(self, *arguments, code=PASS):
        self.passes(*arguments, "--json", "out.json", code=code)
        return json.loads((self.folder / "out.json").read_text("utf-8"))

    def require_valid(self, schema, document):
        errors = [f"{list(error.absolute_path)}: {error.message}" for error in schema.iter_errors(document)]
        self.assertEqual(errors, [])

    def require_tight(self, schema, document, signed=()):
        """The document is invalid after removing any member of any kind of object, adding one, or replacing any value by -2
        or [-2]. signed: members below which -2 is a value like any other."""
        survivors = []
        for path in kinds_of_objects(document):
            changed = copy.deepcopy(document)
            at(changed, path)["surplus"] = 1
            survivors += [(path, "surplus")] if schema.is_valid(changed) else []
            for key in at(document, path):
                changed = copy.deepcopy(document)
                del at(changed, path)[key]
                survivors += [(*path, key, "missing")] if schema.is_valid(changed) else []
                for wrong in (-2, [-2]):
                    at(changed, path)[key] = wrong
                    if wrong == -2 and {*path, key} & {*signed}:
                        continue
                    survivors += [(*path, key, wrong)] if schema.is_valid(changed) else []
        self.assertEqual(survivors, [])


class Schemas(SchemaTest):
    def test_every_field_of_a_schema_is_described_or_of_a_described_kind(self):
        def undescribed(node, path=""):
            for name, field in node.get("properties", {}).items():
                known = "description" in field or "$ref" in field or "const" in field or name in ("traces", "runs",
                                                                                                  "layers")
                yield from ([] if known or "properties" in field else [f"{path}/{name}"])
                yield from undescribed(field, f"{path}/{name}")
            for name, field in node.get("definitions", {}).items():
                yield from undescribed(field, f"{path}/{name}")

        for name in ("document", "bench", "bench_peer"):
            self.assertEqual(list(undescribed(validator(f"sim/schemas/{name}.schema.json").schema)), [])

    def test_the_trace_schema_describes_the_headers_of_samples_and_generated_traces(self):
        schema = validator("traces/trace.schema.json")
        self.generate("generated.safetensors", "--kind", "tied", "--tokens", "64", "--dtype", "BF16")
        for path in (GQA, MHA, self.folder / "generated.safetensors"):
            with open(path, "rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            self.require_valid(schema, header)
            for path in (("__metadata__",), ("__metadata__", "rope"), ("layers.0.key",), ("layers.0.key", "dtype")):
                changed = copy.deepcopy(header)
                del at(changed, path[:-1])[path[-1]]
                self.assertFalse(schema.is_valid(changed), f"without {path}")

    def test_the_bench_schema_describes_a_peer_and_nothing_else(self):
        schema, peer = validator("sim/schemas/bench.schema.json"), write_peer(self.folder / "torch.json")
        document = self.document("bench", "selection", "exponential", "--shape", "pocket:256", "--repeats", "2", "--peer", peer)
        self.assertEqual([item["peer"] is None for item in document["operations"]], [True, False])
        self.assertEqual(len(document["peer"]["not_measured"]), 3)
        self.require_valid(schema, document)
        self.require_tight(schema, document)

    def test_what_the_schema_of_peers_describes_is_read_and_nothing_else(self):
        schema, path = validator("sim/schemas/bench_peer.schema.json"), self.folder / "torch.json"
        self.require_valid(schema, PEER)
        changes = [((), name) for name in PEER] + [(("shape",), name) for name in PEER["shape"]]
        changes += [(("operations", 0), name) for name in PEER["operations"][0]] + [(("operations", 0, "seconds"), 1)]
        for path_to, name in changes:
            for value in ("missing", -2, [-2], "", None, 0.5):
                document = copy.deepcopy(PEER)
                if value == "missing":
                    del at(document, path_to)[name]
                else:
                    at(document, path_to)[name] = value
                read = self.run_program("bench", "selection", "--shape", "pocket:256", "--repeats", "1", "--threads", "2", "--peer",
                                        write_peer(path, document)).returncode == PASS
                if name in ("python", "calls", "bytes") or (path_to, name) == (("shape",), "name"):
                    self.assertTrue(read, (path_to, name, value))  # described, and not read
                else:
                    self.assertEqual(read, schema.is_valid(document), (path_to, name, value))


class SchemaOfModels(SchemaTest):
    suite = "counted"

    def test_the_schema_of_bench_models_describes_models_of_both_gpus_and_nothing_else(self):
        schema = validator("sim/schemas/bench_model.schema.json")
        for gpu in ("h100", "h200"):
            document = self.document("bench", "compact", "step", "--backend", "emulated", "--model", gpu, "--shape", "pocket:256",
                                     "--policy", "h2o")
            self.require_valid(schema, document)
        self.require_tight(schema, document)

    def test_the_schema_of_bench_models_describes_every_device_operation(self):
        schema = validator("sim/schemas/bench_model.schema.json")
        document = self.document("bench", "--backend", "emulated", "--model", "h100", "--shape", "pocket:256")
        self.require_valid(schema, document)
        known = validator("sim/schemas/bench.schema.json").schema["definitions"]["device_operation"]["enum"]
        self.assertEqual(list(dict.fromkeys(item["operation"] for item in document["operations"])), known)
        for item in document["operations"]:
            self.assertEqual(item["floor_seconds"] is None, item["operation"] == "compress")
            self.assertEqual(item["attention_seconds"] is not None, item["operation"] == "step")
            for launch in item["launches"]:
                self.assertIsNotNone(launch["model"]["registers"], launch["kernel"])


class SchemasOfWholeRuns(SchemaTest):
    suite = "long"

    def test_the_bench_schema_describes_every_device_operation_and_nothing_else(self):
        schema = validator("sim/schemas/bench.schema.json")
        document = self.document("bench", "--backend", "emulated", "--shape", "pocket:256", "--repeats", "1")
        self.require_valid(schema, document)
        self.require_tight(schema, document)
        known = schema.schema["definitions"]["device_operation"]["enum"]
        names = [item["operation"] for item in document["operations"]]
        self.assertEqual(list(dict.fromkeys(names)), known)
        self.assertEqual(len(document["ceilings"]), 2)
        for item in document["operations"]:
            self.assertEqual(item["requests"] is not None, item["operation"] in ("compress", "step"))
            self.assertEqual(item["policy"] is not None, item["operation"] in ("compress", "step"))
            self.assertIsNone(item["peer"])
            if item["policy"] is not None:
                continue
            self.assertEqual([row["name"] for row in item["times"][1:]], [row["name"] for row in document["ceilings"]])
            self.assertIsNotNone(item["shares"])
            self.assertIsNone(item["goal"], "an emulation has no goals")

    def test_the_bench_schema_describes_every_operation_and_nothing_else(self):
        schema = validator("sim/schemas/bench.schema.json")
        for threads in ("1", "2"):
            document = self.document("bench", "--shape", "pocket:256", "--repeats", "2", "--threads", threads,
                                     "--model", TinyModel().write_folder(self.folder / "model"), "--prompt", "32")
            self.require_valid(schema, document)
            known = schema.schema["definitions"]["reference_operation"]["enum"]
            self.assertEqual([item["operation"] for item in document["operations"]], known)
            self.require_tight(schema, document)
            self.assertEqual(document["threads"], int(threads))
            self.assertEqual(document["processors"], len(os.sched_getaffinity(0)))
            self.assertIn(document["blas_threads"], (1, int(threads)))
            compress = document["operations"][known.index("compress")]
            if threads == "1":
                self.assertEqual([compress["ratio"], compress["met"]], [None, None])
                self.assertIn("one thread", compress["no_ratio"])


if __name__ == "__main__":
    kvbound_cli.main()
