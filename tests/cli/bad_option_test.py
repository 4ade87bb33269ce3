"""Senseless options, outputs that cannot be written, signals: the right exit code, and no partial or leftover files.

usage: bad_option_test.py KVBOUND      KVBOUND: the program's path
"""
import os
import signal
import subprocess
import time

from support import kvbound_cli
from support.kvbound_cli import PASS, SAMPLES, USAGE, WORLD, CommandLineTest, TraceFile, contents, write_sharded
from support.tiny_model import TinyModel

TRACE = "good.safetensors"  # 2 layers, 24 prompt tokens, 8 recorded queries, 3 decode steps
POLICY, BUDGET = ("--policy", "snapkv:window=4"), ("--budget", "8")
HUGE = "99999999999999999999"


class BadOptions(CommandLineTest):
    def setUp(self):
        super().setUp()
        TraceFile().write(self.folder / TRACE)

    def refuses_options(self, pattern, *arguments):
        with self.subTest(arguments):
            self.refuses(USAGE, pattern, *arguments)

    def refuses_values(self, option, values, pattern):
        """Refuses each of these values of one option of replay, while the other options are valid and all outputs are
        requested."""
        others = [word for pair in (POLICY, BUDGET) if pair[0] != option for word in pair]
        for value in values:
            self.refuses_options(pattern, "replay", TRACE, *others, option, value, "--json", "out.json", "--csv",
                                 "out.csv", "--dump", "dumps/")

    def test_budgets_that_are_no_budgets_are_refused(self):
        self.refuses_values("--budget", ("-3", "-5%", "nan", "NaN%", "inf", "8%%", "1e1", "0x8", " 8", "8 ", "8.5",
                                         "+8", "%", "120%", "100.0001%", ".5%", "5.%", HUGE, "8x", "20%,x"),
                            "--budget|budget '")
        self.refuses_values("--budget", ("", ",", "8,", ",8", "8,,12"), "empty")
        self.refuses_values("--budget", ("8,8", "20%,20.0%", "8,12,08"), "twice")

    def test_budgets_outside_the_prompt_are_refused_before_any_work(self):
        for budgets, entries in (("0", 0), ("0%", 0), ("25", 25), ("8,25", 25), ("20%,0.5%", 0), ("4.1%", 0),
                                 ("100%,1000", 1000)):
            self.refuses_values("--budget", (budgets,), r"good\.safetensors: policy 'snapkv:window=4' at budget .*: "
                                rf"budget of {entries} entries is outside 1\.\.24")
        self.refuses_values("--budget", ("3", "12.5%", "8,3"), "budget of 3 entries is below the 4 of the observation")

    def test_policies_that_are_no_policies_are_refused_and_what_is_known_is_listed(self):
        names = kvbound_cli.component_names()
        hosts = f"known hosts: {', '.join(names.pop('host'))}$"
        known = f"known components: {', '.join(name for kind in names.values() for name in kind)}$"
        for policy, pattern in (
                ("", "empty"), ("snapkv,", "empty"), ("SnapKV", hosts), (" snapkv", hosts),
                ("none", "no host 'none'; " + hosts), ("critical", r"no host 'critical'; critical is a selection: snapkv\+critical; " + hosts),
                ("+critical", "no host ''"), ("snapkv+", known), ("snapkv+snapkv", known),
                ("snapkv+none", "no component 'none'; " + known),
                ("snapkv:windw=3", r"no option 'windw'; did you mean window\? it has window, pool"), ("snapkv:", "no option ''"),
                ("snapkv:alpha=0.5", "snapkv has no option 'alpha'; it has window, pool"),
                ("snapkv+critical:window=4", "critical has no option 'window'; it has alpha, epsilon, gqa, norm"),
                ("snapkv:window", "expected window=an integer >= 1"), ("snapkv:window=", "expected window="),
                ("snapkv:window=4:window=4", "option 'window' is given twice"),
                ("snapkv+critical+critical", "more than one selection"),
                ("snapkv+critical+theta-sweep", "more than one selection"),
                ("snapkv,snapkv:window=32", "'snapkv:window=32' is given twice"),
                ("snapkv+critical:alpha=0.50,snapkv+critical", "twice"),
                ("snapkv+critical:epsilon=1e-4,snapkv+critical", "twice"),
                ("snapkv+exact+obcache-value", "more than one score"), ("h2o,h2o:recent=32", "twice"),
                ("h2o:pool=1", "h2o has no option 'pool'; it has window, sinks, recent$"),
                ("tova:recent=1", "tova has no option 'recent'; it has sinks$"),
                ("random:recent=1", "random has no option 'recent'; it has seed, sinks, window$"),
                ("random:window=4,random:window=4:seed=0", "twice"),
                ("snapkv+exact:alpha=1", "exact has no option 'alpha'; it has space$"), ("tova+", known),
                ("snapkv+keepkv+d2o", "more than one merge"), ("snapkv+adakv+pyramid", "more than one allocation"),
                ("snapkv+keepkv-paper,snapkv+keepkv:key=zip:gqa=mean:scores=raw:normalisation=paper", "twice"),
                ("snapkv+keepkv:alpha=1", "keepkv has no option 'alpha'; it has threshold, predict, ema, scores, "
                                          "normalisation, key, gqa, rank, order, period$"),
                ("snapkv+cam:threshold=none", "cam has no option 'threshold'; it has neighbours, seed$"),
                ("snapkv+greedy:k=1", "greedy has no option 'k'"), ("h2o:window=4,h2o:recent=4:window=4", "twice")):
            self.refuses_values("--policy", (policy,), pattern)

    def test_components_without_a_meaning_together_are_refused(self):
        selections, scores = ("critical", "theta-sweep", "greedy"), ("obcache-value", "obcache-key", "obcache-joint", "exact")
        self.refuses_values("--policy", (f"snapkv:window=4+{score}+{selection}" for score in scores
                                         for selection in selections),
                            r"policy 'snapkv:.*: critical, theta-sweep and greedy choose by attention")
        for host in ("streaming-llm", "random"):
            self.refuses_values("--policy", (f"{host}+{component}" for component in scores + selections),
                                rf"policy '{host}.*: {host} ranks nothing: .*hosts that do are snapkv, h2o, tova, given with scores$")
            self.refuses_values("--policy", (f"{host}+keepkv:period=8", f"tova,{host}+keepkv-paper:period=1"),
                                f"keepkv:period selects anew .*, but {host} ranks nothing")
            self.refuses_values("--policy", (f"{host}+adakv",), f"adakv shares out by scores, but {host} ranks nothing")
        self.refuses_values("--policy", ("h2o:window=4+greedy", "tova+greedy", "snapkv:window=4,tova+greedy"),
                            "greedy has a meaning with the host snapkv alone$")
        self.refuses_values("--policy", ("snapkv:window=4+keepkv:key=zip", "tova+keepkv-paper:gqa=joint"),
                            "keepkv:key=zip scales a key by one factor: it takes gqa=mean, not gqa=joint$")
        self.refuses_values("--policy", (f"{before}+keepkv:order=merge-first" for before in
                                         ("streaming-llm", "random", "tova+exact", "tova+critical", "h2o:window=4+theta-sweep",
                                          "snapkv:window=4+greedy")),
                            "order=merge-first merges by attention .*hosts snapkv, h2o, tova, given with scores, and no score and no selection$")
        self.refuses_values("--policy", ("snapkv:window=4+greedy+keepkv:period=8",), "period selects anew .* greedy cannot$")

    def test_budgets_below_those_that_always_stay_are_refused(self):
        for policy, sinks, recent in (("h2o:window=4:sinks=5", 5, 4), ("h2o:window=4:recent=9", 0, 9), ("h2o:window=8:sinks=1", 1, 8),
                                      ("tova:sinks=9", 9, 0), ("streaming-llm:sinks=9", 9, 0), ("random", 4, 32),
                                      ("random:window=5", 4, 5),
                                      ("snapkv:window=4,tova:sinks=9+exact", 9, 0)):
            self.refuses_values("--policy", (policy,), f"budget of 8 entries is below the {sinks} sinks and {recent} recent "
                                                       "entries, which are always kept$")
        self.refuses_values("--policy", ("h2o:window=9:recent=1", "h2o:window=9:recent=1+exact"),
                            "window=9 but the trace records only 8 prompt queries$")

    def test_option_values_of_policies_out_of_range_are_refused(self):
        for option, expected, values in (
                ("snapkv:window", "an integer >= 1", ("0", "-1", "1.5", "nan", "4x", " 4", "+4", HUGE)),
                ("h2o:sinks", "an integer >= 0", ("-1", "1.5", "", HUGE)), ("h2o:window", "an integer >= 1", ("0", "x")),
                ("h2o:window=4:recent", "an integer >= 0", ("-1", "x")), ("tova:sinks", "an integer >= 0", ("-1", "")),
                ("streaming-llm:sinks", "an integer >= 0", ("-1", "4.0")),
                ("snapkv:window=4+exact:space", "head or projected", ("", "Head", "hidden")),
                ("snapkv:window=4:pool", "an odd integer >= 1", ("0", "2", "-7", "7.0", "", HUGE)),
                ("snapkv:window=4+critical:alpha", "a decimal from 0 to 1.*, or adaptive",
                 ("1.5", "1.0000000001", "-0.5", "nan", "inf", "1e-1", "", "Adaptive", "50%")),
                ("snapkv:window=4+critical:epsilon", "a finite number >= 0",
                 ("nan", "inf", "-1", "-1e-4", "1e999", "", "x")),
                ("snapkv:window=4+theta-sweep:gqa", "mean-of-products or product-of-means", ("mean", "", "joint")),
                ("snapkv:window=4+theta-sweep:norm", "l1 or l2", ("l3", "L1", "2", "")),
                ("h2o:window=4:sinks", "an integer >= 0", ("-1", "1.5", "nan", "4x", "", HUGE)),
                ("h2o:window=4:recent", "an integer >= 0", ("-1", "window", "", HUGE)),
                ("h2o:recent=4:window", "an integer >= 1", ("0", "-1", "all", HUGE)),
                ("tova:sinks", "an integer >= 0", ("-1", "nan", "")),
                ("streaming-llm:sinks", "an integer >= 0", ("-1", "nan", "")),
                *((f"random:{option}", "an integer >= 0", ("-1", "0.5", "", HUGE)) for option in ("seed", "sinks", "window")),
                ("tova+exact:space", "head or projected", ("model", "Head", "")),
                ("snapkv:window=4+obcache-joint:space", "head or projected", ("both", "1", "")),
                ("tova+adakv:safeguard", "a decimal from 0 to 1 of at most 18 digits", ("1.5", "-0.2", "nan", "")),
                ("tova+pyramid:beta", "an integer >= 1", ("0", "-1", "2.5", "", HUGE)),
                ("tova+pyramid:shape", "linear or cosine", ("flat", "")),
                ("tova+headkv:scores=s.json:beta", "a decimal >= 1 of at most 18 digits", ("0.99", "-2", "1e3", "")),
                ("tova+headkv:scores=s.json:temperature", "a finite number >= 0", ("-1", "nan", "inf", "")),
                ("tova+headkv:scores", "a path, in double quotes if it has a colon, plus sign or comma", ("", '"')),
                ("tova+keepkv:threshold", "a decimal from 0 to 1 of at most 18 digits, or none", ("1.5", "-1", "all", "")),
                ("tova+keepkv:predict", "ema or current", ("last", "")),
                ("tova+keepkv:ema", "0, or a number from 1e-270 to below 1", ("1", "-0.5", "nan", "")),
                ("tova+keepkv:scores", "attention or raw", ("exp", "")),
                ("tova+keepkv:normalisation", "exact or paper", ("none", "")),
                ("tova+keepkv:key", "min-norm or zip or convex", ("mean", "")),
                ("tova+keepkv-paper:gqa", "joint or mean", ("mean-of-products", "")),
                ("tova+keepkv:rank", "a number from 0 to 1", ("2", "-1", "inf", "")),
                ("tova+keepkv:order", "evict-first or merge-first", ("merge", "")),
                ("tova+keepkv:period", "an integer >= 1, or none", ("0", "-8", "x", "", HUGE)),
                ("tova+cam:neighbours", "an integer >= 1", ("0", "-1", "")),
                ("tova+cam:seed", "an integer >= 0", ("-1", "x", HUGE))):
            self.refuses_values("--policy", (f"{option}={value}" for value in values), f"expected .*={expected}")

    def test_a_window_longer_than_recorded_is_refused(self):
        for policy in ("snapkv:window=9", "snapkv:window=4,snapkv:window=9", "h2o:window=9:recent=4",
                       "tova,h2o:window=9223372036854775807:recent=0"):
            self.refuses_options(r"good.safetensors: .*window=\d+ but the trace records only 8 prompt queries", "replay",
                                 TRACE, "--policy", policy, "--budget", "12", "--json", "out.json", "--dump", "dumps/")
        self.refuses_values("--policy", (f"snapkv:window={2**63 - 1}",), f"window={2**63 - 1} but the trace records only 8")

    def test_layers_steps_threads_and_limits_out_of_range_are_refused(self):
        self.refuses_values("--layers", ("2", "0-2", "1-0", "-1", "0-", "-", "x", "0-1-2", "0x1", "1.0", HUGE,
                                         "0-" + HUGE, " 0"), "--layers")
        self.refuses_values("--layers", ("", ",", "0,", "0,,1"), "empty")
        for option, values, pattern in (
                ("--steps", ("0", "4", "-1", "abc", "1.5", "", HUGE), "--steps '.*': expected an integer from 1 to 3"),
                ("--threads", ("0", "-1", "abc", "", "1.5", "1e1", "4294967297", "1000000", HUGE, " 2"),
                 "--threads '.*': expected an integer from 1 to"),
                ("--header-limit", ("0", "-1", "abc", "1M", HUGE), "--header-limit '.*': expected an integer"),
                ("--backend", ("rocm", "Reference", "reference,none"), "known backends: reference, emulated, cuda"),
                ("--backend", ("", "reference,"), "empty"), ("--backend", ("reference,reference",), "twice"),
                ("--base", ("none",), "known hosts"), ("--base", ("snapkv:window=9",), "window=9")):
            self.refuses_values(option, values, pattern)
        for command in ("inspect", TRACE), ("generate", "--kind", "flat", "out"):
            for value in ("0", "-1", "abc"):
                self.refuses_options("--threads '.*': expected an integer", *command, "--threads", value)

    def test_unknown_repeated_abbreviated_and_missing_options_are_refused(self):
        replay = "replay", TRACE, *POLICY, *BUDGET
        for option in ("--foo", "--foo=1", "-x", "-j", "--arguments", "--arguments=x", "---", "--Json"):
            self.refuses_options("unrecognised|unknown|unregistered|option", *replay, option)
        self.refuses_options("--bud|bud", "replay", TRACE, *POLICY, "--bud", "8")
        self.refuses_options("polic", "replay", TRACE, "--polic", "snapkv:window=4", *BUDGET)
        self.refuses_options("js", *replay, "--js", "out.json")
        self.refuses_options("-policy", "replay", TRACE, "-policy", "snapkv:window=4", *BUDGET)
        for twice in (POLICY, BUDGET, ("--threads", "1"), ("--json", "a"), ("--layers", "0")):
            self.refuses_options(f"{twice[0]}.*more than once", *replay, *twice,
                                 *([] if twice in (POLICY, BUDGET) else twice))
        self.refuses_options("quiet", *replay, "--quiet", "--quiet")
        self.refuses_options("quiet", *replay, "--quiet=yes")
        for option in ("--budget", "--json", "--threads", "--dump", "--base"):
            self.refuses_options(f"{option}.*(missing|twice|more than once)", "replay", TRACE, *POLICY, option)
        self.refuses_options("--policy is missing", "replay", TRACE, *BUDGET)
        self.refuses_options("--budget is missing", "replay", TRACE, *POLICY)
        self.refuses_options("TRACE is missing", "replay", *POLICY, *BUDGET)
        self.refuses_options("TRACE is missing", "inspect")
        self.refuses_options("an empty argument; expected TRACE", "inspect", "")
        self.refuses_options("--kind is missing", "generate", "out")

    def test_stray_words_are_refused(self):
        self.refuses_options("unexpected argument 'stray'", "inspect", TRACE, "stray")
        self.refuses_options("unexpected argument 'stray'", "generate", "--kind", "flat", "out", "stray")
        self.refuses_options("no subcommand; try", )
        for word in ("rpelay", "", "Replay", "--foo", "-V", TRACE):
            self.refuses_options(f"no subcommand.*{word}", word)
        self.refuses_options("stray", "--version", "stray")
        self.refuses_options("stray", "--help", "stray")

    def test_bench_refuses_what_it_does_not_know_and_lists_what_it_does(self):
        small = "--shape", "pocket:256"
        self.refuses_options("no operation 'none'; known: exponential, projected-value-norms, projected-value-norms-l2, window-attention, "
                             "window-scores-joint, window-scores-exact, selection, nearest-key, compress, step-attention, "
                             "step-value, step-key, step-joint, step-exact, step-keepkv, upload, step-host, replay, prefill, model-step, lockstep",
                             "bench", *small, "none")
        self.refuses_options("operation 'selection' is given twice", "bench", *small, "selection", "selection")
        self.refuses_options("an empty argument; expected OPERATION", "bench", *small, "")
        for shape in ("", ":", "pocket:", "pocket:255", "pocket:131073", "pocket:-512", "pocket:512:1",
                      "pocket: 512", "Pocket:512", "gpt-2:512", f"pocket:{HUGE}", "pocket:1e3"):
            self.refuses_options("--shape '.*': known shapes: llama-3.1-8b:32768, mistral-7b:32768, "
                                 "qwen2.5-32b:32768, pocket:1984; or with other tokens, 256 to 131072",
                                 "bench", "--shape", shape)
        self.refuses_options("known backends: reference, emulated, cuda", "bench", *small, "--backend", "rocm")
        self.refuses_options("no operation 'selection'; known: attention, attention-compressed, window-attention",
                             "bench", *small, "--backend", "emulated", "selection")
        self.refuses_options("--blas-core is for the reference, not for --backend emulated", "bench", *small,
                             "--backend", "emulated", "--blas-core", "Haswell")
        device = "--backend", "emulated"
        for where, operation in (((), "selection"), (device, "compact")):
            self.refuses_options("--policy is for operations that are run by a policy, none of which was chosen", "bench", *small,
                                 *where, operation, "--policy", "h2o")
        self.refuses_options("--policy: 'snapkv:pool=7' is given twice", "bench", *small, "--policy", "snapkv,snapkv:pool=7")
        self.refuses_options("policy", "bench", *small, "compress", "--policy", "snapkv,fifo")
        self.refuses_options("operation 'prefill' needs --model", "bench", *small, "prefill")
        self.refuses_options("--model: an empty name", "bench", *small, "prefill", "--model", "")
        self.refuses_options("none of which was chosen", "bench", *small, "selection", "--model", "model")
        self.refuses_options("none of which was chosen", "bench", *small, "--prompt", "7")
        self.refuses_options("--prompt is for the reference, not for --backend emulated", "bench", *small, *device, "--prompt", "7")
        self.refuses_options(r"no model of a GPU 'b\\x0a200'; known: h100, h200", "bench", *small, *device, "--model", "b\n200")
        self.refuses_options("--model: an empty name", "bench", *small, *device, "--model", "")
        for option in ("repeats", "peer"):
            self.refuses_options("--repeats and --peer are for measurements; --model only predicts", "bench", *small, *device,
                                 "compact", "--model", "h100", f"--{option}", "7")
        self.refuses_options("--policy: 'h2o:sinks=0' is given twice", "bench", *small, *device, "--policy",
                             "h2o,tova,h2o:sinks=0")
        self.refuses_options("policy", "bench", *small, *device, "--policy", "h2o,fifo")
        self.refuses_options("policy", "bench", *small, *device, "--policy", "")
        for option, values in (("repeats", ("0", "-1", "x", "", "1001")), ("seed", ("-1", HUGE)), ("prompt", ("0", "131073")),
                               ("threads", ("0", "-1", "abc"))):
            for value in values:
                self.refuses_options(f"--{option} '.*': expected an integer", "bench", *small, f"--{option}", value)
        self.refuses_options("--blas-core: an empty name", "bench", *small, "--blas-core", "")
        eigen = "is for OpenBLAS; this program has Eigen"
        self.refuses_options(rf"--blas-core ('Foo\\x0a': OpenBLAS runs its \w+ kernels instead|{eigen})", "bench",
                             *small, "--blas-core", "Foo\n", "--json", "out.json")
        for core in ("Bulldozer", "SkylakeX", "POWER9"):  # no processor can run all three
            result = self.run_program("bench", *small, "selection", "--repeats", "1", "--blas-core", core)
            self.assertIn(result.returncode, (PASS, USAGE), f"{core}: {result.stderr}")
            if result.returncode == USAGE:
                self.assertRegex(result.stderr, rf"\Akvbound: --blas-core ('{core}': [^\n]* its (\w+ )?kernels|{eigen})")
        self.refuses_options("--json: an empty file name", "bench", *small, "--json", "")

    def test_generate_refuses_what_makes_no_trace(self):
        kind = "generate", "--kind", "flat"
        self.refuses_options("--kind 'none': expected one of power-law, flat, sink", "generate", "--kind", "none",
                             "out")
        for option in ("tokens", "layers", "query-heads", "kv-heads", "head-dim", "model-dim", "window-queries"):
            for value in ("0", "-1", "x", "1.5", "", HUGE, "1000000000"):
                self.refuses_options(f"--{option} '.*': expected an integer from 1 to", *kind, f"--{option}", value,
                                     "out")
        for option, value in (("decode", "-1"), ("seed", "-1"), ("seed", HUGE)):
            self.refuses_options(f"--{option} '.*': expected an integer from 0 to", *kind, f"--{option}", value, "out")
        for dtype in ("I32", "F24", "f32", ""):
            self.refuses_options("--dtype '.*': expected F64, F32, F16 or BF16", *kind, "--dtype", dtype, "out")
        self.refuses_options("query|kv", *kind, "--query-heads", "6", "--kv-heads", "4", "out")
        self.refuses_options("window", *kind, "--tokens", "16", "--window-queries", "17", "out")
        self.refuses_options("OUT is missing", *kind)
        self.refuses_options("an empty argument; expected OUT", *kind, "")


