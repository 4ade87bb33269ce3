#include "task_result_json.hpp"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/messages.hpp>

namespace kvbound::sim {
namespace {

using Document = nlohmann::ordered_json;

// Calls visit(name, field) for every field.
template <class Figures, class Visit>
void visit_run(Figures& figures, const Visit& visit) {
  visit("kl", figures.kl);
  visit("nll", figures.nll);
  visit("top1", figures.top1);
  visit("hidden_error", figures.hidden_error);
  visit("entries", figures.entries);
  visit("stored_entries", figures.stored_entries);
  for (const OpenLoopFigure& one : kOpenLoopFigures) visit(one.name, figures.open_loop.*one.figure);
  visit("violations", figures.violations);
}

template <class Result, class Visit>
void visit_task(Result& result, const Visit& visit) {
  visit("id", result.id);
  visit("steps", result.steps);
  visit("full_nll", result.full_nll);
  visit("full_top1", result.full_top1);
  visit("prefill_seconds", result.prefill_seconds);
  visit("decode_seconds", result.decode_seconds);
}

class Writer {
 public:
  explicit Writer(Document& json) : json_(json) {}
  template <class Field>
  void operator()(const char* name, const Field& field) const {
    json_[name] = field;
  }
  void operator()(const char* name, const std::optional<double>& figure) const {
    json_[name] = figure ? Document(*figure) : Document();
  }

 private:
  Document& json_;
};

class Reader {
 public:
  explicit Reader(const Document& json) : json_(json) {}
  template <class Field>
  void operator()(const char* name, Field& field) const {
    read(name, member(name), field);
  }
  template <class Item>
  void operator()(const char* name, std::vector<Item>& list) const {
    const Document& json = member(name);
    if (!json.is_array()) refuse(name, json, "a list");
    for (const Document& item : json) read(name, item, list.emplace_back());
  }
  const Document& member(const char* name) const {
    if (!json_.is_object() || !json_.contains(name)) throw Error(std::string(name) + " is missing");
    return json_.at(name);
  }

 private:
  [[noreturn]] static void refuse(const char* name, const Document& json, const char* expected) {
    throw Error(std::string(name) + " is " + traces::printable(json.dump(), 40) + "; expected " + expected);
  }
  static void read(const char* name, const Document& json, std::string& text) {
    if (!json.is_string()) refuse(name, json, "a text");
    text = json.get<std::string>();
  }
  static void read(const char* name, const Document& json, int64_t& count) {
    if (!json.is_number_integer() || json > INT64_MAX || json < 0) refuse(name, json, "an integer >= 0");
    count = json.get<int64_t>();
  }
  static void read(const char* name, const Document& json, double& figure) {
    if (!json.is_number() || !(json.get<double>() >= 0) || !std::isfinite(json.get<double>()))
      refuse(name, json, "a number >= 0");
    figure = json.get<double>();
  }
  static void read(const char* name, const Document& json, std::optional<double>& figure) {
    if (!json.is_null()) read(name, json, figure.emplace());
  }

  const Document& json_;
};

}  // namespace

Document to_json(const RunFigures& run) {
  Document json;
  visit_run(run, Writer(json));
  return json;
}

Document to_json(const TaskResult& result) {
  Document json;
  visit_task(result, Writer(json));
  json["runs"] = Document::array();
  for (const RunFigures& run : result.runs) json["runs"].push_back(to_json(run));
  return json;
}

TaskResult task_result_of(const Document& json) {
  TaskResult result;
  const Reader reader(json);
  visit_task(result, reader);
  const Document& runs = reader.member("runs");
  if (!runs.is_array()) throw Error("runs is no list");
  for (const Document& run : runs) visit_run(result.runs.emplace_back(), Reader(run));
  return result;
}

}  // namespace kvbound::sim
