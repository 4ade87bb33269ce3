#include <iostream>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/report/page/document.hpp>
#include <kvbound/sim/report/page/page.hpp>
#include <kvbound/traces/output_file.hpp>

#include "commands.hpp"
#include "progress.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kReportDetails =
    R"(FILE is what replay, recall, predict, evaluate, bench, diff, check or prove wrote with --json: any number of them, in any mixture.
The page is one file that needs no network. It begins with a table of all policies; figures follow, each with the numbers
behind it, which can be saved as CSV, SVG and PNG. Filters by policy, backend, budget, layer and query head act on all
figures that have these; the page's address keeps them.

A trace's runs and what `evaluate` says of the same model, policy and budget stand in one line of the table.
)";

const std::vector<Example> kReportExamples{
    {"kvbound replay traces/samples/pocket-mha.safetensors --policy snapkv,snapkv+critical --base snapkv --budget 10%,20% --json replay.json"},
    {"kvbound recall traces/samples/pocket-mha.safetensors --json recall.json"},
    {"kvbound report replay.json recall.json -o report.html"},
};

CommandLine report_command_line() {
  CommandLine line("report FILE.json... -o PAGE.html: one offline page of figures", kReportDetails,
                   kReportExamples);
  line.add("out,o", "PAGE", "the page to write");
  line.add_flag("quiet", "no progress on standard error");
  return line;
}

// The command as a shell reads it.
std::string shell_command(const Arguments& arguments) {
  std::string command = "kvbound report";
  for (const std::string& argument : arguments) {
    const bool plain = argument.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                           "_-./=:,+@%") == std::string::npos;
    std::string quoted;
    for (const char c : argument) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    command += plain ? " " + argument : " '" + quoted + "'";
  }
  return command;
}

}  // namespace

int report_command(const Arguments& arguments) {
  CommandLine line = report_command_line();
  if (!line.parse(arguments)) return kPass;
  const std::vector<std::string> paths = line.positionals("FILE.json", 1, SIZE_MAX);
  const std::string target = line.required("out");
  OutputPaths outputs;
  for (const std::string& path : paths) outputs.add_input(path);
  outputs.add("out", target);
  traces::OutputFile page(target);
  std::vector<std::unique_ptr<const Document>> documents;
  size_t taken = 0;
  {
    Progress progress("reading", !line.has("quiet"));
    for (const std::string& path : paths) {
      documents.push_back(read_document(path, taken));
      progress.update(std::ssize(documents), std::ssize(paths));
    }
  }
  page.write(html_page(documents, shell_command(arguments)));
  page.prepare();
  std::cout << one_line(target) << "\n";
  flush_standard_output();
  page.commit();
  return kPass;
}

}  // namespace kvbound::sim
