// Tasks made from a text, for models whose tokens are bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "prose.hpp"
#include "tasks.hpp"

namespace kvbound::sim {

/// What needle_tasks and continuation_tasks make. The same options and text give the same tasks on every platform.
struct TaskOptions {
  std::vector<int64_t> lengths;  // of prompts, in bytes
  int64_t tasks = 20;            // of each length
  std::vector<double> depths;    // of the needle that is asked for; the i-th task has the (i mod depths)-th
  int64_t needles = 4;           // in each prompt, in 1..64
  int64_t answer = 7;            // digits of a needle's number, in 2..12
  bool is_context_only = false;  // the cache is compressed before the question
  int64_t continuation = 64;     // bytes that follow the prompt, at least 2
  uint64_t seed = 1;
};

/// The least length of a prompt with these needles: a byte of prose, the longest words, and the question.
int64_t shortest_needle_prompt(const TaskOptions& options);

/// Prompts with needles, one of which is asked for:
///
///     PROSE " tamed:5979190 " PROSE " eyed:7483378 " PROSE "\ntamed:"  ->  "5979190"
///
/// A needle is a word of the text, a colon and a number between two spaces. The one that is asked for is put before the
/// byte floor(depth · bytes of prose), moved to the beginning of a character; the others anywhere. No word is the end of
/// another or stands before a colon in the prose, and all numbers of a prompt are different. Passages of one length are
/// apart, but for a word at their ends, if the text is long enough.
///
/// returns  tasks of the kind "needle-LENGTH" ("context-only-LENGTH" with is_context_only, otherwise the same), each
///          prompt of exactly that length; ids are KIND-1, KIND-2, ...
/// throws   TraceError if the text is shorter than a prompt or has too few words; InvalidPolicy if a length is less
///          than shortest_needle_prompt
std::vector<Task> needle_tasks(const Prose& prose, const TaskOptions& options);

/// Passages of the text, cut into a prompt and what follows it. The kind is "continuation-LENGTH".
///
/// throws  TraceError if the text is shorter than a prompt with its continuation
std::vector<Task> continuation_tasks(const Prose& prose, const TaskOptions& options);

}  // namespace kvbound::sim
