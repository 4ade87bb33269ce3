#include <array>
#include <iostream>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <kvbound/sim/options/help_text.hpp>
#include <kvbound/sim/options/suggestion.hpp>
#include <kvbound/sim/options/terminal_width.hpp>
#include <kvbound/traces/messages.hpp>

#include "commands.hpp"

namespace kvbound::sim {
namespace {

constexpr std::array kHeadings{
    std::pair(Purpose::record, "Record: traces"),     std::pair(Purpose::look, "Look: into a trace"),
    std::pair(Purpose::compare, "Compare: policies"), std::pair(Purpose::check, "Check: kernels"),
    std::pair(Purpose::prove, "Prove: theorems"),     std::pair(Purpose::help, "Help")};

constexpr const char* kMoreHelp = R"(
kvbound COMMAND --help has a command's options and examples, kvbound policies what --policy takes; kvbound --version.

Matrix products use the fastest of OpenBLAS's kernels that the processor supports, or those that the environment
variable OPENBLAS_CORETYPE names; each JSON report records which. Text is as wide as the terminal, or as COLUMNS says.

Exit codes:
  0   pass
  1   mismatch, or a bound is violated
  2   usage
  3   invalid input
  4   I/O or resources
  5   inconclusive
  70  internal error
)";

std::string group_text(Purpose purpose, const char* heading, int64_t width) {
  std::vector<std::pair<std::string, std::string>> items;
  for (const Command& command : commands()) {
    if (command.purpose == purpose)
      items.emplace_back(fmt::format("{} {}", command.name, command.arguments), command.meaning);
  }
  return items.empty() ? "" : fmt::format("\n{}\n{}", heading, items_text(items, width));
}

}  // namespace

const Command& command_named(const std::string& name) {
  Names known;
  for (const Command& command : commands()) {
    if (command.name == name) return command;
    known.emplace_back(command.name);
  }
  throw UsageError(
      fmt::format("no subcommand {}; {}", traces::quoted(name), suggestion(name, "known: ", known)));
}

std::string program_help() {
  const int64_t width = terminal_width().value_or(kUsualWidth);
  std::string text =
      filled("kvbound: KV-cache compression for large language models with its guarantees checked", width);
  for (const auto& [purpose, heading] : kHeadings) text += group_text(purpose, heading, width);
  return text + filled(kMoreHelp, width);
}

int help_command(const Arguments& arguments) {
  CommandLine line("help [COMMAND]: this program's help, or a command's", "",
                   {{"kvbound help"}, {"kvbound help replay"}});
  if (!line.parse(arguments)) return kPass;
  const std::vector<std::string> names = line.positionals("COMMAND", 0, 1);
  if (names.empty()) {
    std::cout << program_help();
    return kPass;
  }
  return command_named(names.front()).run({"--help"});
}

}  // namespace kvbound::sim
