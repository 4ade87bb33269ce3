"""`kvbound diff` finds faults in dumps of the emulated device by the bounds of single precision.

usage: diff_device_test.py KVBOUND      KVBOUND: the program's path
Every fault is planted in dumps of every fifth policy whose tensors admit it, in the long suite in those of the others. Faults
of single numbers are measured by the bounds that `diff` reports.
"""
import zlib
from fractions import Fraction
from types import SimpleNamespace
from unittest import mock

import numpy as np

import independent.decoding
import independent.prompt
import independent.scores
from independent.policy import parse_policy
from independent.replay import Trace
from support import faults, kvbound_cli
from support.diffs import DiffTest
from support.dumps import BY_STEP, FORCED, INTEGRAL, Dump, recompute
from support.kvbound_cli import INCONCLUSIVE, MISMATCH, TraceFile

MIXED, POWER_LAW, FLAT = ("F32", "mixed"), ("BF16", "power-law"), ("F16", "flat")
# Policies and the traces that they are replayed on. Bounds of keepkv's joint keys grow with every merge, and
# with BF16 they soon exceed the faults: those policies are replayed on other traces.
SELECTIONS = {
    "snapkv:window=8": MIXED, "snapkv:window=8+critical": POWER_LAW, "snapkv:window=8+critical:alpha=adaptive": FLAT,
    "snapkv:window=8:pool=1+theta-sweep": MIXED, "snapkv:window=8+greedy": POWER_LAW}
SCORES = {
    "snapkv:window=8+obcache-value": FLAT, "snapkv:window=8+obcache-key:space=projected": MIXED,
    "snapkv:window=8+obcache-joint": POWER_LAW, "snapkv:window=8+exact": FLAT,
    "h2o:window=8+obcache-value:space=projected": MIXED, "h2o:window=8+obcache-joint:space=projected": POWER_LAW,
    "h2o:window=8+obcache-key": FLAT, "h2o:window=8+exact": MIXED, "tova+exact:space=projected": POWER_LAW,
    "tova+obcache-value": FLAT}
HOSTS = {
    "h2o:window=8": MIXED, "tova": POWER_LAW, "streaming-llm": FLAT, "random:window=8": MIXED,
    "h2o:window=8:recent=2+critical": MIXED,
    "tova+critical:alpha=adaptive": POWER_LAW, "h2o:window=8+theta-sweep": FLAT}
ALLOCATIONS = {
    "snapkv:window=8+adakv": MIXED, "h2o:window=8+adakv:safeguard=0": POWER_LAW, "tova+exact+adakv": FLAT,
    "snapkv:window=8+pyramid:beta=2": FLAT, "h2o:window=8+pyramid:beta=2:shape=cosine": MIXED}
MERGES = {
    "h2o:window=8+keepkv:threshold=none": MIXED, "snapkv:window=8+keepkv:threshold=none": FLAT,
    "h2o:window=8+keepkv:threshold=0.9": MIXED, "tova+keepkv:threshold=none:gqa=mean": POWER_LAW,
    "snapkv:window=8+keepkv:threshold=none:gqa=mean:key=zip": MIXED,
    "h2o:window=8+keepkv:threshold=none:gqa=mean:key=zip": FLAT, "h2o:window=8+convex:threshold=none": FLAT,
    "snapkv:window=8+convex:threshold=none:gqa=mean": POWER_LAW, "h2o:window=8+d2o:threshold=none": POWER_LAW,
    "tova+kvmerger:threshold=none": FLAT, "h2o:window=8+cam:neighbours=4": MIXED, "tova+cam:neighbours=4": POWER_LAW,
    "tova+exact+d2o:threshold=none": MIXED}
ORDERS = {
    "snapkv:window=8+keepkv:threshold=0.9:order=merge-first": MIXED,
    "h2o:window=8+keepkv:threshold=0.9:order=merge-first": FLAT,
    "snapkv:window=8+keepkv:threshold=none:period=3": FLAT, "tova+keepkv:threshold=none:period=3": MIXED,
    "h2o:window=8+critical+keepkv:threshold=none:period=3": MIXED}
