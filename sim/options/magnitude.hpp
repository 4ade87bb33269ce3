// Durations, memory and rates as text, with three significant digits and a suitable unit.
#pragma once

#include <string>
#include <string_view>

namespace kvbound::sim {

/// "43.9 ms", "1.29 s"
std::string duration_text(double seconds);

/// "2.88 KiB", "320 MiB"
std::string memory_text(double bytes);

/// "26.7 GFLOP/s", "618 TFLOP/s", "4.21 TB/s", "765 million exponentials/s", "0.0208 layers/s"
std::string rate_text(double per_second, std::string_view unit);

}  // namespace kvbound::sim
