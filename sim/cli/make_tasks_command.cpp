#include "make_tasks_command.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <kvbound/sim/evaluate/make_tasks.hpp>
#include <kvbound/sim/options/number.hpp>
#include <kvbound/traces/output_file.hpp>

namespace kvbound::sim {
namespace {

constexpr int64_t kMostTasks = 100000, kMostPromptBytes = int64_t{1} << 22;
constexpr int64_t kMostNeedles = 64, kMostDepths = 1000;

bool makes_needles(const CommandLine& line) {
  const std::string kind = line.required("make");
  if (kind == "needle" || kind == "continuation") return kind == "needle";
  throw UsageError(fmt::format("--make '{}': expected needle or continuation", kind));
}

std::vector<int64_t> prompt_lengths(const CommandLine& line, int64_t least) {
  std::vector<int64_t> lengths;
  for (const std::string& item : split_list("lengths", line.text("lengths").value_or("1024"))) {
    const auto length = parse_integer(item);
    if (!length || *length < least || *length > kMostPromptBytes) {
      throw UsageError(
          fmt::format("--lengths '{}': expected integers from {} to {}", item, least, kMostPromptBytes));
    }
    if (std::ranges::find(lengths, *length) != lengths.end()) {
      throw UsageError(fmt::format("--lengths: {} is there twice", *length));
    }
    lengths.push_back(*length);
  }
  return lengths;
}

/// `count` depths from 0 to 1, evenly spaced; the middle if it is one.
std::vector<double> even_depths(int64_t count) {
  if (count == 1) return {0.5};
  std::vector<double> depths;
  for (int64_t i = 0; i < count; ++i) {
    depths.push_back(static_cast<double>(i) / static_cast<double>(count - 1));
  }
  return depths;
}

std::vector<double> needle_depths(const CommandLine& line) {
  const std::string said = line.text("depths").value_or("5");
  if (said.find('%') == std::string::npos) return even_depths(line.integer("depths", 1, kMostDepths, 5));
  std::vector<double> depths;
  for (const std::string& item : split_list("depths", said)) {
    const auto percent = item.ends_with('%') ? parse_real(item.substr(0, item.size() - 1)) : std::nullopt;
    if (!percent || !(0 <= *percent && *percent <= 100)) {
      throw UsageError(fmt::format("--depths '{}': expected a count, or percentages from 0% to 100%", item));
    }
    depths.push_back(*percent / 100 + 0.0);  // -0% is 0
  }
  return depths;
}

TaskOptions task_options(const CommandLine& line, bool is_needle) {
  TaskOptions options;
  if (is_needle) {
    refuse_options(line, {"continuation"}, "does not belong to --make needle");
  } else {
    refuse_options(line, {"depths", "answer", "needles", "context-only"},
                   "does not belong to --make continuation");
  }
  options.tasks = line.integer("tasks", 1, kMostTasks, options.tasks);
  options.needles = line.integer("needles", 1, kMostNeedles, options.needles);
  options.answer = line.integer("answer", 2, 12, options.answer);
  options.is_context_only = line.has("context-only");
  options.continuation = line.integer("continuation", 2, kMostPromptBytes, options.continuation);
  options.seed = static_cast<uint64_t>(line.integer("seed", 0, INT64_MAX, 1));
  options.depths = needle_depths(line);
  options.lengths = prompt_lengths(line, is_needle ? shortest_needle_prompt(options) : 1);
  return options;
}

}  // namespace

const char* const kMakeTasksExplanation =
    "--make writes tasks for models whose tokens are bytes, from a text in UTF-8. The same options give the same\n"
    "tasks on every platform. A needle is a word of the text with a number, ' word:1234567 ', put into the prose;\n"
    "the prompt ends in one of the words, and the answer is its number.\n"
    "  kvbound evaluate --make needle --text prose.txt --lengths 1024,1536 --depths 10%,50%,90% needles.jsonl\n"
    "  kvbound evaluate --make continuation --text prose.txt --tasks 64 continuations.jsonl\n";

void add_make_options(CommandLine& line) {
  line.add("make", "KIND", "write tasks instead: needle or continuation, for models whose tokens are bytes");
  line.add("text", "FILE", "the prose of which --make makes tasks");
  line.add("lengths", "N[,N]", "bytes of a prompt (default: 1024)");
  line.add("tasks", "N", "tasks of each length (default: 20)");
  line.add("depths", "D[,D]",
           "where the needle is, such as 0%,50%; or how many depths, evenly spaced (default: 5)");
  line.add("needles", "N", "needles in a prompt, one of which is asked for (default: 4)");
  line.add("answer", "N", "digits of a needle's number, 2 to 12 (default: 7)");
  line.add_flag("context-only", "compress before the question is read");
  line.add("continuation", "N", "bytes that follow a prompt (default: 64)");
  line.add("seed", "N", "of random draws: of the bootstrap, or with --make of tasks (default: 1)");
}

void refuse_make_options(const CommandLine& line) {
  refuse_options(line,
                 {"text", "lengths", "tasks", "depths", "needles", "answer", "context-only", "continuation"},
                 "belongs to --make");
}

int make_tasks(const CommandLine& line) {
  const bool is_needle = makes_needles(line);
  const std::string text = line.required("text");
  const std::string out = line.positionals("TASKS", 1, 1).front();
  const TaskOptions options = task_options(line, is_needle);
  OutputPaths outputs;
  outputs.add_input(text);
  outputs.add("make", out);
  const Prose prose(text);
  traces::OutputFile file(out);
  for (const Task& task : is_needle ? needle_tasks(prose, options) : continuation_tasks(prose, options)) {
    file.write(text_line(task));
  }
  file.commit();
  return kPass;
}

}  // namespace kvbound::sim
