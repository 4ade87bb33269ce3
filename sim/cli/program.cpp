#include "program.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <omp.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/numerics/product.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/report/environment.hpp>
#include <kvbound/traces/deadly_signals.hpp>
#include <kvbound/traces/generate.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/temporary_name.hpp>

#include "commands.hpp"

namespace kvbound::sim {
namespace {

int fail(ExitCode code, const std::string& message) {
  std::cerr << "kvbound: " << one_line(message) << "\n";
  return code;
}

int dispatch(const Arguments& arguments) {
  if (arguments.empty()) throw UsageError("no subcommand; try 'kvbound --help'");
  const std::string& name = arguments.front();
  if (!name.starts_with('-'))
    return command_named(name).run(Arguments(arguments.begin() + 1, arguments.end()));
  if (arguments.size() > 1) throw UsageError("unexpected argument " + traces::quoted(arguments[1]));
  if (name == "--help" || name == "-h") {
    std::cout << program_help();
    return kPass;
  }
  if (name == "--version") {
    std::cout << "kvbound " << version() << " (" << revision() << ")\n";
    return kPass;
  }
  command_named(name);  // refuses it
  return kUsage;
}

// Before libgomp starts so many threads that the machine has no room for others, or overflows its stack. It
// reads 2^32 + 1 as 1: hence the variable itself.
void require_possible_threads() {
  const uint64_t most = std::max(kMostThreads, int64_t{omp_get_num_procs()});
  const char* said = std::getenv("OMP_NUM_THREADS");
  const uint64_t threads =
      std::max<uint64_t>(omp_get_max_threads(), said ? std::strtoull(said, nullptr, 10) : 0);
  if (threads <= most || (said && *said == '-')) return;
  throw IoError(
      fmt::format("cannot start {} threads, as OMP_NUM_THREADS says; expected 1 to {}", threads, most));
}

int run(const Arguments& arguments) try {
  require_possible_threads();
  reference::use_fastest_products();  // before any thread is started
  const int code = dispatch(arguments);
  flush_standard_output();
  return code;
} catch (const UsageError& error) {
  return fail(kUsage, error.what());
} catch (const InvalidPolicy& error) {
  return fail(kUsage, error.what());
} catch (const traces::InvalidOption& error) {
  return fail(kUsage, error.what());
} catch (const TraceError& error) {
  return fail(kInvalidInput, error.what());
} catch (const NonFinite& error) {
  return fail(kInvalidInput, error.what());
} catch (const NoDevice& error) {
  return fail(kInconclusive, error.what());
} catch (const DeviceError& error) {
  return fail(kWorld, error.what());
} catch (const IoError& error) {
  return fail(kWorld, error.what());
} catch (const std::filesystem::filesystem_error& error) {
  return fail(kWorld, "cannot use " + without_middle(error.path1().string()) + ": " + error.code().message());
} catch (const std::system_error& error) {
  return fail(kWorld, std::string("a request to the system failed, such as for a thread: ") + error.what());
} catch (const std::bad_alloc&) {
  return fail(kWorld, "out of memory");
} catch (const std::exception& error) {
  return fail(kInternal, std::string("internal error: ") + error.what());
}

std::atomic<bool> has_returned = false;

// Libraries end the program by exit(1) for want of a thread or of memory, which would
// say that something differs.
extern "C" void end_for_want_of_resources() {
  if (has_returned) return;
  traces::remove_temporary_files();
  std::fputs(
      "kvbound: a library ended the program for want of threads or memory; see --threads and OMP_NUM_THREADS\n",
      stderr);
  std::_Exit(kWorld);
}

// Opens /dev/null as each standard stream that is closed, in the direction that fails: a file that got the
// number of standard output would receive what is printed.
void occupy_closed_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) != -1) continue;
    const int lowest = open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (lowest != descriptor) std::_Exit(kWorld);
  }
}

}  // namespace

void end_for_want_of_memory() {
  traces::remove_temporary_files();
  constexpr std::string_view kMessage = "kvbound: out of memory\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
  std::_Exit(kWorld);
}

int run_program(const Arguments& arguments) {
  occupy_closed_streams();
  std::set_new_handler(end_for_want_of_memory);
  traces::clean_up_on_deadly_signals();
  std::atexit(end_for_want_of_resources);
  const int code = run(arguments);
  has_returned = true;
  return code;
}

}  // namespace kvbound::sim