class OutputsThatClash(CommandLineTest):
    def setUp(self):
        super().setUp()
        TraceFile().write(self.folder / TRACE)
        (self.folder / "link").symlink_to(TRACE)
        (self.folder / "folder").mkdir()

    def test_an_output_never_replaces_an_input(self):
        for name in (TRACE, f"./{TRACE}", "link", f"folder/../{TRACE}", str(self.folder / TRACE)):
            for option in ("--json", "--csv", "--dump"):
                self.refuses(USAGE, f"{option}: .*input", "replay", TRACE, *POLICY, *BUDGET, option, name)
            self.refuses(USAGE, "--json: .*input", "inspect", TRACE, "--json", name)
        self.refuses(USAGE, "--json: .*input", "replay", "link", *POLICY, *BUDGET, "--json", TRACE)

    def test_an_output_never_replaces_a_shard(self):
        path, _ = write_sharded(TraceFile(), self.folder)
        for option in ("--json", "--csv", "--dump"):
            self.refuses(USAGE, f"{option}: .*input", "replay", path.name, *POLICY, *BUDGET, option,
                         "shard-1.safetensors")
        self.refuses(USAGE, "--json: .*input", "inspect", path.name, "--json", "shard-0.safetensors")

    def test_two_outputs_never_share_a_file(self):
        for first, second in (("--json", "--csv"), ("--csv", "--dump"), ("--json", "--dump")):
            for name in ("out", "./out", "folder/../out", str(self.folder / "out")):
                self.refuses(USAGE, "--[a-z]+: .*what --[a-z]+ writes", "replay", TRACE, *POLICY, *BUDGET, first, "out",
                             second, name)

    def test_a_dump_in_a_folder_never_replaces_an_input_or_another_output(self):
        name = "snapkv_window=4_pool=7@8@reference.safetensors"
        (self.folder / name).write_bytes((self.folder / TRACE).read_bytes())
        for target in (".", "./", "folder/.."):
            self.refuses(USAGE, "--dump: .*input", "replay", name, *POLICY, *BUDGET, "--dump", target)
        for option in ("--json", "--csv"):
            self.refuses(USAGE, "--[a-z]+: .*what --[a-z]+ writes", "replay", TRACE, *POLICY, *BUDGET, "--dump",
                         "folder", option, f"folder/{name}")

    def test_several_dumps_need_a_folder(self):
        TraceFile(seed=2).write(self.folder / "other.safetensors")
        (self.folder / "file").write_text("precious")
        for arguments in ((TRACE, *POLICY, "--budget", "8,9"), (TRACE, "other.safetensors", *POLICY, *BUDGET),
                          (TRACE, "--policy", "snapkv:window=4,snapkv:window=3", *BUDGET)):
            self.refuses(USAGE, "--dump 'file': several dumps need a folder", "replay", *arguments, "--dump", "file")
        (self.folder / "folder" / TRACE).write_bytes((self.folder / TRACE).read_bytes())
        self.refuses(USAGE, "two traces are called 'good'", "replay", TRACE, f"folder/{TRACE}", *POLICY, *BUDGET,
                     "--dump", "dumps")

    def test_empty_output_names_are_refused(self):
        for option in ("--json", "--csv", "--dump"):
            self.refuses(USAGE, f"{option}: an empty file name", "replay", TRACE, *POLICY, *BUDGET, option, "")


