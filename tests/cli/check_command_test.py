"""`kvbound check`: right results of bare kernels agree in every layout, wrong ones are found, malformed files are refused.

usage: check_command_test.py KVBOUND      KVBOUND: the program's path
"""
import re
import subprocess
import sys
import warnings
import zipfile

import numpy as np

from support import kvbound_cli
from support.documents import judgement, read
from support.kernel_files import (SMALL_LAYER, KernelFile, compacted, compressed_layer, decode, long_decode, paged, prefill, rounded, softmax_attention, topk)
from support.kvbound_cli import INCONCLUSIVE, INVALID, MISMATCH, PASS, REPOSITORY, USAGE, CommandLineTest

REAL = ("F64", "F32", "F16", "BF16")


class CheckTest(CommandLineTest):
    def check(self, operation, file, *options, code=PASS, name="kernel.safetensors"):
        """Runs `check` on a KernelFile and requires this exit code; returns (JSON report, standard error)."""
        file.write(self.folder / name)
        result = self.run_program("check", operation, name, "--json", "out.json", *options)
        self.assertEqual(result.returncode, code, f"{result.stdout}{result.stderr}")
        return judgement(read(self.folder / "out.json")), result.stderr

    def finds(self, operation, file, pattern, *options):
        report, stderr = self.check(operation, file, *options, code=MISMATCH)
        self.assertEqual(report["verdict"], "differs")
        self.assertRegex(stderr, rf"\Akvbound: kernel\.safetensors: {pattern}[^\n]*\n\Z")
        return report

    def refused(self, operation, file, pattern, *options, code=INVALID):
        file.write(self.folder / "kernel.safetensors")
        self.refuses(code, pattern, "check", operation, "kernel.safetensors", "--json", "none.json", *options, silent=True)


