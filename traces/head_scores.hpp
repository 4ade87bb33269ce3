// Reads HeadKV's importances of query heads. Format: README.md.
#pragma once

#include <memory>
#include <string>

#include <kvbound/reference/core/head_scores.hpp>

namespace kvbound::traces {

/// Throws TraceError, naming file, byte, field, what was found and what was expected, for a file that is not
/// of this format, for layers of different numbers of heads, for a score that is no finite number >= 0, or
/// below 1e-300 but not 0, or printed with more than 64 characters, and if all are 0; IoError.
std::shared_ptr<const HeadScores> read_head_scores(const std::string& path);

/// The same of a file whose text is known.
std::shared_ptr<const HeadScores> parse_head_scores(const std::string& path, std::string text);

}  // namespace kvbound::traces
