#include "counting.hpp"

#include <cxxabi.h>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include <kvbound/cuda/emulation/memory.hpp>
#include <kvbound/cuda/support/counters.hpp>

#include "launch_counter.hpp"

namespace kvbound::cuda::counting {
namespace {

struct Current {
  Sampling sampling;
  std::vector<LaunchCounts> launches;
};
std::unique_ptr<Current> current;

std::unique_ptr<emulation::LaunchObserver> count_launch(const emulation::Grid& grid) {
  return std::make_unique<LaunchCounter>(grid, current->sampling.most_instructions, current->launches);
}

void remove_all(std::string& text, std::string_view part) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at))
    text.erase(at, part.size());
}

}  // namespace

Counting::Counting(const Sampling& sampling) {
  if (current) throw std::logic_error("launches are already being counted");
  current = std::make_unique<Current>(Current{sampling, {}});
  const bool samples = sampling.most_instructions < std::numeric_limits<double>::infinity();
  emulation::fill_new_buffers_with(samples ? std::byte{0} : emulation::kNan);
  counted::set_launches_whole(!samples);
  emulation::watch_launches(&count_launch);
}

Counting::~Counting() {
  emulation::watch_launches(nullptr);
  emulation::fill_new_buffers_with(emulation::kNan);
  counted::set_launches_whole(true);
  current.reset();
}

std::vector<LaunchCounts> Counting::launches() const { return current->launches; }

std::string kernel_name(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  std::string name = status == 0 ? demangled.get() : mangled;
  name.erase(0, name.find('&') + 1);  // "...Launch<&(void a::b_kernel<c>(int))>"
  for (const std::string_view part : {"(anonymous namespace)::", "kvbound::", "cuda::", "counted::", "(void ",
                                      "(bool)", "(int)", "(long)", "(unsigned int)", "(long long)"})
    remove_all(name, part);
  int depth = 0;
  const auto parameters = std::ranges::find_if(name, [&depth](char c) {
    depth += c == '<' ? 1 : c == '>' ? -1 : 0;
    return depth < 0 || (depth == 0 && c == '(');
  });
  name.erase(parameters, name.end());
  return name;
}

}  // namespace kvbound::cuda::counting
