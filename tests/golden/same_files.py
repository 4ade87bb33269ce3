"""Compares what two programs wrote: dumps tensor by tensor and bit for bit, JSON reports value by value.

RENAMED       names that a newer program changed: tensors of a dump, and keys and text values of a report, from the older
              name to the newer one; add an entry when a name changes and its meaning does not
PROVENANCE    fields of reports that state which program, machine and time they come from: not compared
PROSE         fields of reports that are sentences: only their presence is compared, not their wording
"""
import json
import math
import re
from typing import NamedTuple

import numpy as np

import independent.replay
from support.kvbound_cli import file_bytes

RENAMED = {"left": "evicted", "claimant": "tested implementation"}
PROVENANCE = {"schema", "version", "revision", "compiler", "blas", "device", "path", "times", "seconds"}
PROVENANCE_OF_DUMPS = {"revision", "program", "compiler"}  # a dump's `version` is that of its format
PROSE = {"note"}
ITEM_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2}
EVERY_REPLAY = {"kept", "kept_offsets", "output", "perturbation", "kept_mass", "layer_perturbation"}


class Comparison(NamedTuple):
    """How much was compared, and a description of every difference; an empty comparison is a difference."""
    tensors: int
    bytes: int
    differences: list


def renamed_tensor(name, names):
    """layers.{l}.{kind} with another kind, by this table."""
    layer, _, kind = name.rpartition(".")
    return f"{layer}.{names.get(kind, kind)}" if re.fullmatch(r"layers\.\d+", layer) else name


def newer_name(tensor):
    """`layers.{l}.left` of an older program's dump is `layers.{l}.evicted`."""
    return renamed_tensor(tensor, RENAMED)


def older_name(tensor):
    return renamed_tensor(tensor, {newer: older for older, newer in RENAMED.items()})