class Attention(CheckTest):
    def test_right_outputs_agree_in_every_type(self):
        for dtype in REAL:
            for out in REAL:
                with self.subTest(f"{dtype} {out}"):
                    report, stderr = self.check("attention", decode(dtype, out=out))
                    self.assertEqual((report["verdict"], stderr), ("agrees", ""))
                    self.assertEqual([tensor["tensor"] for tensor in report["tensors"]], ["out", "lse"])
                    self.assertEqual(report["declared"]["accumulate"], "F64" if dtype == "F64" else "F32")

    def test_wrong_outputs_are_found_in_every_type(self):
        for dtype in REAL:
            right = decode(dtype)
            for name, wrong in (("half", 0.5 * right.array("out")), ("heads", right.array("out")[:, [1, 0, 2, 3]]),
                                ("zeros", 0 * right.array("out")), ("NaN", np.where(np.arange(16) == 3, np.nan, right.array("out")))):
                with self.subTest(f"{dtype} {name}"):
                    self.finds("attention", right.changed(out=wrong), r"out\[\d, \d, \d+\] is ")
            self.finds("attention", right.changed(lse=right.array("lse") + 0.01), r"lse\[\d, \d\] is ")

    def test_every_layout_agrees_and_is_read_as_it_is(self):
        lengths, queries = [40, 1, 65, 33], [3, 1, 65, 2]
        for causal, window in ((True, None), (False, None), (True, 7)):
            ragged = prefill(lengths, queries, causal=causal, window=window)
            for layout in ("NHD", "HND"):
                for page_size in (1, 16, 64):
                    case = paged(ragged, page_size, layout)
                    with self.subTest(f"causal={causal} window={window} {layout} {page_size}"):
                        self.check("attention", case)
                        pages, last = case.array("kv_indices"), case.array("kv_indptr")[-1] - 1
                        pages[[0, last]] = pages[[last, 0]]  # of the first sequence and of the last
                        self.finds("attention", case.changed(kv_indices=pages), r"out")
            self.check("attention", ragged)
        other = KernelFile(ragged.tensors, causal="true", window_left=8)
        self.finds("attention", other, "out")
        self.finds("attention", KernelFile(ragged.tensors, causal="true"), "out")
        dense = decode("F16")
        hnd = KernelFile({**dense.tensors, **{name: ("F16", dense.array(name).swapaxes(1, 2)) for name in ("k", "v")}},
                         kv_layout="HND")
        self.check("attention", hnd)

    def test_lengths_and_one_sequence_and_other_value_dims(self):
        case = decode(value_dim=24)
        self.check("attention", case)
        lengths = [70, 12, 0]
        results = [softmax_attention(case.array("q")[b:b + 1], case.array("k")[b, :n], case.array("v")[b, :n])
                   for b, n in enumerate(lengths)]
        short = KernelFile({**case.tensors, "out": ("F32", np.concatenate([out for out, _ in results])),
                            "lse": ("F32", np.concatenate([lse for _, lse in results])), "lengths": ("I64", lengths)})
        self.check("attention", short)
        self.finds("attention", short.changed(lengths=[70, 13, 0]), r"out\[1, ")
        self.finds("attention", short.changed(out=short.array("out") + (np.arange(3) == 2)[:, None, None]), r"out\[2, ")
        one = prefill([50], [50])
        self.check("attention", KernelFile({name: one.tensors[name] for name in ("q", "k", "v", "out")}, causal="true"))

    def test_options_stand_in_the_file_or_on_the_command_line_which_goes_first(self):
        case = decode(sm_scale=0.5)
        self.check("attention", case)
        self.finds("attention", case, "out", "--sm-scale", "0.25")
        plain = KernelFile(case.tensors)
        self.finds("attention", plain, "out")
        self.check("attention", plain, "--sm-scale", "0.5")
        two = KernelFile({**case.tensors, "lse": ("F32", case.array("lse") / np.log(2))}, sm_scale=0.5, lse_base=2)
        self.check("attention", two)
        self.finds("attention", two, r"lse", "--lse-base", "e")

    def test_16_bit_weights_have_to_be_declared(self):
        case = decode("BF16", batch=1, tokens=300)
        out, _ = softmax_attention(case.array("q"), case.array("k")[0], case.array("v")[0], weights="BF16")
        rough = case.changed(out=out)
        self.finds("attention", rough, "out")
        report, _ = self.check("attention", rough, "--weights", "BF16", "--splits", "1")
        self.assertEqual((report["declared"]["weights"], report["declared"]["splits"]), ("BF16", 1))

    def test_other_kv_heads_are_named(self):
        case = decode("F16", batch=2)
        q, k, v = (case.array(name) for name in "qkv")
        def reading(kv_heads):
            return case.changed(out=np.stack([softmax_attention(q[b:b + 1], k[b][:, kv_heads], v[b][:, kv_heads])[0][0] for b in range(2)]))
        report = self.finds("attention", reading([0, 1, 0, 1]), r"out\[.*query heads read KV head h mod 2; expected h div 2 \(that explains all 4 rows")
        self.assertEqual(report["tensors"][0]["diagnosis"]["rows"], 4)
        self.finds("attention", reading([0, 0, 1, 0]), r"out\[.*query head 3 reads KV head 0; expected 1")

    def test_huge_outputs_are_reported_in_short_lines(self):
        case = decode("F64", out="F64")
        huge = case.changed(out=1e300 * case.array("out"))
        _, stderr = self.check("attention", huge, code=MISMATCH, name="huge.safetensors")
        self.assertRegex(stderr, r"gain 1e\+300 \(")
        self.assertLess(len(stderr), 300)
        table = self.passes("check", "attention", "huge.safetensors", code=MISMATCH)
        self.assertLess(max(map(len, table.splitlines())), 250)

    def test_what_leaves_nothing_to_judge_is_said(self):
        case = decode()
        empty = KernelFile({"q": ("F32", np.zeros((0, 4, 16))), "k": ("F32", np.zeros((0, 9, 2, 16))), "v": ("F32", np.zeros((0, 9, 2, 16))),
                            "out": ("F32", np.zeros((0, 4, 16)))})
        _, stderr = self.check("attention", empty, code=INCONCLUSIVE)
        self.assertIn("inconclusive: there is nothing to judge: no tensor has an element", stderr)
        unattended = KernelFile({**{name: case.tensors[name] for name in ("q", "k", "v")}, "out": ("F32", 0 * case.array("out")),
                                 "lengths": ("I64", np.zeros(3))})
        report, stderr = self.check("attention", unattended, code=INCONCLUSIVE)
        self.assertIn("inconclusive: all numbers are 0, as they should be", stderr)
        self.assertEqual(report["tensors"][0]["worst"]["ulps"], 0)

    def test_wider_inputs_of_a_narrow_kernel(self):
        q, k, v = (np.random.default_rng(seed).standard_normal(shape) for seed, shape in
                   ((1, (1, 2, 16)), (2, (1, 90, 1, 16)), (3, (1, 90, 1, 16))))
        out, _ = softmax_attention(rounded(q, "BF16"), rounded(k, "BF16")[0], rounded(v, "BF16")[0])
        case = KernelFile({"q": ("F32", q), "k": ("F32", k), "v": ("F32", v), "out": ("F32", out)})
        self.finds("attention", case, "out")
        self.check("attention", case, "--storage", "BF16")

    def test_what_is_not_read_is_said_and_what_changes_attention_is_refused(self):
        case = decode()
        report, _ = self.check("attention", KernelFile({**case.tensors, "debug": ("I64", np.zeros(0))}, colour="red", source="me"))
        self.assertEqual(report["not_read"], ["colour", "debug"])
        self.refused("attention", KernelFile(case.tensors, logits_soft_cap="30"), "logits_soft_cap: changes what attention computes")
        self.refused("attention", KernelFile({**case.tensors, "sinks": ("F32", np.zeros(4))}), "sinks: changes what attention computes")

    def test_malformed_files_are_refused_in_one_line(self):
        case, pages = decode(), paged(prefill([40, 20], [3, 2]), 16)
        for name, file, pattern in (
                ("no v", KernelFile({name: case.tensors[name] for name in ("q", "k", "out")}), r"v: this tensor is missing; the file has q, k, out"),
                ("heads", case.changed(q=case.array("q")[:, :3]), r"q\.shape: has 3 query heads; expected a multiple of the 2 KV heads"),
                ("head_dim", case.changed(k=case.array("k")[..., :8]), r"[kq]\.shape: is \[3, 4, 16\]; expected \[batch, query_heads, head_dim\] with head_dim = 8 as k has it"),
                ("rank", case.changed(out=case.array("out")[0]), r"out\.shape: is \[4, 16\]; expected \[queries of q, query_heads, value_dim\]"),
                ("integers", KernelFile({**case.tensors, "q": ("I32", np.zeros((3, 4, 16)))}), r"q\.dtype: is I32; expected F64, F32, F16 or BF16"),
                ("NaN", case.changed(k=np.full_like(case.array("k"), np.nan)), r"k: element 0 is NaN"),
                ("scale", KernelFile(case.tensors, sm_scale="-1"), r"sm_scale: is \"-1\"; expected a positive decimal number"),
                ("causal", KernelFile(case.tensors, causal="maybe"), r"causal: is \"maybe\"; expected true or false"),
                ("layout", KernelFile(case.tensors, kv_layout="NDH"), r"kv_layout: is \"NDH\"; expected NHD or HND"),
                ("page", pages.changed(kv_indices=pages.array("kv_indices") + 50), r"sequence 0: has the page \d+; the cache has pages 0 to 7"),
                ("last", pages.changed(kv_last_page_len=[17, 1]), r"sequence 0: has 17 tokens in its last page; expected 1 to 16"),
                ("indptr", pages.changed(kv_indptr=[0, 3, 2]), r"kv_indptr: is not offsets that ascend from 0 to at most 8"),
                ("queries", prefill([2, 20], [2, 2]).changed(qo_indptr=[0, 3, 4]), r"sequence 0: has 3 queries, but 2 tokens")):
            with self.subTest(name):
                self.refused("attention", file, pattern)
        self.refused("attention", case, r"--sm-scale is \"0\"; expected a positive", "--sm-scale", "0", code=USAGE)
        self.refused("attention", case, r"--poison is of compact, not of attention", "--poison", "0", code=USAGE)
        self.refused("attend", case, r"unknown operation 'attend'; known: attention, topk, compact, norms, scores, merge", code=USAGE)

    def test_inputs_of_different_types(self):
        case = decode("F16", batch=1)
        mixed = KernelFile({**case.tensors, "q": ("F64", case.array("q"))})
        self.assertEqual(self.check("attention", mixed)[0]["declared"]["accumulate"], "F32")
        wide = KernelFile({**case.tensors, "v": ("F32", case.array("v") + 1e-5)})
        out, _ = softmax_attention(case.array("q"), case.array("k")[0], wide.array("v")[0])
        self.check("attention", wide.changed(out=out))
        self.finds("attention", wide.changed(out=1.002 * out), r"out\[.*")

    def test_hostile_shapes_and_settings_are_refused(self):
        empty = KernelFile({"q": ("F32", np.zeros((0, 4, 8))), "k": ("F32", np.zeros((0, 3, 2, 8))),
                            "v": ("F32", np.zeros((0, 3, 2, 8))), "out": ("F32", np.zeros((0, 4, 8)))})
        self.check("attention", empty, code=INCONCLUSIVE)
        huge = empty.bytes().replace(b"[0, 3, 2, 8]", b"[0,2199023255552,2,8]", 1)
        huge = (int.from_bytes(huge[:8], "little") + 9).to_bytes(8, "little") + huge[8:]
        (self.folder / "huge.safetensors").write_bytes(huge)
        self.refuses(INVALID, r"[kv]\.shape: is \[0, 2199023255552, 2, 8\], but the tensor is empty", "check", "attention", "huge.safetensors")
        case = decode()
        self.refused("attention", KernelFile(case.tensors, softmax_scale="0.5"), "softmax_scale: changes what attention computes")
        self.check("attention", KernelFile(case.tensors, logits_soft_cap="0.0"))
        self.refused("attention", prefill([5, 6], [1, 1]).changed().with_tensor("lengths", "I32", [5, 6]), "lengths: stands beside a ragged cache")
        dense, ragged = decode(batch=1, tokens=6), prefill([6], [1])
        for k, v in ((dense, ragged), (ragged, dense)):
            self.refused("attention", dense.with_tensor("k", *k.tensors["k"]).with_tensor("v", *v.tensors["v"]),
                         rf"v\.shape: is \[.*\]; expected as many dimensions as k has, {k.array('k').ndim}")
        self.refused("attention", KernelFile(case.tensors, sm_scale="1e308").changed(q=1e38 * case.array("q")), "kernel.safetensors: its numbers are too large")

    def test_zeros_are_no_evidence(self):
        case = decode()
        report, _ = self.check("attention", KernelFile({
            **{name: case.tensors[name] for name in ("q", "k")}, "v": ("BF16", 0 * case.array("v")),
            "out": ("F32", 0 * case.array("out"))}), code=INCONCLUSIVE)
        self.assertEqual(report["tensors"][0]["verdict"], "no evidence")


