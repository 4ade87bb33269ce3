// How every subcommand reads its arguments and tells what it takes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <boost/program_options.hpp>

#include <kvbound/traces/trace.hpp>

namespace kvbound::sim {

/// A command line that makes no sense; ends in exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What the program's exit code says.
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

/// A subcommand's options. Numbers are taken as text and read by parse_integer and its like, because the
/// library would accept -1 for an unsigned and NaN for a real.
class CommandLine {
 public:
  /// synopsis: the part after "kvbound ". details: printed under the options by --help.
  CommandLine(std::string synopsis, std::string details);

  /// An option with a value, written VALUE in the help.
  void add(const char* name, const char* value, const char* meaning);
  void add_flag(const char* name, const char* meaning);

  /// Reads the arguments; false if --help was among them and has been printed. Throws UsageError.
  bool parse(const Arguments& arguments);

  bool has(const char* name) const { return values_.count(name) > 0; }
  std::optional<std::string> text(const char* name) const;
  /// The value of an option that must be there.
  std::string required(const char* name) const;
  /// An integer in least..most, or the default.
  int64_t integer(const char* name, int64_t least, int64_t most, int64_t otherwise) const;
  /// Its positional arguments, at least `least` and at most `most` of them; `what` names one.
  std::vector<std::string> positionals(const char* what, size_t least, size_t most) const;

 private:
  std::string synopsis_;
  std::string details_;
  boost::program_options::options_description options_;
  boost::program_options::variables_map values_;
};

/// The parts of a comma-separated list; none may be empty. Throws UsageError naming the option.
std::vector<std::string> split_list(std::string_view option, std::string_view text);

/// "--threads N", "--quiet": what every command that works long has.
void add_work_options(CommandLine& line);
/// And "--header-limit BYTES": what every command that works on traces has.
void add_common_options(CommandLine& line);
traces::Trace::Options header_options(const CommandLine& line);

/// "--layers 0,3-5" as ascending layers, each once; without the option all of a trace's. Throws UsageError.
std::vector<int64_t> chosen_layers(const CommandLine& line, int64_t layers);

/// The files that a command reads and writes, none of which may be another one.
class OutputPaths {
 public:
  void add_input(const std::string& path);
  /// Throws UsageError, naming the option, if the path is empty, or an input's or another output's.
  void add(const std::string& option, const std::string& path);

 private:
  std::map<std::filesystem::path, std::string> taken_;  // canonical path -> what it is
};

/// Text of any origin on one line: control characters, from a file name perhaps, are made visible.
std::string one_line(const std::string& text);

/// Throws IoError if what was printed could not be written. To be called before output files get their names.
void flush_standard_output();

/// Sets the number of OpenMP threads from --threads.
void apply_threads(const CommandLine& line);

}  // namespace kvbound::sim
