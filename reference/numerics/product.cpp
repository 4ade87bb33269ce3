#include "product.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include <cblas.h>
#include <omp.h>

#include "product_kernels.hpp"
#include "product_shapes.hpp"

// The functions by which OpenBLAS chooses its kernels when it is loaded and drops the choice when it is
// unloaded. They are in no header and are therefore weak: an OpenBLAS that was built for a single
// processor does not have them.
extern "C" {
[[gnu::weak]] void gotoblas_dynamic_init();
[[gnu::weak]] void gotoblas_dynamic_quit();
}

namespace kvbound::reference {
namespace {

// Sets OpenMP's number of threads for the lifetime of the object. An OpenBLAS built for OpenMP uses that
// number of threads and changes it when its own thread count is set.
class OpenMpThreads {
 public:
  explicit OpenMpThreads(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~OpenMpThreads() { omp_set_num_threads(before_); }
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;

 private:
  int before_;
};

// Sets OpenBLAS's thread count, which is a setting of the whole process, to one: with more threads, the bits
// of a product depend on their number.
void use_one_blas_thread() {
  [[maybe_unused]] static const bool once = [] {
    const OpenMpThreads kept(1);
    openblas_set_num_threads(1);
    return true;
  }();
}

// Sets the number of BLAS threads for the lifetime of the object; afterwards it is one.
class BlasThreads {
 public:
  explicit BlasThreads(int threads) : openmp_(threads) {
    use_one_blas_thread();  // now, so that the first product does not reset the count
    openblas_set_num_threads(threads);
  }
  ~BlasThreads() { openblas_set_num_threads(1); }  // before openmp_ restores OpenMP's count
  BlasThreads(const BlasThreads&) = delete;
  BlasThreads& operator=(const BlasThreads&) = delete;

 private:
  OpenMpThreads openmp_;
};

constexpr auto gemm(double) { return cblas_dgemm; }
constexpr auto gemm(float) { return cblas_sgemm; }

template <class T>
void multiply_any(T scale, BasicMatrixView<const T> a, BasicMatrixView<const T> b, BasicMatrixView<T> out,
                  CBLAS_TRANSPOSE transpose_b, int threads = 1) {
  if (out.rows == 0 || out.cols == 0) return;
  use_one_blas_thread();
  const OpenMpThreads kept(threads);
  const auto leading = [](const auto& matrix) {
    return static_cast<blasint>(std::max({matrix.row_stride, matrix.cols, int64_t{1}}));
  };
  gemm(scale)(CblasRowMajor, CblasNoTrans, transpose_b, static_cast<blasint>(out.rows),
              static_cast<blasint>(out.cols), static_cast<blasint>(a.cols), scale, a.data, leading(a), b.data,
              leading(b), T{0}, out.data, leading(out));
}

constexpr const char* kCoreType = "OPENBLAS_CORETYPE";

// Sets OPENBLAS_CORETYPE to another value, or unsets it, for the lifetime of the object.
class CoreType {
 public:
  explicit CoreType(const std::optional<std::string>& core) {
    if (const char* now = std::getenv(kCoreType)) before_ = now;
    set(core);
  }
  ~CoreType() { set(before_); }
  CoreType(const CoreType&) = delete;
  CoreType& operator=(const CoreType&) = delete;

 private:
  static void set(const std::optional<std::string>& core) {
    if (core) {
      // If setenv fails for lack of memory, the kernels do not change, which callers check.
      setenv(kCoreType, core->c_str(), 1);
    } else {
      unsetenv(kCoreType);
    }
  }

