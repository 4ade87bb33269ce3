"""The places in the C++ sources at which the compiler stops for a new method, and the least code that each needs.

The names in the texts are replaced by those of the method: NewHost and so on, Change::new_score, MergedKey::new_key.
"""
import re

ALTERNATIVES = {"Host": "NewHost", "Score": "NewScore", "Selection": "NewSelection", "Allocation": "NewAllocation",
                "Merge": "NewMerge"}
ENUMERATORS = {"Change": "new_score", "MergedKey": "new_key"}
NEWCOMER = re.compile("|".join((*ALTERNATIVES.values(), *ENUMERATORS.values())))

# Section of "Add a method" -> (file, function or visitor named in the table, the overload or case that it
# needs). An overload is put before the first existing one that begins like it; a case comes first in the
# function's first switch.
NEW_CHANGE, NEW_KEY = "case Change::new_score:", "case MergedKey::new_key:"
FILLERS = {
    "Every method": (
        *(("reference/core/session_check.hpp", "require_valid", f"inline void require_valid(const {new}&{more}) {{}}")
          for new, more in (("NewHost", ", int64_t"), ("NewAllocation", ""), ("NewMerge", ""))),
        *(("sim/options/component.hpp", "describe", f"Component describe({new}& component);") for new in ALTERNATIVES.values())),
    "A host": (
        ("reference/core/host_rules.hpp", "host_rules",
         "inline HostRules host_rules(const NewHost&, int64_t, int64_t) { return {}; }"),
        ("reference/session/ranking.cpp", "AttentionScores", "Scores operator()(const NewHost&) const { return {}; }"),
        ("reference/session/prompt_selection.cpp", "top_k",
         "std::vector<std::vector<int64_t>> top_k(const NewHost&) { return {}; }"),
        ("cuda/session/ranking.cpp", "HostRanking", "Ranking operator()(const NewHost&) const { return of_window(); }"),
        ("sim/diff/judge/prompt_errors.cpp", "AttentionScoreErrors", "Matrix operator()(const NewHost&) const { return {}; }")),
    "A score": (
        ("reference/core/score_rules.hpp", "score_rules", "inline ScoreRules score_rules(const NewScore&) { return {}; }"),
        ("reference/eviction/obcache.cpp", "table_2", NEW_CHANGE),
        ("reference/eviction/obcache.cpp", "dominant_term", NEW_CHANGE),
        ("reference/eviction/obcache.cpp", "score_entries",
         NEW_CHANGE + " return score_entries<Change::new_score>(terms, scores);"),
        ("reference/core/score_rules.hpp", "leaves_out_dominant", NEW_CHANGE),
        ("cuda/window/obcache_terms.hpp", "require_scored", NEW_CHANGE),
        ("reference/bounds/obcache_errors.cpp", "judge", NEW_CHANGE),
        ("proofs/oracle/output_change.cpp", "change_vector", NEW_CHANGE),
        ("proofs/theorems/score_bounds.cpp", "terms_of", NEW_CHANGE),
        ("proofs/theorems/score_bounds.cpp", "terms_of_aside", NEW_CHANGE)),
    "A selection": (
        ("reference/core/selection_rules.hpp", "selection_rules",
         "inline SelectionRules selection_rules(const NewSelection&) { return {}; }"),
        ("reference/session/prompt_selection.cpp", "PromptSelection::select", "void select(const NewSelection&) {}"),
        ("cuda/session/prompt_selection.cpp", "select", "void select(const NewSelection&) {}"),
        ("sim/diff/judge/kept_sets.cpp", "by",
         "std::optional<Fault> by(const NewSelection&, const Positions&, const Positions&) const { return {}; }")),
    "An allocation": (
        ("reference/core/allocation_rules.hpp", "allocation_rules",
         "inline AllocationRules allocation_rules(const NewAllocation&) { return {}; }"),
        ("reference/session/head_budgets.cpp", "HeadBudgets",
         "std::vector<int64_t> operator()(const NewAllocation&) const { return {}; }"),
        ("cuda/session/head_budgets.cpp", "HeadBudgets",
         "std::vector<int64_t> operator()(const NewAllocation&) const { return {}; }"),
        ("sim/options/head_budgets.cpp", "AllocatedBudgets",
         "HeadBudgets operator()(const NewAllocation&) const { return {}; }"),
        ("sim/diff/judge/allocation.cpp", "AllocationJudge",
         "AllocationJudgement operator()(const NewAllocation&) const { return {}; }")),
    "A merging method": (
        ("reference/core/merge_rules.hpp", "merge_rules", "inline MergeRules merge_rules(const NewMerge&) { return {}; }"),
        ("reference/core/session_check.hpp", "require_composable",
         "inline void require_composable(const NewMerge&, const Policy&) {}"),
        ("reference/session/head_merging.cpp", "ClusterMerging",
         "std::vector<MergedEntry> operator()(const NewMerge&) const { return {}; }"),
        ("reference/merging/value_weights.cpp", "ValueWeights",
         "std::vector<double> operator()(const NewMerge&) const { return {}; }"),
        ("cuda/session/cluster_merging.cpp", "Method", "void operator()(const NewMerge&) const {}"),
        ("sim/diff/judge/merged_errors.cpp", "ClusterErrors",
         "reference::MergedEntryErrors operator()(const NewMerge&) const { return {}; }")),
    "A merging key": (
        ("reference/merging/keep_kv.cpp", "keep_kv", NEW_KEY),
        ("cuda/session/cluster_merging.cpp", "by_scores", NEW_KEY),
        ("reference/bounds/merge_cluster_errors.cpp", "derive_key_errors", NEW_KEY),
        ("reference/bounds/merge_errors.cpp", "scaling_error", NEW_KEY),
        ("reference/bounds/merge_errors.cpp", "largest_scale", NEW_KEY),
        ("sim/measure/merge_metrics.cpp", "lossless_key", NEW_KEY),
        ("proofs/oracle/merge_bounds.cpp", "merge_cluster", NEW_KEY)),
}
PLACES = [place for places in FILLERS.values() for place in places]
# A missing definition of an overload that a header declares shows in the source that calls it.
SEEN_BY = {"sim/options/component.hpp": "sim/options/policy.cpp"}


