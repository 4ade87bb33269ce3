// Replaces device_counting.cpp in a program without kernels that count what they do.
#include <stdexcept>

#include <kvbound/reference/core/error.hpp>

#include "device_counting.hpp"

namespace kvbound::sim {

ActingAs::ActingAs(const Gpu&) {
  throw NoDevice(
      "nothing can be predicted: this program was built without kernels that count what they do; configure it with "
      "-D KVBOUND_COUNTED=ON");
}
ActingAs::~ActingAs() = default;

CountedWork counted_work(const std::function<void()>&) { throw std::logic_error("counted without ActingAs"); }

}  // namespace kvbound::sim
