#include "quiet_threads.hpp"

#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace kvbound::reference {
namespace {

constexpr const char *kPolicy = "OMP_WAIT_POLICY", *kBlasThreads = "OPENBLAS_NUM_THREADS";

bool has_one_blas_thread() {
  const char* const threads = std::getenv(kBlasThreads);
  return threads != nullptr && std::string_view(threads) == "1";
}

bool memory_is_limited() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

void quiet_threads(char* const* arguments) {
  const bool says_how_to_wait = std::getenv(kPolicy) != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
  if (says_how_to_wait && (has_one_blas_thread() || !memory_is_limited())) return;
  std::error_code error;
  // A dynamic loader that was given the program by name is what runs, and would be started
  // again without that name.
  const auto* const program = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  if (program == nullptr || !std::filesystem::equivalent("/proc/self/exe", program, error)) return;
  if (setenv(kBlasThreads, "1", 1) != 0) return;
  if (!says_how_to_wait && setenv(kPolicy, "passive", 0) != 0) return;
  execv(program, arguments);
  if (!says_how_to_wait) unsetenv(kPolicy);  // the program could not be started again
}

}  // namespace kvbound::reference
