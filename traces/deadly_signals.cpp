#include "deadly_signals.hpp"

#include <array>
#include <csignal>
#include <cstddef>

#include "temporary_name.hpp"

namespace kvbound::traces {
namespace {

constexpr std::array kDeadlySignals{SIGHUP,  SIGINT,  SIGQUIT, SIGILL,    SIGTRAP, SIGABRT, SIGBUS,
                                    SIGFPE,  SIGUSR1, SIGSEGV, SIGUSR2,   SIGALRM, SIGTERM, SIGSTKFLT,
                                    SIGXCPU, SIGPROF, SIGPOLL, SIGVTALRM, SIGPWR,  SIGSYS};

// Only what is safe wherever the signal arrives, be it in malloc.
extern "C" void clean_up_and_die(int signal_number) {
  remove_temporary_files();
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void handle(int signal_number) {
  struct sigaction action {};
  if (sigaction(signal_number, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = clean_up_and_die;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigaction(signal_number, &action, nullptr);
}

}  // namespace

void clean_up_on_deadly_signals() {
  // The handler's own stack, for a thread whose stack is full.
  alignas(std::max_align_t) static std::array<char, 1 << 16> stack;
  const stack_t place{stack.data(), 0, stack.size()};
  sigaltstack(&place, nullptr);
  for (const int signal_number : kDeadlySignals) handle(signal_number);
  for (int signal_number = SIGRTMIN; signal_number <= SIGRTMAX; ++signal_number) handle(signal_number);
  for (const int signal_number : {SIGPIPE, SIGXFSZ}) std::signal(signal_number, SIG_IGN);
}

}  // namespace kvbound::traces
