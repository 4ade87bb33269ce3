#include "passive_waiting.hpp"

#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace kvbound::reference {

void wait_passively(char* const* arguments) {
  constexpr const char* kPolicy = "OMP_WAIT_POLICY";
  if (std::getenv(kPolicy) != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || setenv(kPolicy, "passive", 0) != 0) return;
  execv(program.c_str(), arguments);
  unsetenv(kPolicy);  // the program could not be started again
}

}  // namespace kvbound::reference
