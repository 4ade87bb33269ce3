#include <array>

#include "commands.hpp"

namespace kvbound::sim {

std::span<const Command> commands() {
  using enum Purpose;
  static constexpr std::array kCommands{
      Command{record, "record", "MODEL --tokens FILE OUT", "a trace of a Hugging Face or GGUF model",
              record_command},
      Command{record, "import", "flashinfer DIR OUT",
              "a trace and a dump of recorded calls of FlashInfer's kernels", import_command},
      Command{record, "generate", "--kind KIND OUT", "a synthetic trace", generate_command},
      Command{look, "inspect", "TRACE [--verify]",
              "what a trace holds, and whether its recorded outputs can be reproduced", inspect_command},
      Command{look, "recall", "TRACE", "how many of the entries that matter most a score finds",
              recall_command},
      Command{look, "predict", "TRACE", "how well past scores predict the next ones", predict_command},
      Command{compare, "policies", "[NAME]", "what policies consist of, with all options", policies_command},
      Command{compare, "replay", "TRACE... --policy P[,P] --budget B[,B]",
              "recorded decode steps through compression policies", replay_command},
      Command{compare, "sweep", "PLAN --out DIR",
              "a replay of many traces by many processes, here or on a cluster", sweep_command},
      Command{compare, "gather", "DIR", "the results of a sweep as those of one replay", gather_command},
      Command{compare, "evaluate", "MODEL TASKS --policy P[,P] --budget B[,B]",
              "what a model says when it decodes through compressed caches", evaluate_command},
      Command{compare, "report", "FILE.json... -o PAGE.html",
              "one offline page of figures of the JSON that the others write", report_command},
      Command{look, "figures", "[COMMAND...]", "what the columns of results say", figures_command},
      Command{check, "diff", "TRACE DUMP | A B --against TRACE",
              "another implementation's results against the reference", diff_command},
      Command{check, "check", "OPERATION FILE",
              "a kernel's inputs and results, without a trace, against the reference", check_command},
      Command{check, "bench", "[OPERATION...]",
              "speed of operations, against rooflines measured in the same run", bench_command},
      Command{prove, "prove", "[ID...]", "searches for counterexamples to the theorems", prove_command},
      Command{Purpose::help, "help", "[COMMAND]", "this help, or that of a command", help_command}};
  return kCommands;
}

}  // namespace kvbound::sim
