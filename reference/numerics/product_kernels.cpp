#include "product_kernels.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace kvbound::reference {
namespace {

struct Core {
  std::string_view name;
  KernelLevel level;
};

constexpr Core kCores[] = {
    {"Prescott", KernelLevel::sse},
    {"Core2", KernelLevel::sse},
    {"Penryn", KernelLevel::sse},
    {"Dunnington", KernelLevel::sse},
    {"Nehalem", KernelLevel::sse},
    {"Atom", KernelLevel::sse},
    {"Nano", KernelLevel::sse},
    {"Opteron", KernelLevel::sse},
    {"Opteron_SSE3", KernelLevel::sse},
    {"Barcelona", KernelLevel::sse},
    {"Bobcat", KernelLevel::sse},
    {"Sandybridge", KernelLevel::avx},
    {"Haswell", KernelLevel::avx2},
    {"Zen", KernelLevel::avx2},
    {"Bulldozer", KernelLevel::avx2},
    {"Piledriver", KernelLevel::avx2},
    {"Steamroller", KernelLevel::avx2},
    {"Excavator", KernelLevel::avx2},
    {"SkylakeX", KernelLevel::avx512},
    {"Cooperlake", KernelLevel::avx512},
    {"SapphireRapids", KernelLevel::avx512},
};

// The core of each level that every processor with its instructions can run, fastest first.
constexpr std::array<std::string_view, 3> kChoices{"SkylakeX", "Haswell", "Sandybridge"};
constexpr size_t rank(KernelLevel level) { return static_cast<size_t>(level); }
static_assert(kChoices.size() == rank(KernelLevel::avx512));

KernelLevel highest_level(const ProcessorFeatures& has) {
  if (!has.avx) return KernelLevel::sse;
  if (!has.avx2 || !has.fma) return KernelLevel::avx;
  const bool avx512 = has.bmi && has.avx512f && has.avx512dq && has.avx512bw && has.avx512vl && has.avx512cd;
  return avx512 ? KernelLevel::avx512 : KernelLevel::avx2;
}

char lower(char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

ProcessorFeatures processor_features() {
  ProcessorFeatures has;
#ifdef __x86_64__
  // The compiler's run-time library reads cpuid, and reports AVX, FMA and AVX-512 only if XCR0
  // enables their registers.
  __builtin_cpu_init();
  has.avx = __builtin_cpu_supports("avx");
  has.avx2 = __builtin_cpu_supports("avx2");
  has.fma = __builtin_cpu_supports("fma");
  has.bmi = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  has.avx512f = __builtin_cpu_supports("avx512f");
  has.avx512dq = __builtin_cpu_supports("avx512dq");
  has.avx512bw = __builtin_cpu_supports("avx512bw");
  has.avx512vl = __builtin_cpu_supports("avx512vl");
  has.avx512cd = __builtin_cpu_supports("avx512cd");
#endif
  return has;
}

std::optional<KernelLevel> kernel_level(std::string_view core) {
  for (const Core& known : kCores) {
    if (std::ranges::equal(core, known.name, {}, lower, lower)) return known.level;
  }
  return std::nullopt;
}

std::span<const std::string_view> faster_cores(std::string_view core, const ProcessorFeatures& features) {
  const std::optional<KernelLevel> level = kernel_level(core);
  const KernelLevel highest = highest_level(features);
  if (!level || highest <= *level) return {};
  const std::span<const std::string_view> choices = kChoices;
  return choices.subspan(kChoices.size() - rank(highest), rank(highest) - rank(*level));
}

}  // namespace kvbound::reference