class AWorldThatRefuses(CommandLineTest):
    OUTPUTS = {"--json": "out.json", "--csv": "out.csv", "--dump": "dumps/"}

    def setUp(self):
        super().setUp()
        TraceFile().write(self.folder / TRACE)

    def refuses_outputs(self, pattern, **outputs):
        """Refuses a replay that requests all three outputs, of which `outputs` replaces some by targets that cannot be
        written."""
        chosen = {**self.OUTPUTS, **{f"--{option}": target for option, target in outputs.items()}}
        with self.subTest(outputs):
            self.refuses(WORLD, pattern, "replay", TRACE, *POLICY, *BUDGET,
                         *(word for pair in chosen.items() for word in pair))

    def test_outputs_where_no_file_can_be_made_are_refused(self):
        (self.folder / "file").write_text("precious")
        (self.folder / "folder").mkdir()
        for option in ("json", "csv", "dump"):
            for target in ("missing/out", "file/out", "/proc/none/out", "x" * 300):
                self.refuses_outputs("cannot .*(No such file|Not a directory|not permitted|too long|no folder)",
                                     **{option: target})
        for option in ("json", "csv"):
            self.refuses_outputs("cannot write folder: Is a directory", **{option: "folder"})
        self.refuses(WORLD, "cannot", "inspect", TRACE, "--json", "missing/out")
        for target in ("missing/out", "folder", "file/out"):
            self.refuses(WORLD, "cannot", "generate", "--kind", "flat", "--tokens", "64", target)

    def test_a_full_disk_leaves_no_output_at_all(self):
        for option in ("json", "csv", "dump"):
            self.refuses_outputs("cannot write /dev/full: No space left", **{option: "/dev/full"})
        self.refuses(WORLD, "cannot write /dev/full: No space left", "inspect", TRACE, "--json", "/dev/full")
        self.refuses(WORLD, "cannot write /dev/full: No space left", "generate", "--kind", "flat", "--tokens", "64",
                     "/dev/full")

    def test_a_disk_that_fills_up_at_any_point_leaves_no_output_at_all(self):
        replay = "replay", TRACE, *POLICY, "--budget", "8,100%", *(word for pair in self.OUTPUTS.items()
                                                                   for word in pair)
        for limit in (0, 1, 100, 1000, 2000, 4096):
            with self.subTest(limit):
                self.refuses(WORLD, "cannot write", *replay, file_size_limit=limit)
                self.refuses(WORLD, "cannot write", "generate", "--kind", "flat", "--tokens", "64", "out",
                             file_size_limit=limit)
        self.refuses(WORLD, "cannot write", "inspect", TRACE, "--json", "out", file_size_limit=500)
        self.passes(*replay, file_size_limit=1 << 20)

    def test_an_output_that_fails_leaves_what_was_there_before(self):
        for name in ("out.json", "out.csv", "out"):
            (self.folder / name).write_text("precious")
        self.refuses_outputs("No space left", csv="/dev/full")
        self.refuses_outputs("No space left", json="/dev/full")
        self.refuses(WORLD, "cannot write", "generate", "--kind", "flat", "--tokens", "64", "out", file_size_limit=1000)

    def test_a_standard_output_that_is_full_or_closed_fails(self):
        for arguments in (("inspect", TRACE), ("replay", TRACE, *POLICY, *BUDGET), ("--help",), ("--version",),
                          ("replay", "--help")):
            with open("/dev/full", "w") as full, self.subTest(arguments):
                result = self.run_program(*arguments, stdout=full)
                self.assertEqual((result.returncode, result.stderr),
                                 (WORLD, "kvbound: cannot write to standard output\n"))
        reading, writing = os.pipe()
        os.close(reading)
        result = self.run_program("inspect", TRACE, stdout=writing)
        os.close(writing)
        self.assertEqual((result.returncode, result.stderr), (WORLD, "kvbound: cannot write to standard output\n"))