class LongContexts(CheckTest):
    """Spread-out attention, 16-bit weights and parts: what is found with proof, and that sound kernels get a verdict."""

    SIZES = {2048: {"half", "scale", "padding"}, 16384: {"half"}}

    def test_systematic_faults(self):
        faults = {"half": {"factor": 0.5}, "scale": {"scale": 1.03}, "padding": {"padding": 128}}
        named = {"half": r"out\[0, .*outputs are 0\.500 of what they should be", "scale": r"out\[0, .*logits are scaled by 1\.03", "padding": r"out\[0, .*gain 0\.9[56]"}
        for tokens, found in self.SIZES.items():
            with self.subTest(f"{tokens}: right"):
                report, _ = self.check("attention", long_decode(tokens))
                self.assertGreater(report["tensors"][0]["functionals"][0]["judged"], 0)
            for fault, options in faults.items():
                with self.subTest(f"{tokens}: {fault}"):
                    if fault in found:
                        self.finds("attention", long_decode(tokens, **options), named[fault])
                    else:  # it is within what rounding can do
                        self.check("attention", long_decode(tokens, **options))


class VeryLongContexts(LongContexts):
    suite = "long"
    SIZES = {131072: {"half"}, 1048576: {"half"}}


class Readme(CheckTest):
    def test_its_example_runs_and_prints_what_it_says(self):
        text = (REPOSITORY / "sim" / "check" / "README.md").read_text("utf-8")
        script, printed = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        subprocess.run([sys.executable, "-c", script], cwd=self.folder, check=True)
        lines = self.passes("check", "attention", "decode.npz").splitlines()
        self.assertEqual([line.split()[:5] for line in lines], [line.split()[:5] for line in printed.splitlines()])


