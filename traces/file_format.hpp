// What a file seems to be, for messages about files of another format than expected.
#pragma once

#include <string>
#include <string_view>

#include "input_file.hpp"

namespace kvbound::traces {

/// The format whose files begin so, such as "a Python pickle"; empty if it is not recognised.
///
/// first  at least the file's first 16 bytes, or all of them
std::string apparent_format(std::string_view first);
/// The same of a file. Throws as InputFile::read.
std::string apparent_format(const InputFile& file);

}  // namespace kvbound::traces