class Signals(CommandLineTest):
    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def interrupt(self, number, pattern, least_size, *arguments):
        """Sends the signal once a matching file has `least_size` bytes: the program dies of the signal and no file has
        changed."""
        before = contents(self.folder)
        process = self.start(*arguments, stdout=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        while process.poll() is None and not any(path.stat().st_size >= least_size for path in self.matching(pattern)):
            time.sleep(0.001)
        process.send_signal(number)
        stderr = process.communicate(timeout=300)[1]
        self.assertEqual((process.returncode, stderr), (-number, ""), "the program was to die of the signal")
        self.assertEqual(contents(self.folder), before)

    def matching(self, pattern):
        for path in self.folder.rglob(pattern):
            if path.exists():
                yield path

    def test_a_replay_interrupted_in_mid_run_leaves_nothing(self):
        for number in self.SIGNALS:
            self.interrupt(number, ".out.json.*.tmp", 0, "replay", SAMPLES / "pocket-gqa.safetensors", "--policy",
                           "snapkv,snapkv+critical:alpha=adaptive,snapkv+theta-sweep", "--budget",
                           "5%,10%,20%,30%,40%,50%", "--json", "out.json", "--csv", "out.csv", "--dump", "dumps/")

    def test_a_replay_interrupted_while_it_writes_leaves_nothing_torn(self):
        budgets = ",".join(str(budget) for budget in range(32, 232))
        self.interrupt(signal.SIGTERM, ".*.safetensors.*.tmp", 0, "replay", SAMPLES / "pocket-mha.safetensors",
                       "--policy", "snapkv", "--budget", budgets, "--layers", "0", "--json", "out.json", "--dump",
                       "dumps/")

    def test_a_generator_interrupted_while_it_writes_leaves_nothing(self):
        (self.folder / "out").write_text("precious")
        for number in self.SIGNALS:
            self.interrupt(number, ".out.*.tmp", 1 << 20, "generate", "--kind", "mixed", "--tokens", "131072",
                           "--layers", "64", "out")

    def test_a_recording_interrupted_while_the_model_runs_leaves_nothing(self):
        model = TinyModel().write_folder(self.folder / "model")
        (self.folder / "ids").write_text("1 2 3")
        (self.folder / "out").write_text("precious")
        for number in self.SIGNALS:
            self.interrupt(number, ".out.*.tmp", 0, "record", model, "--tokens", "ids", "--steps", "200000", "--quiet", "out")

    def test_a_run_that_is_not_interrupted_leaves_no_temporary_file(self):
        TraceFile().write(self.folder / TRACE)
        self.assertEqual(
            self.run_program("replay", TRACE, *POLICY, *BUDGET, "--json", "out.json", "--dump", "out").returncode, PASS)
        self.assertEqual(sorted(os.listdir(self.folder)), [TRACE, "out", "out.json"])


if __name__ == "__main__":
    kvbound_cli.main()