POLICIES = SELECTIONS | SCORES | HOSTS | ALLOCATIONS | MERGES | ORDERS
# the layer and, of faults that concern one, the KV head that faults are planted in
BUDGET, LAYER, HEAD = 40, 1, 1
OTHER_OPTIONS = (
    ("snapkv:window=8", "snapkv:window=8:pool=5", "score"), ("h2o:window=8", "h2o:window=9", "score"),
    ("h2o:window=8", "h2o:window=8:recent=7", "kept"), ("streaming-llm:sinks=4", "streaming-llm:sinks=5", "kept"),
    ("random:window=8", "random:window=8:seed=1", "kept"), ("random:window=8", "random:window=9", "kept"),
    ("snapkv:window=8+critical", "snapkv:window=8+critical:epsilon=0", "stage_two_score"),
    ("snapkv:window=8+critical", "snapkv:window=8+critical:gqa=product-of-means", "stage_two_score"),
    ("snapkv:window=8+critical", "snapkv:window=8+critical:norm=l2", "projected_value_norms"),
    ("snapkv:window=8+critical:alpha=0.9:epsilon=1", "snapkv:window=8+critical:alpha=0:epsilon=1", "kept"),
    ("snapkv:window=8+exact", "snapkv:window=8+obcache-value", "score"),
    ("tova+obcache-joint", "tova+obcache-joint:space=projected", "score"),
    ("h2o:window=8+obcache-key", "h2o:window=8+obcache-joint", "score"),
    ("h2o:window=8+adakv", "h2o:window=8", "kept_offsets"),
    ("snapkv:window=8+adakv:safeguard=0", "snapkv:window=8+adakv:safeguard=0.9", "kept_offsets"),
    ("snapkv:window=8+pyramid", "snapkv:window=8+pyramid:shape=cosine:beta=2", "kept_offsets"),
    *((f"snapkv:window=8+{right}", f"snapkv:window=8+{wrong}", tensor) for right, wrong, tensor in (
        ("keepkv:threshold=none", "keepkv:threshold=none:key=convex", "merged_key"),
        ("keepkv:threshold=none", "keepkv:threshold=none:gqa=mean", "merged_key"),
        ("keepkv:threshold=none", "keepkv:threshold=none:ema=0.8", "merged_key"),
        ("keepkv:threshold=none", "keepkv:threshold=none:scores=raw", "merged_key"),
        ("keepkv:threshold=none:gqa=mean", "keepkv:threshold=none:gqa=mean:key=zip", "merged_key"),
        ("keepkv:threshold=none", "keepkv:threshold=0.9", "target_of"),
        ("keepkv:threshold=0.9", "keepkv:threshold=0.9:order=merge-first", "kept_offsets"),
        ("d2o:threshold=none", "kvmerger:threshold=none", "merged_key"),
        ("cam:seed=1", "cam:seed=2", "merged_value"))),
    ("h2o:window=8+keepkv:threshold=none:period=4", "h2o:window=8+keepkv:threshold=none:period=5", "rebuilt_target_of"))


def on_every_policy(*needs, lacks=(), of=""):
    """Makes a test of a check(self, case), which is called with the case of every policy that has `of` in its name and whose dump
    has the tensors `needs` and not `lacks`: in the short suite of every fifth, other ones in other tests, in the long of the
    others."""
    def decorate(check):
        def test(self):
            having = [policy for policy in POLICIES if of in policy and self.kinds(policy).issuperset(needs)
                      and self.kinds(policy).isdisjoint(lacks)]
            self.assertGreater(len(having), 0)
            first = zlib.crc32(check.__name__.encode()) % min(len(having), self.one_of)
            is_long = getattr(self, "suite", "short") == "long"
            for policy in (each for i, each in enumerate(having) if (i % self.one_of == first) != is_long):
                with self.subTest(policy):
                    check(self, self.case(policy))
        return test
    return decorate