def position(text, function, filler):
    """The position in the file's text where the filler is inserted."""
    if filler.startswith("case "):
        return re.search(rf"\b{function}\([^;{{]*\{{.*?switch \([^\n]*\) \{{\n", text, re.DOTALL).end()
    begin = filler[:NEWCOMER.search(filler).start()]
    return re.search(rf"^ *{re.escape(begin)}", text, re.MULTILINE).start()


def alternatives_added(texts, kinds, names):
    """Adds, in place, the last alternative of each kind's variant, or enumerator of its enum. texts: {file: text}."""
    for kind in kinds:
        begin = f"enum class {kind} {{" if kind in ENUMERATORS else f"using {kind} = std::variant<"
        (header,) = (file for file in texts if file.startswith("reference/core/") and begin in texts[file])
        text, name = texts[header], names[kind]
        at = text.index(begin)
        if kind in ENUMERATORS:
            end = text.index("\n};", at)
            line = text[text.rindex("\n", 0, end) + 1:end]
            code = line.split("//")[0].rstrip()
            comma = "" if code.endswith(",") else ","
            texts[header] = f"{text[:end - len(line)]}{code}{comma}{line[len(code):]}\n  {name}{text[end:]}"
        else:
            end = text.index(">;", at)
            struct = f"struct {name} {{\n  friend bool operator==(const {name}&, const {name}&) = default;\n}};\n"
            texts[header] = text[:at] + struct + text[at:end] + f", {name}" + text[end:]


def stubs_added(texts, sections, names, wrapped):
    """Adds, in place, the code of each place; wrapped(file, function, code) is what is inserted. Returns the places."""
    added = []
    for section in sections:
        for file, function, filler in FILLERS[section]:
            kind = NEWCOMER.search(filler)[0]
            owner = next(k for k, new in (ALTERNATIVES | ENUMERATORS).items() if new == kind)
            if owner in names:
                at = position(texts[file], function, filler)
                code = wrapped(file, function, NEWCOMER.sub(names[owner], filler))
                texts[file] = f"{texts[file][:at]}{code}\n{texts[file][at:]}"
                added.append((file, function))
    return added


def recipe(readme, section):
    """The rows of a section of "Add a method": (files, what to add)."""
    table = re.search(rf"^### {re.escape(section)}$(.*?)(?=^##|\Z)", readme, re.MULTILINE | re.DOTALL)[1]
    return [tuple(cell.strip() for cell in row.split("|")[1:3]) for row in table.splitlines()
            if row.startswith("|") and "`" in row]
