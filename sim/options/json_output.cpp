#include "json_output.hpp"

namespace kvbound::sim {

std::optional<traces::OutputFile> json_file(const CommandLine& line, const std::vector<std::string>& inputs) {
  const auto path = line.text("json");
  if (!path) return std::nullopt;
  OutputPaths outputs;
  for (const std::string& input : inputs) outputs.add_input(input);
  outputs.add("json", *path);
  return std::optional<traces::OutputFile>(std::in_place, *path);
}

void write(traces::OutputFile& json, const std::string& document) {
  json.write(document);
  json.prepare();
  flush_standard_output();
  json.commit();
}

}  // namespace kvbound::sim