class DeviceTest(DiffTest):
    cases = {}  # {policy: bytes of the trace, dump, diff's report}, which are the same in every test
    one_of = 5  # policies

    def small_trace(self, dtype, kind):
        return self.trace(dtype, kind, tokens=90, decode=5)

    def emulated(self, trace, policy, budget=BUDGET, *options):
        return self.reference(trace, policy, budget, "--backend", "emulated", *options)

    def right(self, policy):
        """The bytes of a trace, a right dump and the report on it."""
        if policy not in self.cases:
            path = self.small_trace(*POLICIES[policy])
            dump = self.emulated(path, policy)
            self.cases[policy] = path.read_bytes(), dump, self.agrees(path, dump)
        return self.cases[policy]

    def kinds(self, policy):
        return self.right(policy)[1].kinds()

    def case(self, policy):
        """A right dump, and what it is judged by."""
        trace, dump, report = self.right(policy)
        path = self.folder / f"{'-'.join(POLICIES[policy])}.safetensors"
        path.write_bytes(trace)
        case = SimpleNamespace(path=path, trace=Trace(path), policy=parse_policy(policy), dump=dump, kinds=dump.kinds())
        case.items = [item for item in report["tensors"] if item["layer"] == LAYER]
        case.judged = [item for item in case.items if faults.is_judged(item)]
        case.merges_first = bool(case.policy.merge) and case.policy.merge.order == "merge-first"
        # the tensor that is judged by its number of entries
        case.sizes = "kept" if case.merges_first else "kept_offsets"
        # scored entries that are always kept
        case.newest = {"h2o": case.policy.recent}.get(case.policy.host, 0)
        scored = next((kind for kind in ("stage_two_score", "score") if kind in case.kinds), None)
        case.scores = dump.array(LAYER, scored)[HEAD] if scored else None
        case.keys = case.trace.layer(LAYER).key[HEAD]
        case.kept = faults.kept_sets(dump, LAYER)[HEAD]
        return case

    def found(self, case, dump, tensor, note="."):
        _, stderr = self.differs(case.path, dump, tensor)
        self.assertRegex(stderr, note)

    def undecided(self, case, dump, tensor):
        report, _ = self.diff(case.path, dump, INCONCLUSIVE)
        self.assertTrue(any(item["undecided"] for item in report["tensors"] if item["tensor"] == tensor))

    def differing(self, case, dump):
        """The last layer's tensors in which the dump differs, and their entries in the report."""
        report, _ = self.diff(case.path, dump, MISMATCH)
        return {item["tensor"]: item for item in report["tensors"]
                if item["layer"] == LAYER and item["verdict"] == "differs"}


class RightDumps(DeviceTest):
    one_of = 1

    @on_every_policy()
    def test_right_dumps_of_every_policy_agree_and_nothing_is_undecided(self, case):
        for item in case.items:
            self.assertEqual(item["undecided"], 0)
            if "votes" not in case.kinds or not item["tensor"].endswith("perturbation"):
                self.assertGreater(item["judged"], 0, item["tensor"])

    @on_every_policy("rebuilt_target_of")
    def test_the_first_steps_of_rebuilt_caches_agree(self, case):
        self.agrees(case.path, self.emulated(case.path, case.dump.metadata["policy"], BUDGET, "--steps", 3))


