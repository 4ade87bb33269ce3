#include "item_result.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/sha256.hpp>

namespace kvbound::sim {

template <>
struct Fields<MergeCounts> {
  static void visit(auto& counts, const auto& visit) {
    visit("leaving", counts.leaving);
    visit("merged", counts.merged);
    visit("clusters", counts.clusters);
    visit("singular", counts.singular);
    visit("negative", counts.negative);
    visit("far", counts.far);
  }
};

template <>
struct Fields<MergeChange> {
  static void visit(auto& change, const auto& visit) {
    visit("step", change.step);
    visit("query_head", change.query_head);
    visit("perturbation", change.perturbation);
    visit("rounding", change.rounding);
  }
};

template <>
struct Fields<reference::ClusterChange> {
  static void visit(auto& change, const auto& visit) {
    visit("merged", change.merged);
    visit("evicted", change.evicted);
    visit("floor", change.floor);
  }
};

template <>
struct Fields<StepHead> {
  static void visit(auto& place, const auto& visit) {
    visit("step", place.step);
    visit("query_head", place.query_head);
  }
};

template <>
struct Fields<LaterQueries> {
  static void visit(auto& later, const auto& visit) {
    visit("perturbation", later.perturbation);
    visit("prediction_error", later.prediction_error);
    visit("value_distance", later.value_distance);
    visit("share", later.share);
    visit("sag", later.sag);
    visit("bound", later.bound);
    visit("shared_bound", later.shared_bound);
    visit("joint_bound", later.joint_bound);
    visit("variation_bound", later.variation_bound);
    visit("violations", later.violations);
  }
};

template <>
struct Fields<MergeMetrics> {
  static void visit(auto& merges, const auto& visit) {
    visit("counts", merges.counts);
    visit("changes", merges.changes);
    visit("clusters", merges.clusters);
    visit("later", merges.later);
  }
};

template <>
struct Fields<LayerMetrics> {
  static void visit(auto& metrics, const auto& visit) {
    visit("kept", metrics.kept);
    visit("perturbation", metrics.perturbation);
    visit("relative", metrics.relative);
    visit("bound", metrics.bound);
    visit("rounding", metrics.rounding);
    visit("centred_bound", metrics.centred_bound);
    visit("centred_rounding", metrics.centred_rounding);
    visit("kept_mass", metrics.kept_mass);
    visit("stage_one_mass", metrics.stage_one_mass);
    visit("layer_perturbation", metrics.layer_perturbation);
    visit("layer_relative", metrics.layer_relative);
    visit("recall", metrics.recall);
    visit("merges", metrics.merges);
  }
};

template <>
struct Fields<Offender> {
  static void visit(auto& offender, const auto& visit) {
    visit("index", offender.index);
    visit("claimed", offender.claimed);
    visit("expected", offender.expected);
    visit("error", offender.error);
    visit("bound", offender.bound);
    visit("storage", offender.storage);
    visit("note", offender.note);
  }
};

template <>
struct Fields<FunctionalValue> {
  static void visit(auto& value, const auto& visit) {
    visit("value", value.value);
    visit("band", value.band);
  }
};

template <>
struct Fields<FunctionalAgreement> {
  static void visit(auto& functional, const auto& visit) {
    visit("name", functional.name);
    visit("is_factor", functional.is_factor);
    visit("rows", functional.rows);
    visit("judged", functional.judged);
    visit("outside", functional.outside);
    visit("all", functional.all);
    visit("worst", functional.worst);
    visit("worst_share", functional.worst_share);
    visit("worst_at", functional.worst_at);
  }
};

template <>
struct Fields<ChanceTest> {
  static void visit(auto& test, const auto& visit) {
    visit("functional", test.functional);
    visit("at", test.at);
    visit("value", test.value);
    visit("bias", test.bias);
    visit("deviation", test.deviation);
    visit("undeclared", test.undeclared);
  }
};

template <>
struct Fields<ChanceTests> {
  static void visit(auto& tests, const auto& visit) {
    visit("count", tests.count);
    visit("farthest", tests.farthest);
  }
};

template <>
struct Fields<ExplainedRows> {
  static void visit(auto& rows, const auto& visit) {
    visit("fault", rows.fault);
    visit("rows", rows.rows);
  }
};

template <>
struct Fields<TensorAgreement> {
  static void visit(auto& agreement, const auto& visit) {
    visit("tensor", agreement.tensor);
    visit("elements", agreement.elements);
    visit("judged", agreement.judged);
    visit("outside", agreement.outside);
    visit("undecided", agreement.undecided);
    visit("all_zero", agreement.all_zero);
    visit("worst", agreement.worst);
    visit("median_slack", agreement.median_slack);
    visit("condition_number", agreement.condition_number);
    visit("near_tie_swaps", agreement.near_tie_swaps);
    visit("functionals", agreement.functionals);
    visit("chances", agreement.chances);
    visit("diagnosis", agreement.diagnosis);
  }
};

template <>
struct Fields<JudgedTensor> {
  static void visit(auto& tensor, const auto& visit) {
    visit("layer", tensor.layer);
    visit("agreement", tensor.agreement);
  }
};

template <>
struct Fields<OperationTimes::Entry> {
  static void visit(auto& entry, const auto& visit) {
    visit("operation", entry.operation);
    visit("calls", entry.calls);
    visit("seconds", entry.seconds);
  }
};

template <>
struct WrittenAs<OperationTimes> {
  static std::vector<OperationTimes::Entry> of(const OperationTimes& times) { return times.entries(); }
  static OperationTimes from(const std::vector<OperationTimes::Entry>& entries) {
    OperationTimes times;
    for (const OperationTimes::Entry& entry : entries) times.add(entry.operation, entry.seconds, entry.calls);
    return times;
  }
};

template <>
struct Fields<BackendTimes> {
  static void visit(auto& times, const auto& visit) {
    visit("backend", times.backend);
    visit("operations", times.operations);
  }
};

template <>
struct Fields<RunPart> {
  static void visit(auto& part, const auto& visit) {
    visit("key", part.key);
    visit("compress_seconds", part.compress_seconds);
    visit("step_seconds", part.step_seconds);
    visit("layers", part.layers);
    visit("agreement", part.agreement);
  }
};

template <>
struct Fields<ItemResult> {
  static void visit(auto& result, const auto& visit) {
    visit.fixed("format", "kvbound-sweep-item");
    visit.fixed("version", 3);
    visit("computation", result.computation);
    visit("environment", result.environment);
    visit("host", result.host);
    visit("seconds", result.seconds);
    visit("layers", result.layers);
    visit("runs", result.runs);
    visit("times", result.times);
  }
};

namespace {

constexpr size_t kHashDigits = 64;

void require_seconds(const char* name, double seconds) {
  if (!std::isfinite(seconds) || seconds < 0)
    throw Error(fmt::format("{} is {}; expected a time in seconds", name, seconds));
}

}  // namespace

std::string bytes_of(const ItemResult& result) {
  std::string body;
  FieldsJson::to_cbor(fields_of(result), body);
  return traces::sha256_of(body) + body;
}

bool has_its_hash(std::string_view bytes) {
  return bytes.size() >= kHashDigits &&
         traces::sha256_of(bytes.substr(kHashDigits)) == bytes.substr(0, kHashDigits);
}

void require_readable(const std::string& path, std::string_view bytes) {
  const auto refuse = [&](const std::string& problem) {
    throw TraceError(path, -1, "", problem + ": give the plan fewer layers_per_item or policies_per_item");
  };
  if (std::ssize(bytes) > kMostWrittenFileBytes)
    refuse(fmt::format("would have {} bytes; expected at most {} MiB", bytes.size(),
                       kMostWrittenFileBytes >> 20));
  try {
    require_written_cbor("it", bytes.substr(kHashDigits));
  } catch (const Error& error) {
    refuse(std::string("could not be read: ") + error.what());
  }
}

ItemResult item_result_of(const std::string& path, std::string_view bytes) {
  if (!has_its_hash(bytes))
    throw TraceError(path, -1, "", "is no result of a sweep, or was damaged: its hash is another");
  const std::string_view body = bytes.substr(kHashDigits);
  try {
    ItemResult result;
    read_fields("it", written_cbor("it", body), result);
    require_seconds("seconds", result.seconds);
    for (const RunPart& run : result.runs) {
      require_seconds("compress_seconds", run.compress_seconds);
      require_seconds("step_seconds", run.step_seconds);
    }
    return result;
  } catch (const Error& error) {
    throw TraceError(path, -1, "", std::string("is no result of a sweep: ") + error.what());
  }
}

}  // namespace kvbound::sim
