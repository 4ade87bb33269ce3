// Texts of the command line.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/bench/bench.hpp>
#include <kvbound/sim/cli/run_options.hpp>
#include <kvbound/sim/diff/floor/random_shape.hpp>
#include <kvbound/sim/figures/chosen_columns.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/sim/options/policy.hpp>
#include <kvbound/sim/replay/replay_cubes.hpp>
#include <kvbound/sim/roofline/gpu.hpp>
#include <kvbound/traces/layer_list.hpp>

#include "reader.hpp"

namespace kvbound::fuzz {
namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// What some reader takes is read back from the text that is printed of it.
bool is_policy(std::string_view text) try {
  const Policy policy = sim::parse_policy(text);
  require(sim::parse_policy(sim::canonical(policy)) == policy, "a policy is that of its canonical text");
  return true;
} catch (const InvalidPolicy&) {
  return false;
}

bool is_budget(std::string_view text) try {
  const sim::Budget budget = sim::parse_budget(text);
  require(sim::parse_budget(sim::to_string(budget)) == budget, "a budget is that of its text");
  if (!budget.given) budget.entries(4096);
  return true;
} catch (const InvalidPolicy&) {
  return false;
}

bool is_shape(std::string_view text) try {
  const std::string canonical = sim::canonical(sim::parse_shape(text));
  require(sim::canonical(sim::parse_shape(canonical)) == canonical, "a shape is that of its text");
  return true;
} catch (const sim::UsageError&) {
  return false;
}

template <class Parse>
bool is_usable(const Parse& parse) try {
  parse();
  return true;
} catch (const sim::UsageError&) {
  return false;
}

// Says nothing on standard output, as --help would.
class Silence {
 public:
  Silence() : buffer_(std::cout.rdbuf(nullptr)) {}
  ~Silence() { std::cout.rdbuf(buffer_); }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  std::streambuf* buffer_;
};

}  // namespace

void read_option_text(Folder&, Parts parts) {
  const std::string_view text = parts[0];
  int taken = is_policy(text) + is_budget(text) + is_shape(text);
  taken += is_usable([&] { sim::parse_bench_shape(text); }) + is_usable([&] { sim::Gpu::named(text); });
  taken += traces::parse_layer_list(text, 1'000'000).has_value();
  if (const auto number = sim::parse_real(text)) {
    ++taken;
    require(sim::parse_real(sim::shortest(*number)) == number, "a number is that of its text");
  }
  if (taken == 0) throw sim::UsageError("nobody takes it");
}

void read_command_line(Folder&, Parts parts) {
  const Silence silence;
  sim::Arguments arguments;
  // Boost takes time by the square of their number: 7 s for 100,000, which no system allows many more than.
  constexpr size_t kMostArguments = 2000;
  for (std::string_view rest = parts[0]; !rest.empty() && arguments.size() < kMostArguments;) {
    const std::string_view argument = rest.substr(0, rest.find('\n'));
    arguments.emplace_back(argument);
    rest.remove_prefix(std::min(rest.size(), argument.size() + 1));
  }
  sim::CommandLine line("fuzz TRACE [options]", "");
  for (const char* option : {"policy", "budget", "base", "layers", "steps"}) line.add(option, "X", "");
  line.add_flag("verify", "");
  sim::add_columns_option(line, sim::replay_columns());
  sim::add_common_options(line);
  if (!line.parse(arguments)) return;
  line.positionals("TRACE", 1, 2);
  sim::chosen_layers(line, 8);
  sim::chosen_columns(line, sim::replay_columns());
  sim::header_options(line);
  line.integer("steps", 1, 1000, 1);
  sim::parse_runs(line, {"reference"});
}

}  // namespace kvbound::fuzz
