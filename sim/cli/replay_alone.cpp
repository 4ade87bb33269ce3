// The program kvbound_replay: `replay` on the reference, which needs neither kernels nor the other
// subcommands to be compiled. sim/quickstart.sh prints the first table with it.
#include <array>

#include <kvbound/cuda/session/session.hpp>
#include <kvbound/sim/replay/device.hpp>

#include "commands.hpp"

namespace kvbound::sim {
namespace {

constexpr const char* kNone = "this program was built for the reference alone";

}  // namespace

std::span<const Command> commands() {
  static constexpr std::array kCommands{
      Command{Purpose::compare, "policies", "[NAME]", "what policies consist of, with all options",
              policies_command},
      Command{Purpose::compare, "replay", "TRACE... --policy P[,P] --budget B[,B]",
              "recorded decode steps through compression policies", replay_command},
      Command{Purpose::help, "help", "[COMMAND]", "this help, or that of a command", help_command}};
  return kCommands;
}

DeviceSearch find_device() { return {false, "", 0, kNone}; }
std::unique_ptr<Session> native_session(Dtype, OperationTimes*, int64_t) { throw NoDevice(kNone); }
SessionArithmetic native_arithmetic(Dtype, const LayerShape&, int64_t, int64_t) { throw NoDevice(kNone); }

}  // namespace kvbound::sim

namespace kvbound::cuda::emulated {

std::unique_ptr<Session> make_session(Dtype, OperationTimes*, Stream, int64_t) { throw NoDevice(sim::kNone); }
SessionArithmetic session_arithmetic(Dtype, const LayerShape&, int64_t, int64_t) {
  throw NoDevice(sim::kNone);
}

}  // namespace kvbound::cuda::emulated
