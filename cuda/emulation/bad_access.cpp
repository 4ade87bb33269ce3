#include "bad_access.hpp"

#include <signal.h>
#include <ucontext.h>
#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "block.hpp"
#include "sanitizer.hpp"

namespace kvbound::cuda::emulation {
namespace {

constexpr size_t kStackBytes = size_t{64} << 10;
constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGFPE};
std::array<struct sigaction, kSignals.size()> before;

struct Signal {
  int number = 0;
  int code = 0;
  void* address = nullptr;
};
constinit thread_local Signal raised;

std::string problem() {
  const Signal signal = raised;
  if (signal.number == SIGFPE) return "divides an integer by zero";
  if (stack_overflown_at(signal.address)) return "overflows its stack";
  if (signal.code <= 0 || signal.code == SI_KERNEL)
    return "accesses a misaligned vector, or an address that cannot be";
  return "accesses " + place_in_memory(signal.address);
}

[[noreturn]] void fail_for_signal() { fail_for_good(&problem); }

// Makes the thread continue in fail_for_signal, on its own stack. False on processors for which this is not
// implemented.
bool redirect([[maybe_unused]] ucontext_t& context, [[maybe_unused]] std::byte* stack) {
  constexpr uintptr_t kRedZone = 256;
  [[maybe_unused]] const auto place = [stack](auto old) {
    const auto top =
        stack != nullptr ? reinterpret_cast<uintptr_t>(stack) : static_cast<uintptr_t>(old) - kRedZone;
    return top & ~uintptr_t{15};
  };
  [[maybe_unused]] const auto entry = reinterpret_cast<uintptr_t>(&fail_for_signal);
#if defined(__x86_64__)
  auto& registers = context.uc_mcontext.gregs;
  const uintptr_t top = place(registers[REG_RSP]) - sizeof(void*);  // as after a call
  registers[REG_RSP] = static_cast<greg_t>(top);
  registers[REG_RIP] = static_cast<greg_t>(entry);
  return true;
#elif defined(__aarch64__)
  context.uc_mcontext.sp = place(context.uc_mcontext.sp);
  context.uc_mcontext.pc = entry;
  return true;
#else
  return false;
#endif
}

void handle(int number, siginfo_t* info, void* context) {
  if (in_kernel()) {
    raised = {number, info->si_code, info->si_addr};
    std::byte* const stack = stack_overflown_at(info->si_addr) ? clear_stack() : nullptr;
    if (redirect(*static_cast<ucontext_t*>(context), stack)) return;
  }
  for (size_t i = 0; i < kSignals.size(); ++i) {  // the instruction is repeated under the previous handler
    if (kSignals[i] == number) sigaction(number, &before[i], nullptr);
  }
}

void install() {
  struct sigaction action {};
  action.sa_sigaction = &handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before[i]);
}

}  // namespace

SignalGuard::SignalGuard() {
  static std::once_flag once;
  std::call_once(once, install);
  stack_t present{};
  if (sigaltstack(nullptr, &present) == 0 && (present.ss_flags & SS_DISABLE) == 0) return;
  stack_ = std::make_unique<std::byte[]>(kStackBytes);
  stack_t mine{};
  mine.ss_sp = stack_.get();
  mine.ss_size = kStackBytes;
  sigaltstack(&mine, nullptr);
}

SignalGuard::~SignalGuard() {
  if (!stack_) return;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
}

}  // namespace kvbound::cuda::emulation