class Npz(CheckTest):
    def arrays(self):
        case = decode("F32", sm_scale=0.5)
        return {name: np.asarray(array, "f4") for name, (_, array) in case.tensors.items()}

    def test_archives_agree_whatever_their_compression(self):
        for save in (np.savez, np.savez_compressed):
            save(self.folder / "kernel.npz", sm_scale=0.5, kv_layout="NHD", causal=False, splits=np.int64(1), **self.arrays())
            self.passes("check", "attention", "kernel.npz", "--json", "out.json")
            self.assertEqual(judgement(read(self.folder / "out.json"))["declared"]["splits"], 1)
        np.savez(self.folder / "half.npz", sm_scale=np.float32(0.5), **{**self.arrays(), "out": 0.5 * self.arrays()["out"]})
        self.passes("check", "attention", "half.npz", code=MISMATCH)

    def test_arrays_of_any_type_may_be_beside_what_is_read(self):
        np.savez(self.folder / "kernel.npz", sm_scale=np.float16(0.5), kv_layout=b"NHD", splits=np.uint8(1), note="\u00fcber", mask_used=np.ones(3, bool),
                 codes=np.ones(2, "u1"), names=np.array(["a", "b"]), wave=np.ones(2, complex), **self.arrays())
        self.passes("check", "attention", "kernel.npz", "--json", "out.json")
        self.assertEqual(judgement(read(self.folder / "out.json"))["not_read"], ["codes", "mask_used", "names", "wave"])

    def test_headers_that_are_no_dictionaries_are_refused(self):
        def header(text, version=1):
            return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text
        for name, head, pattern in (("long", header(b" " * 28000, 2), "has a header of 28000 bytes; expected at most 10000"),
                                    ("version", header(b"{}", 4), "is of version 4; expected 1, 2 or 3"),
                                    ("spaces", header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3 4,)}"), "has the header"),
                                    ("bare", header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3)}"), "has the header"),
                                    ("missing", header(b"{'descr': '<f4', 'shape': (3,)}"), "has the header"),
                                    ("large", header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 2)}"), "has more bytes than"),
                                    ("short", header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}") + bytes(8), "has 8 bytes of numbers; expected 12")):
            with self.subTest(name):
                with zipfile.ZipFile(self.folder / "bad.npz", "w") as archive:
                    archive.writestr("q.npy", head)
                self.refuses(INVALID, rf"bad\.npz: q: {pattern}|bad\.npz: q: \[.*{pattern}", "check", "attention", "bad.npz")
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(self.folder / "twice.npz", "w") as archive:
            for _ in range(2):
                archive.writestr("q.npy", header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}"))
        self.refuses(INVALID, r"twice\.npz: q: is there twice", "check", "attention", "twice.npz")

    def test_bfloat16_of_ml_dtypes_is_read(self):
        arrays = self.arrays()
        for name in ("q", "k", "v"):
            arrays[name] = np.frombuffer(kvbound_cli.encode(arrays[name], "BF16"), "V2").reshape(arrays[name].shape)
        case = decode("BF16", sm_scale=0.5)
        arrays["out"], arrays["lse"] = (case.array(name).astype("f4") for name in ("out", "lse"))
        np.savez(self.folder / "kernel.npz", sm_scale=0.5, **arrays)
        self.passes("check", "attention", "kernel.npz")

    def test_others_are_refused(self):
        arrays = self.arrays()
        for name, changes, pattern in (("fortran", {"k": np.asfortranarray(arrays["k"])}, r"k: is in Fortran order"),
                                       ("big", {"q": arrays["q"].astype(">f4")}, r"q: is \"an array of type >f4\"; expected a tensor"),
                                       ("complex", {"q": arrays["q"].astype("c8")}, r"q: is \"an array of type <c8\"; expected a tensor")):
            np.savez(self.folder / f"{name}.npz", **{**arrays, **changes})
            self.refuses(INVALID, pattern, "check", "attention", f"{name}.npz")
        np.savez(self.folder / "good.npz", **arrays)
        whole = (self.folder / "good.npz").read_bytes()
        (self.folder / "cut.npz").write_bytes(whole[:len(whole) // 2])
        self.refuses(INVALID, r"cut\.npz: is no complete ZIP archive", "check", "attention", "cut.npz")
        middle = whole.index(b"NUMPY") + 2000
        (self.folder / "flipped.npz").write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1:])
        self.refuses(INVALID, r"is damaged: its checksum is another one", "check", "attention", "flipped.npz")

    def test_members_that_numpy_does_not_write_are_refused(self):
        np.savez(self.folder / "good.npz", **self.arrays())
        with zipfile.ZipFile(self.folder / "good.npz") as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        for method, name in ((zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "LZMA")):
            with zipfile.ZipFile(self.folder / "other.npz", "w", method) as archive:
                for member, content in members.items():
                    archive.writestr(member, content)
            self.refuses(INVALID, rf"other\.npz: q: is compressed by {name}; expected deflate, or none", "check", "attention", "other.npz")
        whole = bytearray((self.folder / "good.npz").read_bytes())
        first, listed = whole.index(b"PK\3\4"), whole.index(b"PK\1\2")
        for changes, pattern in (({first + 6: 1, listed + 8: 1}, "is encrypted; expected a member without a password"),
                                 ({first + 8: 93, listed + 10: 93}, "is compressed by ZIP's method 93; expected deflate, or none")):
            changed = bytearray(whole)
            for place, value in changes.items():
                changed[place] = value
            (self.folder / "changed.npz").write_bytes(changed)
            self.refuses(INVALID, rf"changed\.npz: q: {pattern}", "check", "attention", "changed.npz")


