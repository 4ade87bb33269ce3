// What a roofline model knows of a GPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvbound::sim {

/// A rate, size or latency with where it comes from.
struct GpuConstant {
  std::string name;
  double value = 0;
  std::string unit;
  std::string source;
};

/// A time that a GPU took for an operation, beside what was predicted then.
struct GpuMeasurement {
  std::string operation;  ///< with its shape
  double seconds = 0;
  double predicted = 0;
  std::string from;  ///< date, driver
};

/// The constants of a file such as sim/roofline/h100.json. Rates "per clock" are those of one multiprocessor.
class Gpu {
 public:
  /// name: one of gpu_names(). Throws UsageError listing them.
  static Gpu named(std::string_view name);

  const std::string& name() const { return name_; }
  double of(std::string_view constant) const;
  const std::vector<GpuConstant>& constants() const { return constants_; }
  const std::vector<GpuMeasurement>& measured() const { return measured_; }

 private:
  std::string name_;
  std::vector<GpuConstant> constants_;
  std::vector<GpuMeasurement> measured_;
};

/// The GPUs that there are models of: "h100", "h200".
std::vector<std::string> gpu_names();

}  // namespace kvbound::sim
