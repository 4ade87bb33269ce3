"""The published JSON Schemas describe exactly what the program writes.

usage: schema_test.py KVBOUND      KVBOUND: the program's path
"""
import copy
import json

import jsonschema

from support import kvbound_cli
from support.kvbound_cli import PASS, REPOSITORY, SAMPLES, CommandLineTest
from support.peer_file import PEER, write_peer

GQA, MHA = SAMPLES / "pocket-gqa.safetensors", SAMPLES / "pocket-mha.safetensors"


def validator(path):
    schema = json.loads((REPOSITORY / path).read_text("utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def at(document, path):
    for key in path:
        document = document[key]
    return document


class SchemaTest(CommandLineTest):
    def require_valid(self, schema, document):
        errors = [f"{list(error.absolute_path)}: {error.message}" for error in schema.iter_errors(document)]
        self.assertEqual(errors, [])


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

        for name in ("document", "bench_peer"):
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


if __name__ == "__main__":
    kvbound_cli.main()
