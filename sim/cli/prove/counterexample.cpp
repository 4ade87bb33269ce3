#include "counterexample.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/proofs/theorems/catalogue.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/figures/json.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/traces/input_file.hpp>
#include <kvbound/traces/json_field.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

using proofs::Instance;
using traces::JsonField;

constexpr const char* kSchema = "kvbound-instance-1";
constexpr int64_t kMostBytes = int64_t{1} << 26;

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

Json matrix_json(const Matrix& matrix) {
  Json rows = Json::array();
  for (int64_t i = 0; i < matrix.rows(); ++i) {
    const VectorView row = matrix.row(i);
    rows.push_back(std::vector<double>(row.begin(), row.end()));
  }
  return rows;
}

Matrix matrix_of(const JsonField& rows) {
  Matrix result;
  for (const JsonField& row : rows.items(true)) {
    const std::vector<double> numbers = row.numbers();
    if (result.rows() > 0 && std::ssize(numbers) != result.cols())
      row.refuse(fmt::format("has {} numbers, those before have {}", numbers.size(), result.cols()));
    result.append_row(numbers);
  }
  return result;
}

StoredInstance instance_of(const JsonField& document) {
  StoredInstance stored;
  const JsonField property = document.member("property");
  try {
    stored = find_property(property.text());
  } catch (const UsageError& error) {
    property.refuse(error.what());
  }
  Instance& instance = stored.instance;
  instance.query_heads = document.member("query_heads").integer();
  instance.logits = matrix_of(document.member("logits"));
  instance.values = matrix_of(document.member("values"));
  instance.output_projection = matrix_of(document.member("output_projection"));
  instance.stage_one = document.member("stage_one").integers();
  instance.kept = document.member("kept").integers();
  instance.epsilon = document.member("epsilon").number();
  if (stored.theorem->sizes.merging) {
    instance.votes = document.member("votes").numbers();
    instance.query_vectors = matrix_of(document.member("query_vectors"));
    instance.ema = document.member("ema").number();
  }
  try {
    proofs::require_valid(instance);
  } catch (const Error& error) {
    document.refuse(std::string("is no instance: ") + error.what());
  }
  return stored;
}

// Appends every instance document found within a document.
void collect(const JsonField& document, std::vector<StoredInstance>& result) {
  const auto schema = document.is_object() ? document.find("schema") : std::nullopt;
  if (schema && schema->is_text() && schema->any_text() == kSchema) {
    result.push_back(instance_of(document));
    return;
  }
  for (const JsonField& part : document.structured_parts()) collect(part, result);
}

}  // namespace

StoredInstance find_property(const std::string& id) {
  const std::string wanted = lower_case(id);
  std::vector<std::string> known;
  for (const proofs::Theorem& theorem : proofs::catalogue()) {
    if (theorem.id == wanted) return {&theorem, &theorem.property, {}};
    for (const proofs::Property& property : theorem.weakened) {
      if (property.id == wanted) return {&theorem, &property, {}};
    }
    known.push_back(theorem.id);
  }
  throw UsageError(fmt::format("no theorem {}; known: {}", traces::quoted(id), fmt::join(known, ", ")));
}

nlohmann::ordered_json to_json(const proofs::Property& property, const Instance& instance) {
  Json document{{"schema", kSchema},
                {"property", property.id},
                {"query_heads", instance.query_heads},
                {"logits", matrix_json(instance.logits)},
                {"values", matrix_json(instance.values)},
                {"output_projection", matrix_json(instance.output_projection)},
                {"stage_one", instance.stage_one},
                {"kept", instance.kept},
                {"epsilon", instance.epsilon}};
  if (instance.merges()) {
    document["votes"] = instance.votes;
    document["query_vectors"] = matrix_json(instance.query_vectors);
    document["ema"] = instance.ema;
  }
  return document;
}

std::vector<StoredInstance> read_instances(const std::string& path) {
  std::vector<StoredInstance> result;
  const traces::Json json = traces::parse_strict_json(path, 0, "", traces::whole_input(path, kMostBytes),
                                                      {.levels = 16, .items = kMostBytes});
  collect({path, "", json}, result);
  if (result.empty()) throw TraceError(path, -1, "schema", fmt::format("nowhere is \"{}\"", kSchema));
  return result;
}

}  // namespace kvbound::sim