  std::optional<std::string> before_;
};

// Only an OpenBLAS that has kernels for several processors reads the variable.
bool has_several_cores() { return std::strstr(openblas_get_config(), "DYNAMIC_ARCH") != nullptr; }

bool user_has_chosen() {
  const char* core = std::getenv(kCoreType);
  return core && *core != '\0' && has_several_cores();
}

bool can_choose_again() {
  return gotoblas_dynamic_init != nullptr && gotoblas_dynamic_quit != nullptr && has_several_cores();
}

// Makes OpenBLAS choose its kernels again, as if OPENBLAS_CORETYPE had had this value (or had
// been unset) at load time.
void choose_again(const std::optional<std::string>& core) {
  const CoreType as_if(core);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
}

// The kernels that were chosen at load time, and who chose the current ones.
struct Kernels {
  std::string at_load = openblas_get_corename();
  KernelChoice chosen_by = user_has_chosen() ? KernelChoice::user : KernelChoice::library;

  static Kernels& at_work() {
    static Kernels kernels;
    return kernels;
  }
};

}  // namespace

void multiply(MatrixView a, MatrixView b, MutableMatrixView out) {
  require_product(a, b, out);
  multiply_any(1.0, a, b, out, CblasNoTrans);
}

void multiply(SingleMatrixView a, SingleMatrixView b, MutableSingleMatrixView out) {
  require_product(a, b, out);
  multiply_any(1.0F, a, b, out, CblasNoTrans);
}

void multiply_transposed(MatrixView a, MatrixView b, MutableMatrixView out, double scale) {
  require_transposed_product(a, b, out);
  multiply_any(scale, a, b, out, CblasTrans);
}

void multiply_transposed(SingleMatrixView a, SingleMatrixView b, MutableSingleMatrixView out, float scale) {
  require_transposed_product(a, b, out);
  multiply_any(scale, a, b, out, CblasTrans);
}

int multiply_with_blas_threads(MatrixView a, MatrixView b, MutableMatrixView out, int threads) {
  const BlasThreads more(threads);
  require_product(a, b, out);
  multiply_any(1.0, a, b, out, CblasNoTrans, threads);
  return blas_threads();
}

int blas_threads() {
  use_one_blas_thread();
  constexpr int kSerial = 0;
  return openblas_get_parallel() == kSerial ? 1 : openblas_get_num_threads();
}

BlasInfo blas_info() {
  constexpr const char* kFlavours[] = {"serial", "pthread", "openmp"};
  const int flavour = openblas_get_parallel();
  const Kernels& kernels = Kernels::at_work();
  const std::string core = openblas_get_corename();
  const std::span<const std::string_view> faster = faster_cores(core, processor_features());
  return {openblas_get_config(),
          core,
          0 <= flavour && flavour < 3 ? kFlavours[flavour] : "unknown",
          kernels.at_load,
          kernels.chosen_by,
          std::string(faster.empty() ? "" : faster.front())};
}

BlasInfo use_fastest_products() {
  Kernels& kernels = Kernels::at_work();
  if (user_has_chosen() || !can_choose_again()) return blas_info();
  if (kernels.chosen_by == KernelChoice::user) {
    choose_again(std::nullopt);
    kernels.chosen_by = KernelChoice::library;
  }
  if (kernels.chosen_by != KernelChoice::library) return blas_info();
  const std::string before = openblas_get_corename();
  const std::span<const std::string_view> faster = faster_cores(before, processor_features());
  for (const std::string_view core : faster) {
    choose_again(std::string(core));
    if (kernel_level(openblas_get_corename()) > kernel_level(before)) {
      kernels.chosen_by = KernelChoice::fastest;
      return blas_info();
    }
  }
  if (before != openblas_get_corename()) choose_again(std::nullopt);  // the library has none of these
  return blas_info();
}

BlasInfo use_products_of(const std::string& core) {
  Kernels& kernels = Kernels::at_work();
  if (can_choose_again()) {
    choose_again(core);
    kernels.chosen_by = KernelChoice::named;
  }
  return blas_info();
}

ProductsOf::ProductsOf(const std::string& core) {
  const std::string now = openblas_get_corename();
  if (core == now || !can_choose_again()) return;
  before_ = now;
  choose_again(core);
}

ProductsOf::~ProductsOf() {
  if (!before_.empty()) choose_again(before_);
}

}  // namespace kvbound::reference
