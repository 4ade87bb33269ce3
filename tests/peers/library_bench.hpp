// A library's kernels on the arguments of `kvbound bench`: judged, then timed as bench times its own.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvbound/sim/bench/bench.hpp>

#include "judged_call.hpp"
#include "kernel_library.hpp"

namespace kvbound::sim {

/// The operations of `kvbound bench` that the library has.
std::vector<std::string_view> operations_of(const KernelLibrary& library);

/// Seconds of a call, one per round; nullopt if the results of a call before were wrong.
///
/// file    for that call's inputs and results, for `kvbound check`
/// throws  DeviceError, IoError
std::optional<std::vector<double>> judged_seconds(const KernelLibrary& library, std::string_view operation,
                                                  const BenchOptions& options, const CallFile& file);

}  // namespace kvbound::sim
