// How many columns text may take.
#pragma once

#include <unistd.h>
#include <cstdint>
#include <optional>

namespace kvbound::sim {

/// The width of help where no terminal has one.
inline constexpr int64_t kUsualWidth = 80;

/// The columns that the environment variable COLUMNS says, an integer from 1, which goes before those of the
/// terminal; at least 40, since narrower lines would break most words and options, and at most 1000. None if
/// neither says any: text then goes to a file or a pipe, where tables may be as wide as they are.
///
/// descriptor  open on what may be a terminal
std::optional<int64_t> terminal_width(int descriptor = STDOUT_FILENO);

}  // namespace kvbound::sim
