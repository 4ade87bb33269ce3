#include <cuda_runtime.h>
#include <dlfcn.h>

#include <kvbound/cuda/native/check.hpp>

#include "roofline.hpp"

namespace kvbound::cuda {
inline namespace KVBOUND_CUDA_BUILD {
namespace {

// The declarations of cublas_v2.h that are used here, so that the build does not need cuBLAS. They are
// the same from CUDA 11 on.
namespace cublas {
using Handle = void*;
using Status = int;
constexpr Status kSuccess = 0;
constexpr int kAsItIs = 0;          // CUBLAS_OP_N
constexpr int kBfloat16 = 14;       // CUDA_R_16BF
constexpr int kFloat32 = 0;         // CUDA_R_32F
constexpr int kSumsInFloat32 = 68;  // CUBLAS_COMPUTE_32F
constexpr int kBestGuess = -1;      // CUBLAS_GEMM_DEFAULT

using Create = Status (*)(Handle*);
using Destroy = Status (*)(Handle);
using SetStream = Status (*)(Handle, Stream);
using GemmEx = Status (*)(Handle, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha,
                          const void* a, int a_type, int lda, const void* b, int b_type, int ldb,
                          const void* beta, void* c, int c_type, int ldc, int compute_type, int algorithm);
}  // namespace cublas

void check_library(cublas::Status status, const char* call, CallSite where = CallSite::current()) {
  if (status == cublas::kSuccess) return;
  throw DeviceError(call, "cuBLAS status " + std::to_string(status), where.file, where.line);
}

// A shared library, closed by the destructor.
class SharedLibrary {
 public:
  explicit SharedLibrary(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {}
  ~SharedLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  bool is_open() const { return handle_ != nullptr; }

  template <class Function>
  Function function(const char* name) const {
    void* const found = dlsym(handle_, name);
    if (found == nullptr) throw DeviceError(name, "cuBLAS has no such function", __FILE__, __LINE__);
    return reinterpret_cast<Function>(found);
  }

 private:
  void* handle_;
};

class Cublas final : public MatrixLibrary {
 public:
  Cublas(std::unique_ptr<SharedLibrary> library, std::string name)
      : library_(std::move(library)),
        name_(std::move(name)),
        destroy_(library_->function<cublas::Destroy>("cublasDestroy_v2")),
        set_stream_(library_->function<cublas::SetStream>("cublasSetStream_v2")),
        gemm_(library_->function<cublas::GemmEx>("cublasGemmEx")) {
    check_library(library_->function<cublas::Create>("cublasCreate_v2")(&handle_), "cublasCreate");
  }
  ~Cublas() override { destroy_(handle_); }
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  std::string name() const override { return name_; }

  void multiply(const Bfloat16* a, const Bfloat16* b, Bfloat16* product, int64_t side,
                Stream stream) override {
    multiply(a, b, product, cublas::kBfloat16, {side, side, side}, stream);
  }
  void multiply(const Bfloat16* a, const Bfloat16* b, float* product, const ProductShape& shape,
                Stream stream) override {
    multiply(a, b, product, cublas::kFloat32, shape, stream);
  }

 private:
  void multiply(const Bfloat16* a, const Bfloat16* b, void* product, int product_type,
                const ProductShape& shape, Stream stream) {
    const float one = 1, zero = 0;
    const auto rows = static_cast<int>(shape.rows), inner = static_cast<int>(shape.inner),
               cols = static_cast<int>(shape.cols);
    check_library(set_stream_(handle_, stream), "cublasSetStream");
    // cuBLAS is column-major and so reads our row-major matrices as their transposes: product^T = b^T a^T.
    check_library(gemm_(handle_, cublas::kAsItIs, cublas::kAsItIs, cols, rows, inner, &one, b,
                        cublas::kBfloat16, cols, a, cublas::kBfloat16, inner, &zero, product, product_type,
                        cols, cublas::kSumsInFloat32, cublas::kBestGuess),
                  "cublasGemmEx");
  }

  std::unique_ptr<SharedLibrary> library_;
  std::string name_;
  cublas::Destroy destroy_;
  cublas::SetStream set_stream_;
  cublas::GemmEx gemm_;
  cublas::Handle handle_ = nullptr;
};

constexpr const char* kNames[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11",
                                  "/usr/local/cuda/lib64/libcublas.so"};

}  // namespace

void copy(void* to, const void* from, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync on the device");
}

std::unique_ptr<MatrixLibrary> MatrixLibrary::open(std::string* why) {
  std::string reason = "no libcublas.so was found";
  for (const char* const name : kNames) {
    auto library = std::make_unique<SharedLibrary>(name);
    if (!library->is_open()) continue;
    try {
      return std::make_unique<Cublas>(std::move(library), name);
    } catch (const DeviceError& error) {
      reason = std::string(name) + ": " + error.what();
    }
  }
  if (why != nullptr) *why = reason;
  return nullptr;
}

}  // namespace KVBOUND_CUDA_BUILD
}  // namespace kvbound::cuda