class WrongNumbers(DeviceTest):
    """Every tensor is given the fault at once; each must be found to differ by itself. Those with which `diff` continues are
    given it one at a time."""

    @staticmethod
    def forced(case):
        return [item for item in case.judged if item["tensor"] in FORCED and item["worst"]["bound"] > 0]

    @staticmethod
    def unforced(case):
        return [item for item in case.judged if item["tensor"] not in FORCED]

    @staticmethod
    def negate(dump, item):
        dump.array(LAYER, item["tensor"])[...] *= -1

    def every_tensor(self, case, change, items):
        dump = case.dump.copy()
        for item in items:
            change(dump, item)
        return dump

    @on_every_policy()
    def test_one_element_off_by_twice_its_bound_is_found_and_by_half_is_not(self, case):
        items = self.unforced(case)
        wrong = self.every_tensor(case, lambda *item: faults.move_by_bounds(*item, 2), items)
        found = self.differing(case, wrong)
        self.assertEqual({name: (item["outside"], item["worst"]["index"]) for name, item in found.items()},
                         {item["tensor"]: (1, item["worst"]["index"]) for item in items})
        self.agrees(case.path, self.every_tensor(case, lambda *item: faults.move_by_bounds(*item, 0.5), items), may_be_unlikely=True)

    @on_every_policy("votes")
    def test_a_merged_number_off_by_twice_its_bound_is_found_first_and_by_half_is_not(self, case):
        """Each by itself and without what follows, because `diff` continues with the number that is claimed."""
        names = [item["tensor"] for item in case.items]
        for item in self.forced(case):
            tensor, index = item["tensor"], item["worst"]["index"]
            with self.subTest(tensor):
                until = case.dump.only(names[:names.index(tensor) + 1])
                if tensor in BY_STEP and "rebuilt_target_of" not in case.kinds:
                    until = until.first_steps(index[0] + 1)
                wrong, right = until.copy(), until.copy()
                faults.move_by_bounds(wrong, item, 2)
                faults.move_by_bounds(right, item, 0.5)
                found = self.differing(case, wrong)[tensor]
                self.assertEqual((found["outside"], found["worst"]["index"]), (1, index))
                self.differs(case.path, wrong, tensor)
                self.agrees(case.path, right, may_be_unlikely=True)

    @on_every_policy("votes")
    def test_a_factor_and_the_wrong_sign_of_merged_numbers_are_found(self, case):
        for item in self.forced(case):
            for change in (lambda *item: faults.scale_by_bounds(*item, 2), self.negate):
                self.assertIn(item["tensor"], self.differing(case, self.every_tensor(case, change, [item])))

    @on_every_policy()
    def test_a_factor_is_found(self, case):
        items = self.unforced(case)
        wrong = self.every_tensor(case, lambda *item: faults.scale_by_bounds(*item, 2), items)
        self.assertEqual(set(self.differing(case, wrong)), {item["tensor"] for item in items})

    @on_every_policy()
    def test_the_wrong_sign_is_found(self, case):
        items = self.unforced(case)
        wrong = self.every_tensor(case, self.negate, items)
        self.assertEqual(set(self.differing(case, wrong)), {item["tensor"] for item in items})

    @on_every_policy()
    def test_swapped_heads_are_found(self, case):
        axes = {"score": 0, "stage_two_score": 0, "projected_value_norms": 0, "output": 1, "kept_mass": 1}
        wrong = case.dump.copy()
        for kind in case.kinds & set(axes):
            wrong.put(LAYER, kind, np.flip(case.dump.array(LAYER, kind), axes[kind]))
        self.assertEqual(set(self.differing(case, wrong)), case.kinds & set(axes))

    @on_every_policy()
    def test_one_nan_or_infinity_is_found_in_any_tensor(self, case):
        real = case.kinds - set(INTEGRAL)
        for bad in (np.nan, np.inf, -np.inf):
            wrong = case.dump.copy()
            for kind in real:
                wrong.array(LAYER, kind).flat[3] = bad
            found = self.differing(case, wrong)
            self.assertLessEqual(real if np.isnan(bad) else {item["tensor"] for item in case.judged}, set(found))
            self.assertEqual({item["worst"]["claimed"] for item in found.values()}, {str(bad)})

    @on_every_policy("score_positions")
    def test_wrong_integers_are_found(self, case):
        self.found(case, faults.with_element(case.dump, LAYER, "score_positions", 7, 8), "score_positions")


