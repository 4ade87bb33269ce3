// Of a program without kernels that count what they do.
#include <kvbound/reference/core/error.hpp>

#include "device_counting.hpp"

namespace kvbound::sim {
namespace {

[[noreturn]] void refuse() {
  throw NoDevice(
      "nothing can be predicted: this program was built without kernels that count what they do; configure it with "
      "-D KVBOUND_COUNTED=ON");
}

}  // namespace

ActingAs::ActingAs(const Gpu&) { refuse(); }
ActingAs::~ActingAs() = default;

CountedWork counted_work(const std::function<void()>&) { refuse(); }

}  // namespace kvbound::sim
