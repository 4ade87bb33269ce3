#include "slurm_engine.hpp"

#include <sys/wait.h>
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include <kvbound/reference/core/error.hpp>
#include <kvbound/sim/options/command_line.hpp>
#include <kvbound/sim/options/this_program.hpp>
#include <kvbound/traces/messages.hpp>
#include <kvbound/traces/output_file.hpp>

namespace kvbound::sim {
namespace {

namespace fs = std::filesystem;

void require_one_line(const std::string& text) {
  if (std::ranges::none_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; })) return;
  throw UsageError("--engine slurm: " + traces::in_quotes(text) +
                   " has control characters, which job scripts may not have");
}

// A text of others as one word of a shell. Throws UsageError for control characters: a new line within quotes
// is legal in a shell, but begins a line of a job script, which Slurm reads too.
std::string shell_quoted(const std::string& text) {
  require_one_line(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// What a shell command wrote, and its exit code.
struct Output {
  std::string text;  // to standard output
  std::string errors;
  int code = 0;
};

// errors  a file for what the command writes to standard error
Output output_of(const std::string& command, const fs::path& errors) {
  FILE* const pipe = popen(fmt::format("{} 2>{}", command, shell_quoted(errors.string())).c_str(), "r");
  if (!pipe) throw IoError("cannot run " + command);
  Output output;
  std::array<char, 4096> buffer{};
  for (size_t count = 0; (count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    output.text.append(buffer.data(), count);
  const int status = pclose(pipe);
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::ifstream file(errors);
  output.errors.assign(std::istreambuf_iterator<char>(file), {});
  return output;
}

fs::path place_of(const SweepFolder& folder) {
  const fs::path place = fs::absolute(folder.path()) / "slurm";
  fs::create_directories(place);
  return place;
}

// The words that start this program on another machine, for the shell.
std::string program() {
  const ThisProgram& program = this_program();
  const bool is_link = program.executable == "/proc/self/exe";
  std::string words =
      shell_quoted(is_link ? fs::read_symlink(program.executable).string() : program.executable);
  for (size_t i = 1; i < program.first.size(); ++i) words += " " + shell_quoted(program.first[i]);
  return words;
}

// A line that the shell does not read.
std::string sbatch_line(const std::string& options) {
  require_one_line(options);
  return options.empty() ? "" : "#SBATCH " + options + "\n";
}

// Writes a script into the folder's `slurm` and submits it; returns the job's id.
std::string submit_script(const SweepFolder& folder, const char* name, const std::string& script,
                          const std::string& options) {
  const fs::path place = place_of(folder);
  const std::string path = (place / name).string();
  traces::OutputFile file(path);
  file.write(script);
  file.commit();
  const Output said =
      output_of(fmt::format("sbatch --parsable {} {}", options, shell_quoted(path)), place / "errors");
  const std::string id = said.text.substr(0, said.text.find_first_of(";\n"));  // "id" or "id;cluster"
  const bool is_id = !id.empty() && id.find_first_not_of("0123456789") == std::string::npos;
  if (said.code != 0 || !is_id) {
    throw IoError(fmt::format("sbatch failed ({}): {}", said.code,
                              traces::printable(said.errors.empty() ? said.text : said.errors, 400)));
  }
  return id;
}

std::string gather_script(const SweepFolder& folder, const std::string& hash, const SlurmOptions& options) {
  std::string call = fmt::format("{} gather {} --sweep {} --quiet", program(),
                                 shell_quoted(fs::absolute(folder.path()).string()), shell_quoted(hash));
  if (options.json) call += " --json " + shell_quoted(fs::absolute(*options.json).string());
  if (options.csv) call += " --csv " + shell_quoted(fs::absolute(*options.csv).string());
  return "#!/bin/bash\n#SBATCH --job-name=kvbound-gather\n" + sbatch_line("--requeue --open-mode=append") +
         sbatch_line(options.sbatch) + "srun --ntasks=1 " + call + "\n";
}

}  // namespace

std::string array_script(const SweepFolder& folder, const std::string& hash, const SlurmOptions& options) {
  std::string script = "#!/bin/bash\n#SBATCH --job-name=kvbound-sweep\n";
  script +=
      sbatch_line(fmt::format("--array=0-{} --ntasks=1 --requeue --open-mode=append", options.jobs - 1));
  if (options.threads) script += sbatch_line(fmt::format("--cpus-per-task={}", *options.threads));
  if (options.gpu) script += sbatch_line("--gpus-per-task=1");
  script += sbatch_line(options.sbatch);
  script += "# A task whose node fails is requeued; it passes over the items that have results by then.\n";
  script += fmt::format(
      "srun --ntasks=1 --cpus-per-task=\"${{SLURM_CPUS_PER_TASK:-1}}\"{} {} sweep --out {} --sweep {} --share \"$SLURM_ARRAY_TASK_ID/{}\" --jobs 1 \\\n"
      "    --threads \"${{SLURM_CPUS_PER_TASK:-1}}\" --retries {} --quiet\n",
      options.gpu ? " --gpus-per-task=1" : "", program(), shell_quoted(fs::absolute(folder.path()).string()),
      shell_quoted(hash), options.jobs, options.retries);
  return script;
}

std::string submit_array(const SweepFolder& folder, const std::string& hash, const SlurmOptions& options) {
  const std::string logs = shell_quoted((place_of(folder) / "%x-%A_%a.log").string());
  return submit_script(folder, "sweep.sh", array_script(folder, hash, options), "--output=" + logs);
}

void submit_gathering(const SweepFolder& folder, const std::string& hash, const SlurmOptions& options,
                      const std::string& array) {
  const std::string logs = shell_quoted((place_of(folder) / "%x-%j.log").string());
  submit_script(folder, "gather.sh", gather_script(folder, hash, options),
                fmt::format("--dependency=afterany:{} --output={}", array, logs));
}

bool is_alive(const SweepFolder& folder, const std::string& job) {
  const Output said =
      output_of("squeue --noheader --format=%i --jobs=" + shell_quoted(job), place_of(folder) / "errors");
  if (said.code == 0) return !said.text.empty();
  return said.errors.find("Invalid job id") == std::string::npos;  // else the controller is away for now
}

}  // namespace kvbound::sim