class WrongComputations(DeviceTest):
    def first_output(self, case, **options):
        output = faults.first_output(case.trace, case.dump, LAYER, **options)
        return faults.with_element(case.dump, LAYER, "output", 0, output)

    @on_every_policy()
    def test_an_entry_that_does_not_see_itself_and_a_dropped_part_are_found(self, case):
        self.agrees(case.path, self.first_output(case))
        for seen in (faults.all_but_the_newest, faults.all_but_a_part):
            self.found(case, self.first_output(case, seen=seen), "output", r"output\[0, ")

    @on_every_policy("votes")
    def test_votes_that_are_not_added_and_merges_that_are_not_read_are_found(self, case):
        self.found(case, self.first_output(case, reads_merged=False), "output", r"output\[0, ")
        if case.policy.merge.votes:
            self.found(case, self.first_output(case, adds_votes=False), "output", r"output\[0, ")

    @on_every_policy("score")
    def test_a_causal_mask_off_by_one_is_found(self, case):
        for mask in (faults.unmasked, faults.masking_itself):
            if mask == faults.unmasked and case.policy.window == 1:
                continue  # the last query sees every entry
            with mock.patch.object(independent.prompt, "seen_logits", mask(independent.prompt.seen_logits)):
                layer = case.trace.layer(LAYER)
                scores = [independent.prompt.prompt_scores(case.trace, layer, case.policy, group).score for group in (0, 1)]
            self.found(case, faults.with_array(case.dump, LAYER, "score", lambda _: np.stack(scores)), "score")

    def from_changed_inputs(self, case, kind, change):
        """The device's dump of a trace in which `change` has changed a tensor of every layer."""
        trace = Dump.read(case.path)
        for layer in range(2):
            change(trace.array(layer, kind))
        dump = self.emulated(trace.write(self.folder / "changed.safetensors"), case.dump.metadata["policy"])
        return faults.with_metadata(dump, trace_sha256=case.trace.sha256)

    @on_every_policy()
    def test_swapped_query_heads_are_found(self, case):
        self.found(case, self.from_changed_inputs(case, "query", faults.swap_queries),
                   "score" if "score" in case.kinds else "output")

    @on_every_policy()
    def test_w_o_transposed_within_a_head_is_found(self, case):
        judged = {item["tensor"] for item in case.judged}
        wanted = [kind for kind in ("projected_value_norms", "score", "bound", "perturbation")
                  if kind in judged and (kind != "score" or case.policy.space == "projected")]
        # where the bounds of perturbations exceed the fault
        if getattr(case.policy.merge, "gqa", None) == "joint":
            wanted = [kind for kind in wanted if kind != "perturbation"]
        if wanted:
            wrong = self.from_changed_inputs(case, "output_projection", lambda projection: faults.transpose_heads(
                projection.reshape(4, 16, 24)))
            self.found(case, wrong, wanted[0])

class WrongChoices(DeviceTest):
    @on_every_policy()
    def test_kept_sets_that_are_none_are_found(self, case):
        for note, wrong in faults.impossible_kept_sets(case.dump, LAYER, case.trace.prompt_tokens):
            self.found(case, wrong, "kept", note)
        self.found(case, faults.with_one_less(case.dump, LAYER, HEAD), case.sizes)

    @on_every_policy("score")
    def test_a_clearly_worse_entry_a_neighbour_and_the_wrong_end_of_the_scores_are_found(self, case):
        sets = [faults.exchanged(case.kept, *exchange(case.scores, case.kept, case.newest))
                for exchange in (faults.clear_exchange, faults.neighbours_exchange)]
        for kept in (*sets, faults.kept_by_negated_scores(case.scores, case.kept, case.newest)):
            wrong = faults.with_kept(case.dump, LAYER, HEAD, kept)
            if case.policy.selection == "greedy":  # which judges no set but its own
                self.undecided(case, wrong.only({"kept", "kept_offsets", "score"}), "kept")
            else:
                self.found(case, wrong, "kept", rf"KV head {HEAD} kept position \d+ rather than \d+")

    @on_every_policy("evicted")
    def test_evictions_that_cannot_be_are_found(self, case):
        tokens, evicted = case.trace.prompt_tokens, case.dump.array(LAYER, "evicted")
        if (evicted[:2, HEAD] >= 0).all():
            newest = tokens if case.newest or case.policy.host == "streaming-llm" else None
            for note, wrong in faults.impossible_evictions(case.dump, LAYER, tokens, newest):
                _, stderr = self.differs(case.path, wrong, "evicted")
                self.assertIn(note, stderr)
        for step, head in np.argwhere(evicted == -1)[:1]:
            wrong = faults.with_element(case.dump, LAYER, "evicted", (step, head),
                                        faults.kept_sets(case.dump, LAYER)[head][0])
            self.found(case, wrong, "evicted", rf"step {step}, KV head {head}: position \d+ was evicted, ")

    @on_every_policy("evicted")
    def test_a_neighbour_and_the_best_entry_evicted_and_another_order_are_found(self, case):
        wrong = [faults.with_array(case.dump, LAYER, "evicted", lambda evicted: evicted[[1, 0, 2, 3, 4]])]
        if case.dump.array(LAYER, "evicted")[0, HEAD] >= 0:
            positions = [faults.neighbour_in_cache(case.dump, LAYER, case.newest, case.trace.prompt_tokens)]
            if case.scores is not None:
                positions.append(faults.best_of_those_that_stay(case.dump, LAYER, case.scores, case.newest))
            wrong += [faults.with_element(case.dump, LAYER, "evicted", (0, HEAD), position) for position in positions]
        for dump in wrong:
            self.found(case, dump, "evicted")
            # no bounds of such scores over merged numbers with errors
            if "votes" in case.kinds and case.policy.score != "attention":
                self.undecided(case, dump.only({"kept", "evicted"}), "evicted")

    @on_every_policy("evicted", lacks=("votes",), of="h2o")
    def test_h2o_that_forgets_its_running_sum_is_found(self, case):
        head = independent.decoding.DecodingHead
        with mock.patch.object(head, "accumulate", faults.forgetting(head.accumulate)):
            wrong = recompute(case.path, case.dump.metadata["policy"], str(BUDGET), kept=faults.all_kept_sets(case.dump))
        evicted = wrong.array(LAYER, "evicted")
        self.found(case, faults.with_array(case.dump, LAYER, "evicted", lambda _: evicted), "evicted")

