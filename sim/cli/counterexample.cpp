#include "counterexample.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/proofs/theorems/catalogue.hpp>
#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/report/json.hpp>
#include <kvbound/traces/input_file.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

using proofs::Instance;

constexpr const char* kSchema = "kvbound-instance-1";
constexpr int64_t kSizeLimit = int64_t{1} << 26;
constexpr int kDeepest = 16;

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

std::string file_text(const std::string& path) {
  const traces::InputFile file(path);
  if (file.size() > kSizeLimit) {
    throw TraceError(path, 0, "instance",
                     fmt::format("is {} bytes; the limit is {}", file.size(), kSizeLimit));
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, text, "instance");
  return text;
}

Json parse(const std::string& path) {
  std::vector<std::set<std::string>> keys;  // of the objects being parsed
  const auto refuse_what_is_hostile = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > kDeepest)
      throw TraceError(path, -1, "instance", fmt::format("is more than {} levels deep", kDeepest));
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw TraceError(path, -1, "instance",
                       "the key " + traces::in_quotes(parsed.get<std::string>()) + " is there twice");
    }
    return true;
  };
  try {
    return Json::parse(file_text(path), refuse_what_is_hostile);
  } catch (const Json::parse_error& error) {
    throw TraceError(path, static_cast<int64_t>(error.byte), "instance", "is no JSON");
  } catch (const Json::out_of_range&) {
    throw TraceError(path, -1, "instance", "has a number that no double holds");
  }
}

// Reads one document's fields; a field that is missing or invalid throws TraceError with the field's name.
class Reader {
 public:
  Reader(const std::string& path, const Json& document) : path_(path), document_(document) {}

  [[noreturn]] void refuse(const std::string& field, const std::string& problem) const {
    throw TraceError(path_, -1, field, problem);
  }
  const Json& field(const std::string& name) const {
    const auto place = document_.find(name);
    if (place == document_.end()) refuse(name, "is missing");
    return *place;
  }
  std::string text(const std::string& name) const {
    if (!field(name).is_string()) refuse(name, "expected a text");
    return field(name).get<std::string>();
  }
  double number(const Json& json, const std::string& name) const {
    if (!json.is_number()) refuse(name, "expected numbers, found " + traces::printable(json.dump(), 40));
    return json.get<double>();
  }
  int64_t integer(const Json& json, const std::string& name) const {
    const bool too_large = json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX;
    if (!json.is_number_integer() || too_large)
      refuse(name, "expected integers, found " + traces::printable(json.dump(), 40));
    return json.get<int64_t>();
  }
  std::vector<int64_t> positions(const std::string& name) const {
    if (!field(name).is_array()) refuse(name, "expected a list of positions");
    std::vector<int64_t> result;
    for (const Json& item : field(name)) result.push_back(integer(item, name));
    return result;
  }
  std::vector<double> numbers(const std::string& name) const {
    if (!field(name).is_array()) refuse(name, "expected a list of numbers");
    std::vector<double> result;
    for (const Json& item : field(name)) result.push_back(number(item, name));
    return result;
  }
  Matrix matrix(const std::string& name) const {
    if (!field(name).is_array()) refuse(name, "expected a list of rows");
    Matrix result;
    for (const Json& row : field(name)) {
      if (!row.is_array()) refuse(name, "expected a list of rows");
      std::vector<double> numbers;
      for (const Json& item : row) numbers.push_back(number(item, name));
      if (result.rows() > 0 && std::ssize(numbers) != result.cols()) {
        refuse(name, fmt::format("row {} has {} numbers, those before have {}", result.rows(), numbers.size(),
                                 result.cols()));
      }
      result.append_row(numbers);
    }
    return result;
  }

 private:
  const std::string& path_;
  const Json& document_;
};

StoredInstance read_instance(const std::string& path, const Json& document) {
  const Reader reader(path, document);
  if (reader.text("schema") != kSchema)
    reader.refuse("schema",
                  "is " + traces::in_quotes(reader.text("schema")) + "; expected \"" + kSchema + "\"");
  StoredInstance stored;
  try {
    stored = find_property(reader.text("property"));
  } catch (const UsageError& error) {
    reader.refuse("property", error.what());
  }
  Instance& instance = stored.instance;
  instance.query_heads = reader.integer(reader.field("query_heads"), "query_heads");
  instance.logits = reader.matrix("logits");
  instance.values = reader.matrix("values");
  instance.output_projection = reader.matrix("output_projection");
  instance.stage_one = reader.positions("stage_one");
  instance.kept = reader.positions("kept");
  instance.epsilon = reader.number(reader.field("epsilon"), "epsilon");
  if (stored.theorem->sizes.merging) {
    instance.votes = reader.numbers("votes");
    instance.query_vectors = reader.matrix("query_vectors");
    instance.ema = reader.number(reader.field("ema"), "ema");
  }
  try {
    proofs::require_valid(instance);
  } catch (const Error& error) {
    reader.refuse("instance", error.what());
  }
  return stored;
}

// Appends every instance document found within a document.
void collect(const std::string& path, const Json& document, std::vector<StoredInstance>& result) {
  if (document.is_object() && document.value("schema", Json()) == kSchema) {
    result.push_back(read_instance(path, document));
    return;
  }
  if (!document.is_structured()) return;
  for (const Json& part : document) collect(path, part, result);
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
  throw UsageError(fmt::format("no theorem '{}'; known: {}", id, fmt::join(known, ", ")));
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
  collect(path, parse(path), result);
  if (result.empty()) throw TraceError(path, -1, "schema", fmt::format("nowhere is \"{}\"", kSchema));
  return result;
}

}  // namespace kvbound::sim
