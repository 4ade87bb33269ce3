#include "command_line.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <filesystem>
#include <iostream>
#include <set>
#include <streambuf>

#include <fmt/format.h>
#include <omp.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/traces/layer_list.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/output_file.hpp>

#include "help_text.hpp"
#include "layer_choice.hpp"
#include "number.hpp"
#include "quoted_parts.hpp"
#include "suggestion.hpp"
#include "terminal_width.hpp"

namespace kvbound::sim {
namespace {

namespace po = boost::program_options;

constexpr const char* kPositionals = "arguments";

int64_t help_width() { return terminal_width().value_or(kUsualWidth); }

}  // namespace

CommandLine::CommandLine(std::string synopsis, std::string details, std::vector<Example> examples)
    : synopsis_(std::move(synopsis)),
      details_(std::move(details)),
      examples_(std::move(examples)),
      options_("Options", static_cast<unsigned>(help_width())) {
  options_.add_options()("help,h", "print this help and exit");
}

void CommandLine::add(const char* name, const char* value, const char* meaning) {
  options_.add_options()(name, po::value<std::string>()->value_name(value), meaning);
}

void CommandLine::add_flag(const char* name, const char* meaning) { options_.add_options()(name, meaning); }

bool CommandLine::parse(const Arguments& arguments) {
  po::options_description all;
  all.add(options_).add_options()(kPositionals, po::value<std::vector<std::string>>());
  po::positional_options_description positional;
  positional.add(kPositionals, -1);
  using po::command_line_style::style_t;
  constexpr int kStyle = style_t::allow_long | style_t::long_allow_adjacent | style_t::long_allow_next |
                         style_t::allow_short | style_t::short_allow_next | style_t::allow_dash_for_short;
  try {
    const auto parsed =
        po::command_line_parser(arguments).options(all).positional(positional).style(kStyle).run();
    for (const po::option& option : parsed.options) {
      if (option.string_key == kPositionals && option.position_key < 0)
        throw po::unknown_option("--arguments");
    }
    po::store(parsed, values_);
  } catch (const po::unknown_option& error) {
    refuse_unknown(error.get_option_name());
  } catch (const po::error& error) {
    throw UsageError(traces::printable(error.what(), traces::kMostQuoted));
  }
  if (!has("help")) return true;
  print_help();
  return false;
}

void CommandLine::print_help() const {
  const int64_t width = help_width();
  std::cout << filled("kvbound " + synopsis_, width) << "\n" << options_;
  if (!details_.empty()) std::cout << "\n" << filled(details_, width);
  std::optional<std::string_view> needs;
  for (const Example& example : examples_) {
    if (needs != example.needs)
      std::cout << (example.needs.empty() ? "\nExamples:\n"
                                          : fmt::format("\nExamples that need {}:\n", example.needs));
    needs = example.needs;
    std::cout << command_text(example.command, width);
  }
}

void CommandLine::refuse_unknown(const std::string& option) const {
  Names known;
  for (const auto& one : options_.options()) known.push_back(one->long_name());
  const std::string meant =
      nearest(option.substr(std::min(option.find_first_not_of('-'), option.size())), known);
  throw UsageError(fmt::format("unrecognised option {}; {}kvbound {} --help has all", traces::quoted(option),
                               meant.empty() ? "" : fmt::format("did you mean --{}? ", meant),
                               synopsis_.substr(0, synopsis_.find(' '))));
}

std::optional<std::string> CommandLine::text(const char* name) const {
  return has(name) ? std::optional(values_[name].as<std::string>()) : std::nullopt;
}

std::string CommandLine::required(const char* name) const {
  const auto value = text(name);
  if (!value) throw UsageError(fmt::format("--{} is missing", name));
  if (value->empty()) throw UsageError(fmt::format("--{}: an empty text", name));
  return *value;
}

int64_t CommandLine::integer(const char* name, int64_t least, int64_t most, int64_t otherwise) const {
  const auto value = text(name);
  if (!value) return otherwise;
  const auto number = parse_integer(*value);
  if (!number || *number < least || *number > most) {
    throw UsageError(
        fmt::format("--{} {}: expected an integer from {} to {}", name, traces::quoted(*value), least, most));
  }
  return *number;
}

std::vector<std::string> CommandLine::positionals(const char* what, size_t least, size_t most) const {
  auto values =
      has(kPositionals) ? values_[kPositionals].as<std::vector<std::string>>() : std::vector<std::string>();
  if (values.size() < least) throw UsageError(fmt::format("{} is missing", what));
  if (values.size() > most)
    throw UsageError(fmt::format("unexpected argument {}", traces::quoted(values[most])));
  for (const std::string& value : values) {
    if (value.empty()) throw UsageError(fmt::format("an empty argument; expected {}", what));
  }
  return values;
}

std::vector<std::string> split_list(std::string_view option, std::string_view text) {
  std::vector<std::string> parts;
  for (const std::string_view part : quoted_parts(text, ',')) {
    if (part.empty()) throw UsageError(fmt::format("--{}: an empty item in the list", option));
    parts.emplace_back(part);
  }
  return parts;
}

void refuse_options(const CommandLine& line, std::initializer_list<const char*> names, std::string_view why) {
  for (const char* name : names) {
    if (line.has(name)) throw UsageError(fmt::format("--{} {}", name, why));
  }
}

void add_work_options(CommandLine& line) {
  line.add("threads", "N", "number of threads; results do not depend on it (default: all processors)");
  line.add_flag("quiet", "no progress and no warnings");
}

void add_common_options(CommandLine& line) {
  add_work_options(line);
  line.add("header-limit", "BYTES", "largest trace header accepted (default: 16777216)");
}

traces::Trace::Options header_options(const CommandLine& line) {
  traces::Trace::Options options;
  options.header_limit = line.integer("header-limit", 1, INT64_MAX, options.header_limit);
  return options;
}

void add_heads_option(CommandLine& line) {
  line.add(
      "heads", "kv|query",
      "which heads have a cache: KV heads, which their query heads share (default), or every query head, as "
      "in OBCache's measurements, which takes as many times the bytes as query heads share a KV head");
}

traces::CacheHeads cache_heads(const CommandLine& line) {
  const auto text = line.text("heads");
  if (!text) return traces::CacheHeads::kv;
  const auto heads = traces::cache_heads(*text);
  if (!heads) throw UsageError(fmt::format("--heads {}: expected kv or query", traces::quoted(*text)));
  return *heads;
}

traces::Trace::Options trace_options(const CommandLine& line) {
  traces::Trace::Options options = header_options(line);
  options.heads = cache_heads(line);
  return options;
}

std::vector<int64_t> chosen_layers(const CommandLine& line, int64_t layers) {
  std::set<int64_t> chosen;
  const std::string list = line.text("layers").value_or(fmt::format("0-{}", layers - 1));
  for (const std::string& item : split_list("layers", list)) {
    const auto range = traces::parse_layer_range(item, layers);
    if (!range) {
      throw UsageError(fmt::format("--layers {}: expected layers or ranges such as 0,3-5 within 0..{}",
                                   traces::quoted(item), layers - 1));
    }
    for (int64_t l = range->first; l <= range->second; ++l) chosen.insert(l);
  }
  return {chosen.begin(), chosen.end()};
}

std::vector<int64_t> chosen_layers(const CommandLine& line, const traces::TraceInfo& info) {
  if (!line.has("layers")) return chosen_layers(line, info.layers);
  std::set<int64_t> chosen;
  for (const std::string& item : split_list("layers", *line.text("layers"))) {
    const auto layers = layers_named(item, info);
    if (!layers) {
      throw UsageError(fmt::format("--layers {}: expected {}, which {} has", traces::quoted(item),
                                   expected_layers(info), info.path));
    }
    chosen.insert(layers->begin(), layers->end());
  }
  return {chosen.begin(), chosen.end()};
}

namespace {

// Takes whatever is printed.
class Nowhere : public std::streambuf {
  int_type overflow(int_type character) override { return traits_type::not_eof(character); }
  std::streamsize xsputn(const char*, std::streamsize count) override { return count; }
};

std::filesystem::path canonical_path(const std::string& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path);
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(whole, error);
  return error ? whole.lexically_normal() : canonical;
}

}  // namespace

