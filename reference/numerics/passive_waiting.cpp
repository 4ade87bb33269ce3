#include "passive_waiting.hpp"

#include <sys/auxv.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace kvbound::reference {

void wait_passively(char* const* arguments) {
  constexpr const char* kPolicy = "OMP_WAIT_POLICY";
  if (std::getenv(kPolicy) != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  std::error_code error;
  // A dynamic loader that was given the program by name is what runs, and would be started again without that name.
  const auto* const program = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  if (program == nullptr || !std::filesystem::equivalent("/proc/self/exe", program, error)) return;
  if (setenv(kPolicy, "passive", 0) != 0) return;
  execv(program, arguments);
  unsetenv(kPolicy);  // the program could not be started again
}

}  // namespace kvbound::reference