class WrongBudgets(DeviceTest):
    @on_every_policy()
    def test_a_budget_off_by_one_is_found(self, case):
        for budget in (BUDGET - 1, BUDGET + 1):
            wrong = faults.claiming(self.emulated(case.path, case.dump.metadata["policy"], budget), case.dump)
            self.found(case, wrong, case.sizes)

    @on_every_policy(of="+adakv")
    def test_an_entry_that_another_head_is_given_is_found(self, case):
        for giver in (0, 1):
            self.found(case, faults.with_moved_budget(case.dump, LAYER, giver, case.newest), "kept_offsets")


class WrongMerges(DeviceTest):
    @on_every_policy("votes")
    def test_a_wrong_vote_is_found(self, case):
        for note, wrong in faults.wrong_votes(case.dump, LAYER):
            self.found(case, wrong, "votes", note)

    @on_every_policy("step_votes")
    def test_wrong_numbers_of_a_steps_merge_are_found(self, case):
        for note, wrong in faults.wrong_step_merges(case.dump, LAYER):
            self.found(case, wrong, r"step_\w+", note)

    @on_every_policy("rebuilt_votes")
    def test_wrong_numbers_of_a_rebuild_are_found(self, case):
        for note, wrong in faults.wrong_rebuilt_merges(case.dump, LAYER):
            self.found(case, wrong, r"rebuilt_\w+", note)

    @on_every_policy("target_of")
    def test_a_wrong_cluster_is_found(self, case):
        targets = case.dump.array(LAYER, "target_of")[HEAD]
        for what, change in faults.wrong_targets(targets, case.keys, len(targets)):
            wrong = case.dump.copy()
            wrong.array(LAYER, "target_of")[HEAD, list(change)] = list(change.values())
            with self.subTest(f"{what} {change}"):
                self.found(case, wrong, "(target_of|kept)" if case.merges_first else "target_of")

    @on_every_policy("rebuilt_target_of")
    def test_a_wrong_rebuild_is_found(self, case):
        targets, entries = case.dump.array(LAYER, "rebuilt_target_of")[0, HEAD], case.trace.prompt_tokens + 3
        everyone = np.arange(entries)
        kept, gone = (everyone[(targets[:entries] == everyone) == is_kept] for is_kept in (True, False))
        for what, change in (*faults.wrong_targets(targets, case.keys, entries),
                             ("an entry that is not there yet", {entries: kept[0]}),
                             ("an entry kept rather than another", {kept[0]: kept[1], gone[-1]: gone[-1]})):
            wrong = case.dump.copy()
            wrong.array(LAYER, "rebuilt_target_of")[0, HEAD, list(change)] = list(change.values())
            with self.subTest(f"{what} {change}"):
                self.found(case, wrong, "rebuilt_target_of")

    @on_every_policy("merged_into")
    def test_a_wrong_receiver_is_found(self, case):
        if case.dump.array(LAYER, "evicted")[0, HEAD] >= 0:
            for note, wrong in faults.wrong_receivers(case.dump.first_steps(1), LAYER, case.keys, 0):
                self.found(case, wrong, "merged_into", note)