class TopK(CheckTest):
    def test_no_entries_or_rows_are_nothing_to_judge(self):
        for rows, k in ((3, 0), (0, 4)):
            case = KernelFile({"scores": ("F32", np.zeros((rows, 10))), "indices": ("I64", np.zeros((rows, k)))})
            _, stderr = self.check("topk", case, code=INCONCLUSIVE)
            self.assertIn("inconclusive: there is nothing to judge: no tensor has an element", stderr)

    def test_right_selections_agree_in_any_order_and_type(self):
        for dtype in REAL:
            case = topk(dtype=dtype)
            report, _ = self.check("topk", case, "--order", "descending")
            self.assertEqual(report["figures"]["rows in descending order"], 5)
            shuffled = case.changed(indices=np.random.default_rng(2).permuted(case.array("indices"), axis=1))
            report, _ = self.check("topk", shuffled)
            self.assertEqual((report["figures"]["rows wrong"], report["figures"]["rows in descending order"]), (0, 0))
            self.finds("topk", shuffled, r"indices\[\d, \d+\]: score \S+ stands before", "--order", "descending")

    def test_how_many_entries_are_wrong_and_by_how_much(self):
        case = topk()
        scores, indices = case.array("scores"), case.array("indices")
        indices[3, :7] = np.argsort(scores[3])[:7]
        report = self.finds("topk", case.changed(indices=indices), r"indices\[3, 0\]: is \d+ rather than \d+, by score: .*; 7 of 20 entries are wrong")
        self.assertEqual((report["figures"]["rows wrong"], report["figures"]["wrong entries in the worst row"]), (1, 7))
        best = np.sort(scores[3])[-7:].max()
        self.assertAlmostEqual(report["tensors"][0]["worst"]["error"], best - scores[3].min(), 6)

    def test_ties_may_be_settled_in_any_way(self):
        scores = np.round(np.random.default_rng(3).standard_normal((4, 300)), 1)
        right = np.argsort(-scores, kind="stable")[:, :50]
        last = np.array([299 - np.argsort(-row[::-1], kind="stable")[:50] for row in scores])
        case = KernelFile({"scores": ("F32", scores), "indices": ("I64", right)})
        self.assertEqual(self.check("topk", case)[0]["figures"]["ties settled otherwise"], 0)
        report, _ = self.check("topk", case.changed(indices=last))
        self.assertEqual(report["figures"]["ties settled otherwise"], sum(len({*a} - {*b}) for a, b in zip(last, right)))
        self.assertGreater(report["figures"]["ties settled otherwise"], 5)

    def test_scores_with_errors(self):
        case = topk()
        scores = case.array("scores")
        rough = np.argsort(-(scores + 0.05 * np.random.default_rng(4).uniform(-1, 1, scores.shape)), kind="stable")[:, :20]
        noisy = case.changed(indices=rough)
        self.finds("topk", noisy, "indices")
        self.check("topk", noisy, "--score-error", "0.05")
        self.check("topk", KernelFile({**noisy.tensors, "score_error": ("F32", np.full_like(scores, 0.0501))}))
        self.finds("topk", noisy, "indices", "--score-error", "0.0001")
        self.check("topk", case, "--score-error", "10", code=INCONCLUSIVE)
        self.refused("topk", KernelFile({**noisy.tensors, "score_error": ("F32", np.ones_like(scores))}), "score_error is a tensor, too|--score-error is a tensor, too",
                     "--score-error", "1", code=USAGE)
        self.refused("topk", KernelFile({**noisy.tensors, "score_error": ("F32", -np.ones_like(scores))}), "score_error: has the error -1")

    def test_lengths_and_slots_without_an_entry(self):
        case = topk(rows=4, n=60, k=10)
        lengths = [60, 10, 4, 0]
        indices = np.full((4, 10), -1)
        for row, length in enumerate(lengths):
            best = np.argsort(-case.array("scores")[row, :length], kind="stable")[:10]
            indices[row, :len(best)] = best
        ragged = KernelFile({**case.tensors, "indices": ("I32", indices), "lengths": ("I32", lengths)})
        self.check("topk", ragged)
        for change, pattern in (((0, 9, -1), r"indices\[0, 9\]: holds 9 entries; expected 10"),
                                ((0, 0, -1), r"indices\[0, 1\]: is \d+ behind a slot without an entry"),
                                ((1, 0, 10), r"indices\[1, 0\]: is 10; the row has entries 0 to 9"),
                                ((1, 0, -7), r"indices\[1, 0\]: is -7; the row has entries 0 to 9"),
                                ((2, 4, 0), r"indices\[2, 4\]: is 0, which the row holds already"),
                                ((2, 3, -1), r"indices\[2, 3\]: holds 3 entries; expected 4"),
                                ((3, 0, 0), r"indices\[3, 0\]: is 0; the row has no entries")):
            wrong = indices.copy()
            wrong[change[0], change[1]] = change[2]
            self.finds("topk", ragged.changed(indices=wrong), pattern)
        self.refused("topk", ragged.changed(lengths=[60, 61, 4, 0]), r"lengths: has the length 61; scores has n = 60")

    def test_infinities_are_ordered_and_nan_is_refused(self):
        case = topk(rows=2, n=30, k=5)
        scores = case.array("scores")
        scores[0, 10:] = -np.inf
        scores[1, 3:5] = np.inf
        masked = case.changed(scores=scores, indices=np.argsort(-scores, kind="stable")[:, :5])
        self.check("topk", masked)
        wrong = masked.array("indices")
        wrong[0, 2] = 20
        self.finds("topk", masked.changed(indices=wrong), r"indices\[0, 2\]")
        scores[1, 7] = np.nan
        self.refused("topk", masked.changed(scores=scores), r"scores: element 37 is NaN")
        self.refused("topk", masked.changed(scores=scores, indices=99 + 0 * wrong), r"scores: element 37 is NaN")


