// Vector loops compiled once per instruction-set level; the level is chosen at run time.
//
// Every level does the same + - * / and integer operations on each number, without fused multiply-add, and
// adds up in the same kLanes partial sums, so the bits do not depend on the level. This holds for code
// compiled with -ffp-contract=off, as all of kvbound is.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace kvbound::reference {

/// The levels for which a vector loop is compiled. generic: instructions that every processor
/// of the architecture has.
enum class InstructionSet { generic, avx2, avx512 };

inline constexpr std::array<InstructionSet, 3> kInstructionSets{InstructionSet::generic, InstructionSet::avx2,
                                                                InstructionSet::avx512};

constexpr std::string_view name(InstructionSet level) {
  return std::array<std::string_view, 3>{"generic", "avx2", "avx512"}[static_cast<size_t>(level)];
}

/// Whether this processor and the operating system support the level.
inline bool is_available([[maybe_unused]] InstructionSet level) {
#ifdef __x86_64__
  if (level == InstructionSet::avx512) return __builtin_cpu_supports("avx512f");
  if (level == InstructionSet::avx2) return __builtin_cpu_supports("avx2");
#endif
  return level == InstructionSet::generic;
}

/// The highest available level, which is the one used.
inline InstructionSet instruction_set() {
  static const InstructionSet highest = is_available(InstructionSet::avx512) ? InstructionSet::avx512
                                        : is_available(InstructionSet::avx2) ? InstructionSet::avx2
                                                                             : InstructionSet::generic;
  return highest;
}

/// Numbers processed at a time: whole vectors at every level, two vectors at the widest.
inline constexpr size_t kLanes = 16;

/// kLanes doubles (reals), 64-bit unsigned integers (bits) or four times as many 16-bit ones (halves) in
/// vectors of `width`, so that a loop body is written once. Everything is inlined into the function of the
/// level that calls it.
template <size_t width>
struct Lanes {
  using Reals [[gnu::vector_size(8 * width)]] = double;
  using Bits [[gnu::vector_size(8 * width)]] = uint64_t;
  using Halves [[gnu::vector_size(8 * width)]] = uint16_t;
  static constexpr size_t kWidth = width;
  static constexpr size_t kVectors = kLanes / width;

  [[gnu::always_inline]] static void load(const double* from, Reals& to) {
    std::memcpy(&to, from, sizeof to);
  }
  [[gnu::always_inline]] static void store(const Reals& from, double* to) {
    std::memcpy(to, &from, sizeof from);
  }

  /// kLanes partial sums.
  struct Sums {
    Reals parts[kVectors] = {};

    /// The partial sums added up pairwise, l and l + 8 first, then l and l + 4, ...
    [[gnu::always_inline]] double total() const {
      double lanes[kLanes];
      for (size_t v = 0; v < kVectors; ++v) store(parts[v], lanes + v * width);
      for (size_t half = kLanes / 2; half > 0; half /= 2) {
        for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      }
      return lanes[0];
    }
  };
};

#ifdef __x86_64__
template <class Loop>
[[gnu::target("avx512f")]] void run_avx512(const Loop& loop) {
  loop(Lanes<8>());
}
template <class Loop>
[[gnu::target("avx2")]] void run_avx2(const Loop& loop) {
  loop(Lanes<4>());
}
#endif

/// Calls loop(Lanes<width>()) in a function compiled for the level, which must be available.
///
/// loop  a lambda declared always_inline, as must be every function that it calls with vectors: a function
///       that is not inlined is compiled for the generic level
template <class Loop>
void run_at(InstructionSet level, const Loop& loop) {
  assert(is_available(level));
#ifdef __x86_64__
  if (level == InstructionSet::avx512) return run_avx512(loop);
  if (level == InstructionSet::avx2) return run_avx2(loop);
#endif
  static_cast<void>(level);
  loop(Lanes<2>());
}

/// Calls loop() in a function compiled for the highest available level, in which the compiler makes vector
/// code of plain loops of constant length.
///
/// loop  as for run_at
template <class Loop>
void with_widest_instructions(const Loop& loop) {
  run_at(
      instruction_set(), [&](auto) __attribute__((always_inline)) { loop(); });
}

}  // namespace kvbound::reference