void OutputPaths::add_input(const std::string& path) { taken_.emplace(canonical_path(path), "an input"); }

void OutputPaths::add(const std::string& option, const std::string& path) {
  if (path.empty()) throw UsageError(fmt::format("--{}: an empty file name", option));
  const bool to_standard_output = traces::names_standard_output(path);
  const bool has_all = option == "json" || option == "csv";  // that tables have
  static Nowhere nowhere;
  if (to_standard_output)
    std::cout.rdbuf(has_all ? &nowhere : std::cerr.rdbuf());  // so that no table comes between
  const std::string file = to_standard_output ? "/dev/stdout" : path;
  std::error_code ignored;
  if (std::filesystem::is_character_file(file, ignored)) return;  // /dev/null may well take two outputs
  const auto [place, is_new] = taken_.emplace(canonical_path(file), "what --" + option + " writes");
  if (!is_new) throw UsageError(fmt::format("--{}: {} is {}", option, traces::quoted(path), place->second));
}

namespace {

struct Character {
  size_t bytes;
  char32_t code;
};

// The first character of a text in UTF-8; none if it is ill-formed.
std::optional<Character> first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return Character{1, lead};
  if (lead < 0xc2 || lead > 0xf4) return std::nullopt;
  const size_t bytes = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < bytes) return std::nullopt;
  char32_t code = lead & (0x7f >> bytes);
  for (const char c : text.substr(1, bytes - 1)) {
    if ((c & 0xc0) != 0x80) return std::nullopt;
    code = code << 6 | (c & 0x3f);
  }
  const bool too_long = bytes == 3 ? code < 0x800 : bytes == 4 && code < 0x10000;
  const bool is_character = code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return too_long || !is_character ? std::nullopt : std::optional(Character{bytes, code});
}

