// What `check` can check, and the options of each operation.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "check_file.hpp"
#include "check_result.hpp"

namespace kvbound::sim {

/// An option of the command line, which may also stand in the file.
struct CheckOption {
  const char* name;  ///< on the command line; in the file _ stands for -
  const char* value;
  const char* meaning;
  const char* operations;

  bool is_of(std::string_view operation) const {
    return std::string_view(operations).find(operation) != std::string_view::npos;
  }
  std::string name_in_file() const;
};
std::span<const CheckOption> check_options();

class CheckOperation {
 public:
  using ReportProgress = std::function<void(int64_t, int64_t)>;
  using Run = CheckResult (*)(CheckFile&, const ReportProgress&);

  constexpr CheckOperation(std::string_view text, Run run) : name(text), run_(run) {}

  /// progress  called with what is done, and all
  /// throws    TraceError
  CheckResult result(CheckFile& file, const ReportProgress& progress) const;
  /// The options, and what a file may say of itself without any meaning for a check, by their names there.
  std::set<std::string> known_in_file() const;

  std::string_view name;

 private:
  Run run_;
};
std::span<const CheckOperation> check_operations();
/// Throws UsageError, with the known ones, if there is none of that name.
const CheckOperation& check_operation(const std::string& name);

}  // namespace kvbound::sim
