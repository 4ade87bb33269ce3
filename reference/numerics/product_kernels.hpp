// Which of OpenBLAS's kernels a processor can run, and which are faster: the choice that
// use_fastest_products makes.
//
// OpenBLAS names its kernels by the processor ("core") that they were written for and picks a core by vendor,
// family and model. A processor that is newer than the library is unknown to it and gets its oldest kernels.
// Kernels depend only on the processor's instructions, so the choice here is made by instructions. It is not
// made by measured times: they are noisy, and the bits of results would differ from run to run.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace kvbound::reference {

/// Instructions that both the processor (cpuid) and the operating system (which saves the
/// registers: XCR0) support.
struct ProcessorFeatures {
  bool avx = false;
  bool avx2 = false;
  bool fma = false;
  bool bmi = false;  ///< both BMI1 and BMI2, which compilers use where they may use AVX-512
  bool avx512f = false;
  bool avx512dq = false;
  bool avx512bw = false;
  bool avx512vl = false;
  bool avx512cd = false;
};

/// The features of the current processor; all false on processors other than x86-64.
ProcessorFeatures processor_features();

/// The instructions that determine the speed of OpenBLAS's products in double precision
/// on x86-64, slowest first. Within a level, all cores have the same kernels for these
/// products, or kernels written for a processor on which no other core is faster.
///
///     level    required instructions              cores of OpenBLAS
///     sse      what every x86-64 processor has    Prescott, Core2, Penryn, Dunnington, Nehalem, Atom, Nano,
///                                                 Opteron, Opteron_SSE3, Barcelona, Bobcat
///     avx      AVX                                Sandybridge
///     avx2     AVX2 and FMA; the four last: FMA4  Haswell, Zen, Bulldozer, Piledriver, Steamroller,
///                                                 Excavator
///     avx512   AVX-512 F, DQ, BW, VL and CD;      SkylakeX, Cooperlake, SapphireRapids (these add products
///              AVX2, FMA, BMI1 and BMI2           of BF16 only)
enum class KernelLevel { sse, avx, avx2, avx512 };

/// The level of a core, whose name is compared without regard to case; nullopt for a core
/// that is not in the table.
std::optional<KernelLevel> kernel_level(std::string_view core);

/// The cores whose kernels are faster than those of `core` and which a processor with these features can
/// run, fastest first: SkylakeX, Haswell, Sandybridge or some of them, one per level. Empty if `core` is
/// not in the table, because then its speed is unknown: on processors other than x86-64, and for cores of
/// newer OpenBLAS versions.
std::span<const std::string_view> faster_cores(std::string_view core, const ProcessorFeatures& features);

}  // namespace kvbound::reference
