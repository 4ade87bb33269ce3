#include "file_format.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace kvbound::traces {
namespace {

using namespace std::string_view_literals;

constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kFormats{{
    {"PK\3\4"sv, "a ZIP archive (a PyTorch checkpoint?)"},
    {"\x80\2"sv, "a Python pickle"},
    {"\x80\3"sv, "a Python pickle"},
    {"\x80\4"sv, "a Python pickle"},
    {"\x80\5"sv, "a Python pickle"},
    {"GGUF"sv, "a GGUF file"},
    {"lmgg"sv, "a GGML file, the format before GGUF"},
    {"fmgg"sv, "a GGML file, the format before GGUF"},
    {"tjgg"sv, "a GGML file, the format before GGUF"},
    {"\x89HDF"sv, "an HDF5 file"},
    {"\x93NUMPY"sv, "a NumPy array"},
    {"\x1f\x8b"sv, "a gzip archive"},
    {"version "sv, "a Git LFS pointer, not the file that it stands for"},
    {"{"sv, "JSON"},
}};

}  // namespace

std::string apparent_format(std::string_view first) {
  // The header's length in eight bytes, of which the high ones are 0, then the header.
  if (first.size() > 8 && first[8] == '{' && first.substr(5, 3) == "\0\0\0"sv) return "a safetensors file";
  const auto* found =
      std::ranges::find_if(kFormats, [&](const auto& format) { return first.starts_with(format.first); });
  return found == kFormats.end() ? "" : std::string(found->second);
}

std::string apparent_format(const InputFile& file) {
  std::string first(static_cast<size_t>(std::min<int64_t>(16, file.size())), '\0');
  file.read(0, first, "");
  return apparent_format(first);
}

}  // namespace kvbound::traces