bool is_plain(char32_t code) {
  const auto within = [code](char32_t first, char32_t last) { return first <= code && code <= last; };
  return !within(0, 0x1f) && !within(0x7f, 0x9f) && !within(0x2028, 0x202e) && !within(0x2066, 0x2069) &&
         !within(0x200e, 0x200f) && code != 0x061c;
}

}  // namespace

std::string one_line(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string line;
  while (!text.empty()) {
    const std::optional<Character> character = first_character(text);
    const std::string_view bytes = text.substr(0, character ? character->bytes : 1);
    text.remove_prefix(bytes.size());
    if (character && is_plain(character->code)) {
      line += bytes;
      continue;
    }
    for (const char c : bytes) {
      const auto byte = static_cast<unsigned char>(c);
      (line += "\\x") += {kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return line;
}

void flush_standard_output() {
  std::cout.flush();
  if (!std::cout) throw IoError("cannot write to standard output");
}

namespace {

// OpenBLAS maps so much for each thread, and tries it for ever where the limit of
// virtual memory leaves no room.
void require_room_for_products(int threads) {
  constexpr size_t kBytesOfThread = size_t{128} << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const size_t bytes = kBytesOfThread * static_cast<size_t>(threads);
  void* const room = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room != MAP_FAILED) {
    munmap(room, bytes);
    return;
  }
  throw IoError(fmt::format(
      "the limit of virtual memory (ulimit -v), {} MiB, leaves no room for the products of {} threads, {} MiB",
      limit.rlim_cur >> 20, threads, bytes >> 20));
}

}  // namespace

void apply_threads(const CommandLine& line) {
  if (line.has("threads")) omp_set_num_threads(static_cast<int>(line.integer("threads", 1, kMostThreads, 1)));
  require_room_for_products(omp_get_max_threads());
}

}  // namespace kvbound::sim