class EveryOtherPolicy(WrongNumbers, WrongComputations, WrongChoices, WrongBudgets, WrongMerges):
    suite = "long"


class WrongRuns(DeviceTest):
    """Faults of policies and traces of their own."""

    def test_other_options_of_the_policy_are_found(self):
        for policy, other, tensor in OTHER_OPTIONS:
            with self.subTest(other):
                path = self.small_trace(*MIXED)
                self.differs(path, faults.claiming(self.emulated(path, other), self.emulated(path, policy)), tensor)

    def test_an_exact_removal_error_that_cancels_is_found(self):
        trace = TraceFile(dtype="F32", prompt_tokens=60)
        faults.peak(trace)
        path = trace.write(self.folder / "peaked.safetensors")
        for policy in ("h2o:window=4+exact", "tova+exact:space=projected"):
            with self.subTest(policy):
                dump = self.emulated(path, policy, 12)
                self.agrees(path, dump)
                scores = independent.scores
                with mock.patch.object(scores, "removal_scores", faults.cancelling(scores.removal_scores)):
                    wrong = recompute(path, policy, "12")
                self.differs(path, faults.with_array(dump, LAYER, "score", lambda _: wrong.array(LAYER, "score")), "score")

    def test_a_first_stage_and_a_recent_window_that_decoding_lacks_are_found(self):
        path = self.trace("F32", "flat", tokens=161, decode=12)
        for policy, option, number in (("h2o:window=8+critical:alpha=0.9:epsilon=1", "alpha", Fraction(0)),
                                       ("tova+critical:alpha=adaptive:epsilon=1", "alpha", Fraction(0)),
                                       ("h2o:window=8:recent=30", "recent", 0)):
            with self.subTest(policy):
                dump = self.emulated(path, policy, 50)
                self.agrees(path, dump)
                wrong = recompute(path, policy, "50", kept=faults.all_kept_sets(dump), policy_changes=[(option, number)])
                for layer in range(2):
                    dump.put(layer, "evicted", wrong.array(layer, "evicted"))
                self.differs(path, dump, "evicted")

    def test_a_tie_between_targets_broken_the_other_way_is_legal_only_if_the_merge_follows_it(self):
        now = "predict=current"  # the moving averages of equal keys differ: they began at different queries
        for merge, tensor in ((f"keepkv:{now}", "votes"), (f"convex:{now}", "merged_key"), ("d2o", "merged_key"),
                              ("kvmerger", "merged_key")):
            for host in ("snapkv:window=8:pool=1", "h2o:window=8"):
                with self.subTest(f"{host}+{merge}"):
                    path, policy = self.small_trace(*MIXED), f"{host}+{merge}:threshold=none"
                    first, second = faults.tie_targets(path, self.emulated(path, policy), LAYER, HEAD)
                    dump = self.emulated(path, policy)
                    self.agrees(path, dump)
                    members = np.flatnonzero(dump.array(LAYER, "target_of")[HEAD] == first)
                    self.assertNotIn(second, dump.array(LAYER, "target_of")[HEAD, np.arange(90) != second])
                    other = faults.with_targets_renamed(dump, LAYER, HEAD, first, second)
                    self.differs(path, other, tensor)
                    faults.exchange_rows(other, LAYER, HEAD, first, second)
                    report = self.agrees(path, other.first_steps(1))
                    swaps = [item["near_tie_swaps"] for item in report["tensors"] if item["tensor"] == "target_of"]
                    self.assertEqual(swaps, [0, len(members) - 1])


if __name__ == "__main__":
    kvbound_cli.main()
