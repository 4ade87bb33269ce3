#include "outputs.hpp"

#include <fmt/format.h>

#include "csv.hpp"

namespace kvbound::sim {

void add_output_options(CommandLine& line, std::string_view rows) {
  line.add("json", "FILE", "write all figures as JSON (kvbound figures says what they are)");
  line.add("csv", "FILE", fmt::format("write a row per {}", rows).c_str());
}

Outputs::Outputs(const CommandLine& line, OutputPaths& taken, std::string_view command) : command_(command) {
  take_paths(line, taken);
}

Outputs::Outputs(const CommandLine& line, const std::vector<std::string>& inputs, std::string_view command)
    : command_(command) {
  OutputPaths taken;
  for (const std::string& input : inputs) taken.add_input(input);
  take_paths(line, taken);
  open();
}

void Outputs::take_paths(const CommandLine& line, OutputPaths& taken) {
  json_path_ = line.text("json");
  csv_path_ = line.text("csv");
  if (json_path_) taken.add("json", *json_path_);
  if (csv_path_) taken.add("csv", *csv_path_);
}

void Outputs::open() {
  if (json_path_) {
    json_file_.emplace(*json_path_);
    json_.emplace(command_, [this](std::string_view text) { json_file_->write(text); });
  }
  if (csv_path_) csv_file_.emplace(*csv_path_);
}

void Outputs::add(const Part& part) {
  if (json_) json_->add(part);
  add_headings(part);
  if (csv_file_) csv_file_->write(csv_rows(part));
}

void Outputs::add_headings(const Part& part) {
  if (csv_file_ && !has_headings_) csv_file_->write(csv_headings(part));
  has_headings_ = true;
}

void Outputs::prepare(const Json& provenance) {
  if (json_) {
    json_->finish(provenance);
    json_file_->prepare();
  }
  if (csv_file_) csv_file_->prepare();
}

void Outputs::commit() {
  flush_standard_output();
  if (json_file_) json_file_->commit();
  if (csv_file_) csv_file_->commit();
}

void Outputs::write(const Part& part, const Json& provenance) {
  add(part);
  prepare(provenance);
  commit();
}

}  // namespace kvbound::sim
