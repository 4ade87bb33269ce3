#include "kernel_build.hpp"

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "embedded.hpp"

namespace kvbound::sim {
namespace {

std::vector<std::string> lines_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// The numbers of one row of cuda/instructions.txt by the table's headings.
using Row = std::map<std::string, double, std::less<>>;

// The means over a kernel's rows of what stands beside an instruction that is counted.
void add_instructions(KernelBuild& build, const std::vector<Row>& rows) {
  double all = 0, integers = 0, doubles = 0, used = 0;
  for (const Row& row : rows) {
    double counted = 0;
    for (const char* const name :
         {"mma", "special", "global", "shared", "async", "shuffle", "barrier", "atomic"})
      counted += row.at(name);
    if (counted == 0) continue;
    all += row.at("all") / counted;
    integers += (row.at("integer") + row.at("convert")) / counted;
    doubles += row.at("fp64") / counted;
    ++used;
  }
  if (used == 0) return;
  build.instructions = all / used;
  build.integers = integers / used;
  build.doubles = doubles / used;
}

// Lines "threads  sm_80/sm_90a  occupancy  kernel" below the table's headings.
void read_resources(std::map<std::string, KernelBuild, std::less<>>& builds) {
  constexpr size_t kColumnsBeforeName = 3;
  for (const std::string& line : lines_of(kResourcesFile)) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() <= kColumnsBeforeName || words[1].find('/') == std::string::npos) continue;
    const size_t name = line.find(words[kColumnsBeforeName], line.find(words[2]) + words[2].size());
    if (words[1] == "registers") continue;
    builds[line.substr(name)].registers = std::stoi(words[1].substr(words[1].find('/') + 1));
  }
}

// A kernel's name on a line of its own, then its rows: of the main loops, of the nests that they are in, and
// of the whole kernel. What a kernel executes lies between loops and nests; the whole kernel stands for it
// where there are no loops.
void read_instructions(std::map<std::string, KernelBuild, std::less<>>& builds) {
  std::vector<std::string> headings;
  std::map<std::string, std::vector<Row>> rows;
  std::string kernel;
  for (const std::string& line : lines_of(kInstructionsFile)) {
    const std::vector<std::string> words = words_of(line);
    if (!words.empty() && words.front() == "count") headings = words;
    if (words.empty() || headings.empty()) continue;
    if (words.size() != headings.size() + 1) {
      kernel = line;
    } else if (words.front() != "kernel" || rows[kernel].empty()) {
      Row& row = rows[kernel].emplace_back();
      for (size_t i = 0; i < headings.size(); ++i) row[headings[i]] = std::stod(words[i + 1]);
    }
  }
  for (const auto& [name, of_kernel] : rows) {
    if (const auto known = builds.find(name); known != builds.end())
      add_instructions(known->second, of_kernel);
  }
}

const std::map<std::string, KernelBuild, std::less<>>& builds_by_name() {
  static const auto builds = [] {
    std::map<std::string, KernelBuild, std::less<>> all;
    read_resources(all);
    read_instructions(all);
    return all;
  }();
  return builds;
}

}  // namespace

std::optional<KernelBuild> kernel_build(std::string_view kernel) {
  const auto found = builds_by_name().find(kernel);
  return found == builds_by_name().end() ? std::nullopt : std::optional(found->second);
}

}  // namespace kvbound::sim