def renamed_file(data, name):
    """A safetensors file with its tensors renamed by this function. Unchanged if it cannot be parsed, or if two tensors
    would get the same name."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:8 + length].decode("utf-8"))
        renamed = {name(key): entry for key, entry in header.items()}
    except (ValueError, AttributeError):
        return data
    return data if len(renamed) < len(header) or renamed == header else file_bytes(renamed, data[8 + length:])


def required_tensors(policy):
    """The kinds of tensor that a dump of this policy has in every layer."""
    host, *components = [part.split(":")[0] for part in policy.split("+")]
    kinds, merges = set(EVERY_REPLAY), {"keepkv", "keepkv-paper", "convex", "d2o", "cam", "kvmerger"} & set(components)
    kinds |= {"votes", "merged_key", "merged_value"} if merges else {"bound"}
    if host not in ("streaming-llm", "random"):
        kinds |= {"score", "score_positions"}
    if host not in ("snapkv", "random"):
        kinds |= {"evicted", "merged_into"} if merges else {"evicted"}
    if {"critical", "theta-sweep"} & set(components):
        kinds |= {"projected_value_norms"}
    return kinds | {"stage_two_score"} if "critical" in components else kinds


def shown(bits, dtype):
    """A number with 17 digits, and its bits in hexadecimal."""
    number = independent.replay.read_tensor((dtype, (1,), bits.tobytes()))[0]
    text = str(number) if dtype[0] == "I" else f"{number:.17g}"
    return f"{text} (0x{int(bits):0{2 * bits.itemsize}x})"


def tensor_difference(name, before, after):
    """Describes the first difference between two tensors (dtype, shape, bytes); None if all bits are equal."""
    for what, ours, theirs in zip(("type", "shape"), before, after):
        if ours != theirs:
            return f"{name}: {what} {ours} before, {theirs} after"
    dtype, shape, _ = before
    for when, entry in (("before", before), ("after", after)):
        if len(entry[2]) != math.prod(shape) * ITEM_BYTES[dtype]:
            return f"{name}: {len(entry[2])} bytes {when}, which do not fit {dtype} of shape {list(shape)}"
    if before[2] == after[2]:
        return None
    ours, theirs = (np.frombuffer(entry[2], f"<u{ITEM_BYTES[dtype]}") for entry in (before, after))
    other = np.flatnonzero(ours != theirs)
    index = ", ".join(str(int(i)) for i in np.unravel_index(other[0], shape))
    return (f"{name}[{index}]: {shown(ours[other[0]], dtype)} before, {shown(theirs[other[0]], dtype)} after; "
            f"{len(other)} of {len(ours)} elements differ")


def compare_dumps(before, after, layers):
    """Compares two dumps, each (metadata, {name: (dtype, shape, bytes)}); layers: the layers that both must contain."""
    differences = []
    metadata, (ours, theirs) = [], ({}, {})
    for when, dump, tensors in (("before", before, ours), ("after", after, theirs)):
        metadata.append({key: text for key, text in dump[0].items() if key not in PROVENANCE_OF_DUMPS})
        for name, entry in dump[1].items():
            if newer_name(name) in tensors:
                differences.append(f"{name}: twice {when}")
            tensors[newer_name(name)] = entry
    for key in sorted(metadata[0].keys() | metadata[1].keys()):
        if metadata[0].get(key) != metadata[1].get(key):
            differences.append(f"__metadata__.{key}: {metadata[0].get(key)!r} before, {metadata[1].get(key)!r} after")
    required = {f"layers.{layer}.{kind}" for layer in layers for kind in required_tensors(metadata[0].get("policy", ""))}
    for name in sorted(required | ours.keys() | theirs.keys()):
        absent = [when for when, tensors in (("before", ours), ("after", theirs)) if name not in tensors]
        if absent:
            differences.append(f"{name}: missing {' and '.join(absent)}")
        elif name in required and not len(ours[name][2]):
            differences.append(f"{name}: empty")
        else:
            differences.append(tensor_difference(name, ours[name], theirs[name]))
    both = ours.keys() & theirs.keys()
    if not required or not both:
        differences.append("no tensor to compare")
    return Comparison(len(both), sum(len(ours[name][2]) for name in both), [text for text in differences if text])


def common_report(node):
    """A report with newer names, without provenance and wording; the tensors of `diff` keyed by layer and name."""
    if isinstance(node, dict):
        common = {}
        for key, value in node.items():
            key = RENAMED.get(key, key)
            if key in common:
                raise ValueError(f"two fields {key}")
            if key not in PROVENANCE:
                common[key] = bool(value) if key in PROSE else common_report(value)
        return common
    if isinstance(node, list):
        items = [common_report(item) for item in node]
        if items and all(isinstance(item, dict) and {"layer", "tensor"} <= item.keys() for item in items):
            by_name = {f"layers.{item['layer']}.{item['tensor']}": item for item in items}
            return by_name if len(by_name) == len(items) else items
        return items
    return newer_name(RENAMED.get(node, node)) if isinstance(node, str) else node


def leaves(node, path=""):
    """(path, value) of every value in a report, empty lists and objects included."""
    children = list(node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ())
    if not children:
        yield path, node
    for key, child in children:
        yield from leaves(child, f"{path}.{key}" if path else str(key))


def compare_reports(before, after):
    """Compares two parsed JSON documents: (how many numbers were compared, descriptions of the differences)."""
    ours, theirs = (dict(leaves(common_report(report))) for report in (before, after))
    differences = []
    for path in sorted(ours.keys() | theirs.keys()):
        pair = [repr(values[path]) if path in values else "missing" for values in (ours, theirs)]
        if pair[0] != pair[1]:  # -0.0 is not 0.0, and 1 is not 1.0
            differences.append(f"{path}: {pair[0]} before, {pair[1]} after")
    numbers = sum(isinstance(value, (int, float)) and not isinstance(value, bool) for value in ours.values())
    if not numbers:
        differences.append("a report without numbers")
    return numbers, differences
