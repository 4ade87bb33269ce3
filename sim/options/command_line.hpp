// How every subcommand reads its arguments and prints its help.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <boost/program_options.hpp>

#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// An invalid command line; the program exits with code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The program's exit codes.
enum ExitCode : int {
  kPass = 0,
  kMismatch = 1,
  kUsage = 2,
  kInvalidInput = 3,
  kWorld = 4,
  kInconclusive = 5,
  kInternal = 70,
};

using Arguments = std::vector<std::string>;

/// A command that --help shows, which runs in a fresh clone as printed: it names files of the clone, or that
/// the examples before it wrote.
struct Example {
  std::string_view command;
  std::string_view needs = {};  ///< what a machine may lack, such as "a GPU"; the heading above it says so
};

/// A subcommand's options. Numbers are read as text and parsed by parse_integer and the like, because
/// boost::program_options would accept -1 for an unsigned number and NaN for a real one.
class CommandLine {
 public:
  /// synopsis: the part of the usage line after "kvbound ". details: printed below the options
  /// by --help (help_text.hpp).
  CommandLine(std::string synopsis, std::string details, std::vector<Example> examples = {});

  /// Adds an option with a value, which the help calls `value`.
  void add(const char* name, const char* value, const char* meaning);
  void add_flag(const char* name, const char* meaning);

  /// Reads the arguments; false if --help was among them and has been printed. Throws UsageError.
  bool parse(const Arguments& arguments);

  bool has(const char* name) const { return values_.count(name) > 0; }
  std::optional<std::string> text(const char* name) const;
  /// The value of a mandatory option. Throws UsageError.
  std::string required(const char* name) const;
  /// An integer in least..most, or `otherwise` if the option is not given. Throws UsageError.
  int64_t integer(const char* name, int64_t least, int64_t most, int64_t otherwise) const;
  /// The positional arguments, at least `least` and at most `most`; messages call one of them `what`. Throws
  /// UsageError.
  std::vector<std::string> positionals(const char* what, size_t least, size_t most) const;

 private:
  void print_help() const;
  [[noreturn]] void refuse_unknown(const std::string& option) const;

  std::string synopsis_;
  std::string details_;
  std::vector<Example> examples_;
  boost::program_options::options_description options_;
  boost::program_options::variables_map values_;
};

/// The parts of a list separated by commas outside double quotes; none may be empty. Throws
/// UsageError naming the option.
std::vector<std::string> split_list(std::string_view option, std::string_view text);

/// Throws UsageError if one of these options is given: "--NAME WHY".
void refuse_options(const CommandLine& line, std::initializer_list<const char*> names, std::string_view why);

/// Adds "--threads N" and "--quiet", the options of every command that runs for long.
void add_work_options(CommandLine& line);
/// Adds those and "--header-limit BYTES", the options of every command that works on traces.
void add_common_options(CommandLine& line);
traces::Trace::Options header_options(const CommandLine& line);

/// Adds "--heads kv|query".
void add_heads_option(CommandLine& line);
/// What it says; kv if it is not given. Throws UsageError.
traces::CacheHeads cache_heads(const CommandLine& line);
/// header_options of a command that has --heads, too.
traces::Trace::Options trace_options(const CommandLine& line);

/// "--layers 0,3-5" of a model of so many layers, ascending without repetition; all if not
/// given. Throws UsageError.
std::vector<int64_t> chosen_layers(const CommandLine& line, int64_t layers);
/// The same of a trace, by the model's own numbers (layer_choice.hpp). Returns the
/// layers' numbers in the trace.
std::vector<int64_t> chosen_layers(const CommandLine& line, const traces::TraceInfo& info);

/// The files that a command reads and writes, which must all be different.
class OutputPaths {
 public:
  void add_input(const std::string& path);
  /// If the path names standard output, what is printed there from now on goes to standard error, or nowhere
  /// if the option is json or csv, whose files have all figures. Throws UsageError, naming
  /// the option, if the path is empty, or is an input or another output.
  void add(const std::string& option, const std::string& path);

 private:
  std::map<std::filesystem::path, std::string> taken_;  // canonical path -> its role, for messages
};

/// Any text on one line of a terminal, for example names of files: bytes of control characters (C0, DEL, C1),
/// of what separates lines or changes the direction of text (U+061C, U+200E-200F, U+2028-202E, U+2066-2069),
/// and those that are no UTF-8 are shown as \xNN.
std::string one_line(std::string_view text);

/// Throws IoError if standard output could not be written. Call it before output files get their names.
void flush_standard_output();

inline constexpr int64_t kMostThreads = 256;

/// Sets the number of OpenMP threads from --threads, at most kMostThreads. Throws IoError if the limit of
/// virtual memory is too low for so many.
void apply_threads(const CommandLine& line);

}  // namespace kvbound::sim