class Compact(CheckTest):
    def test_ragged_rows_in_any_order(self):
        for dtype in REAL:
            case = compacted(dtype=dtype)
            for order in ("any", "kept", "ascending"):
                self.check("compact", case, "--order", order)
            after = case.array("after")
            after[:11] = after[:11][::-1].copy()
            self.check("compact", case.changed(after=after))
            self.finds("compact", case.changed(after=after), r"after\[0\]: holds row \d+ of KV head 0, which is not row \d+", "--order", "kept")

    def test_wrong_rows_are_named(self):
        case = compacted()
        after, before, kept = case.array("after"), case.array("before"), case.array("kept")
        for name, row, content, pattern in (
                ("twice", 2, after[0], rf"after\[2\]: holds row {kept[0]} of KV head 0, which is held already"),
                ("evicted", 2, before[0, min({*range(40)} - {*kept[:11]})], r"after\[2\]: holds row \d+ of KV head 0, which is not kept"),
                ("other head", 12, before[0, 3], r"after\[12\]: holds row 3 of KV head 0, which is not kept"),
                ("one bit", 12, after[12] * (1 + 2.0**-7 * (np.arange(8) == 5)), r"after\[12\]: holds no row of before")):
            with self.subTest(name):
                wrong = after.copy()
                wrong[row] = content
                report = self.finds("compact", case.changed(after=wrong), pattern)
                self.assertEqual(report["figures"]["rows wrong, missing or surplus"], 1)

    def pages(self, shared, layout="NHD", poison=7.0):
        case = compacted(kv_heads=2)
        before, page_size, random = case.array("before"), 4, np.random.default_rng(5)
        kept = [case.array("kept")[:11], case.array("kept")[11:]]
        if shared:
            kept = [rows[:7] for rows in kept]
        counts = [-(-len(rows) // page_size) for rows in kept][:1 if shared else 2]
        table, indptr = random.permutation(sum(counts) + 2), np.cumsum([0, *counts])
        shape = (len(table), page_size, 2, 8) if shared else (len(table), page_size, 8)
        after = np.full(shape, poison)
        for g, rows in enumerate(kept):
            for i, position in enumerate(rows):
                page = table[indptr[0 if shared else g] + i // page_size]
                after[(page, i % page_size, g) if shared else (page, i % page_size)] = before[g, position]
        if layout == "HND":
            after = after.swapaxes(1, 2)
        last = [(len(rows) - 1) % page_size + 1 for rows in kept][:len(counts)]
        return KernelFile({**case.tensors, "after": ("BF16", after), "kept": ("I64", np.concatenate(kept)),
                           "kept_offsets": ("I64", np.cumsum([0, *map(len, kept)])), "kv_indptr": ("I32", indptr),
                           "kv_indices": ("I32", table), "kv_last_page_len": ("I32", last)}, kv_layout=layout)

    def test_pages_and_what_is_unused(self):
        for shared, layout in ((False, "NHD"), (True, "NHD"), (True, "HND")):
            case = self.pages(shared, layout)
            for options in ((), ("--poison", "7"), ("--poison", "0x40e0"), ("--order", "kept")):
                self.check("compact", case, *options)
            after = case.array("after")
            unused = np.argwhere((after == 7).all(-1))[0]
            after[(*unused, 3)] = 7.5
            touched = case.changed(after=after)
            self.check("compact", touched)
            report = self.finds("compact", touched, r"after\[[\d, ]+\]: is unused, but was written", "--poison", "7")
            self.assertEqual(report["figures"]["unused rows written"], 1)
            pages = case.array("kv_indices")
            self.finds("compact", case.changed(kv_indices=np.roll(pages, 1)), "after", "--poison", "7")
        nan = self.pages(False, poison=np.nan)
        self.check("compact", nan, "--poison", "nan")
        self.check("compact", KernelFile({**nan.tensors, "poison": ("BF16", np.full(8, np.nan))}))

    def test_malformed_files_are_refused(self):
        case = compacted()
        kept = case.array("kept")
        for name, file, pattern in (
                ("range", case.changed(kept=kept + 30), r"kept: element \d+ is \d+; expected 0 to 39"),
                ("twice", case.changed(kept=np.where(np.arange(18) == 1, kept[0], kept)), r"kept: element 1 is \d+; expected every position once"),
                ("offsets", case.changed(kept_offsets=[0, 11, 17]), r"kept_offsets: is not offsets that ascend from 0 to 18"),
                ("rows", case.changed(after=case.array("after")[:-1]), r"after\.shape: is \[17, 8\]; expected \[kept rows, head_dim\] with kept rows = 18"),
                ("type", KernelFile({**case.tensors, "after": ("F16", case.array("after"))}), r"after\.dtype: is F16; expected BF16, that of before")):
            with self.subTest(name):
                self.refused("compact", file, pattern)
        self.refused("compact", case, r"--order is \"sorted\"; expected any, kept or ascending", "--order", "sorted", code=USAGE)
        self.refused("compact", case, r"--poison is \"0x17fc0\"; expected a number of that type, or the bits", "--poison", "0x17fc0", code=USAGE)
        self.refused("compact", case, r"--poison is \"x\"; expected a number", "--poison", "x", code=USAGE)


class Compression(CheckTest):
    """Scores, norms and merges of a trace's layer, recomputed by NumPy."""

    def layer(self, policy, budget="40"):
        return compressed_layer(self.generate("trace.safetensors", *SMALL_LAYER), policy, budget, accumulate="F64")

    def test_scores(self):
        for policy in ("snapkv:window=8", "snapkv:window=8+critical", "h2o:window=8+obcache-value", "tova"):
            case = self.layer(policy)
            self.check("scores", case)
            score = case.array("score")
            score[1, 5] *= 1.0001
            self.finds("scores", case.changed(score=score), r"score\[1, 5\] is ")
        plain = self.layer("snapkv:window=8")
        self.check("scores", KernelFile({name: plain.tensors[name] for name in ("q", "k", "score")}, accumulate="F64"),
                   "--policy", "snapkv:window=8")
        self.refused("scores", plain, r"--policy 'foo': no host 'foo'", "--policy", "foo", code=USAGE)
        self.refused("scores", plain, r"--budget 'foo': expected a count", "--budget", "foo", code=USAGE)
        self.refused("scores", KernelFile(plain.tensors, policy="foo"), r"__metadata__\.policy: 'foo': no host 'foo'")
        self.refused("scores", KernelFile({name: plain.tensors[name] for name in ("q", "k", "score")}), r"(w_o|v): this tensor is missing",
                     "--policy", "snapkv:window=8+critical")

    def test_scores_of_16_bit_weights_have_to_be_declared(self):
        for policy in ("snapkv:window=8:pool=1", "h2o:window=8"):
            case = self.layer(policy)
            q, k = case.array("q")[4:], case.array("k")
            score = np.zeros_like(case.array("score"))
            scored = score.shape[1]
            for h in range(4):
                logits = np.einsum("ic,jc->ij", q[:, h], k[:, h // 2]) / 4
                logits[np.arange(120)[None, :] > np.arange(112, 120)[:, None]] = -np.inf
                weights = np.exp(logits - logits.max(axis=1, keepdims=True))
                weights = rounded(weights / weights.sum(axis=1, keepdims=True), "BF16")
                score[h // 2] += weights.sum(axis=0)[:scored] / 2 / (8 if policy.startswith("snapkv") else 1)
            rough = case.changed(score=score)
            with self.subTest(policy):
                self.finds("scores", rough, r"score\[")
                report, _ = self.check("scores", rough, "--weights", "BF16")
                self.assertEqual(report["declared"]["weights"], "BF16")
                score[1, 5] *= 1.01
                self.finds("scores", rough.changed(score=score), r"score\[1, 5\] is ", "--weights", "BF16")

    def test_arithmetic_that_an_operation_does_not_have_is_refused_or_does_not_count(self):
        case = self.layer("snapkv:window=8+critical")
        norms = {"v": case.tensors["v"], "w_o": case.tensors["w_o"], "norms": ("F64", case.array("projected_value_norms"))}
        self.refused("norms", KernelFile(norms), "--weights is of attention scores merge, not of norms", "--weights", "BF16", code=USAGE)
        self.refused("scores", case, "--tile is of attention merge, not of scores", "--tile", "64", code=USAGE)
        report, _ = self.check("norms", KernelFile(norms, accumulate="F64", weights="BF16", tile=64))
        self.assertEqual((report["declared"]["weights"], report["declared"]["tile"]), (None, None))
        self.assertEqual(report["not_read"], ["tile", "weights"])

    def test_norms(self):
        case = self.layer("snapkv:window=8+critical")
        norms = case.array("projected_value_norms")
        file = KernelFile({"v": case.tensors["v"], "w_o": case.tensors["w_o"], "norms": ("F64", norms)}, accumulate="F64")
        self.check("norms", file)
        self.finds("norms", file, "norms", "--norm", "l2")
        norms[2, 100] *= 1.00001
        self.finds("norms", file.changed(norms=norms), r"norms\[2, 100\] is ")

    def test_merges(self):
        case = self.layer("snapkv:window=8+keepkv:threshold=none")
        report, _ = self.check("merge", case)
        self.assertEqual([tensor["tensor"] for tensor in report["tensors"]],
                         ["kept_offsets", "kept", "votes", "merged_key", "merged_value"])
        value = case.array("merged_value")
        value[3] *= 1.001
        self.finds("merge", case.changed(merged_value=value), r"merged_value\[3, \d+\] is ")
        kept = case.array("kept")
        kept[0] = [position for position in range(120) if position not in kept[:40]][0]
        self.finds("merge", case.changed(kept=np.concatenate([np.sort(kept[:40]), kept[40:]])), r"kept\[\d+\]")

    def test_no_kept_entries_are_wrong_and_no_crash(self):
        case = self.layer("snapkv:window=8+keepkv:threshold=none").changed(
            kept=np.zeros(0, int), kept_offsets=np.zeros(3, int), votes=np.zeros(0), merged_key=np.zeros((0, 16)),
            merged_value=np.zeros((0, 16)))
        _, stderr = self.check("merge", case, code=MISMATCH)
        self.assertRegex(stderr, r"\Akvbound: kernel\.safetensors: kept")

    def test_scores_may_be_divided_by_the_sum_of_rounded_weights(self):
        """All weights are just above the middle of two BF16 numbers, but the first, which is just below."""
        middle = 0.5 + 2.0 ** -9
        weights = np.array([middle * (1 - 2e-4)] + [middle * (1 + 2e-4)] * 198 + [1.0])
        k = np.log(weights).astype("f4")
        powers = np.exp(k.astype(float))
        stored = rounded(powers, "BF16")
        for scores in (rounded(powers / powers.sum(), "BF16"), powers / stored.sum(), stored / stored.sum(),
                       rounded(np.exp(k - np.log(stored.sum())), "BF16")):
            file = KernelFile({"q": ("F32", np.ones((1, 1, 1))), "k": ("F32", k.reshape(200, 1, 1)),
                               "score": ("F32", scores[None, :199])}, policy="snapkv:window=1:pool=1", sm_scale=1, weights="BF16")
            self.check("scores", file)
            self.finds("scores", file.changed(score=1.03 * scores[None, :199]), r"score\[0, \d+\] is ")


if __name__ == "__main__":
    kvbound_cli.main()
