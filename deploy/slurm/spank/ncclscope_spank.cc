// SPDX-License-Identifier: Apache-2.0
//
// ncclscope_spank.so: SLURM loads it into srun, sbatch, salloc (the option --ncclscope), slurmd
// (which names wrong arguments in its log) and slurmstepd (which gives tasks their environment). It
// must never fail a job: every callback succeeds whatever happens, and no exception leaves. Only an
// option that cannot be read is refused, where the job is submitted.
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choice.h"

#pragma GCC visibility push(default)
extern "C" {
// The header needs <cstdint> before it, and declares the callbacks without saying that they are C.
#include <slurm/spank.h>

// Constants of C++ are private to their file unless declared before.
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
SPANK_PLUGIN(ncclscope, 1)
}
#pragma GCC visibility pop

namespace {

using ncclscope::slurm::Choice;

std::optional<Choice> g_option;  // SLURM's callback has no argument of ours

int take_option(int /*value*/, const char* argument, int remote) {
  const std::optional<Choice> choice =
      ncclscope::slurm::parse_choice(argument == nullptr ? "" : argument);
  if (choice) {
    g_option = choice;
    return 0;
  }
  if (remote != 0) return 0;  // refused at submission, or of another version: no reason to fail
  slurm_error("--ncclscope=%s: wanted off, on or full", argument == nullptr ? "" : argument);
  return -1;
}

ncclscope::slurm::Settings read_arguments(int count, char** arguments,
                                          std::vector<std::string>& problems) {
  const std::vector<std::string_view> words(arguments, arguments + count);
  return ncclscope::slurm::parse_arguments(words, problems);
}

void prepare_environment(spank_t spank, int count, char** arguments) {
  char** environment = nullptr;
  if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS || environment == nullptr)
    return;
  std::vector<std::string> problems;
  const ncclscope::slurm::Settings settings = read_arguments(count, arguments, problems);
  const auto value_of = [environment](const char* name) -> const char* {
    const std::size_t length = std::strlen(name);
    for (char** entry = environment; *entry != nullptr; ++entry) {
      if (std::strncmp(*entry, name, length) == 0 && (*entry)[length] == '=')
        return *entry + length + 1;
    }
    return nullptr;
  };
  // All is decided before the first change, which may move SLURM's array.
  const ncclscope::slurm::Decision decision = ncclscope::slurm::decide(
      settings, g_option, ncclscope::slurm::look_at_node(settings), value_of);
  for (const ncclscope::slurm::Change& change : decision.changes) {
    if (change.value) {
      (void)spank_setenv(spank, change.name.c_str(), change.value->c_str(), 1);
    } else {
      (void)spank_unsetenv(spank, change.name.c_str());
    }
  }
  if (!decision.remark.empty()) slurm_info("ncclscope: %s", decision.remark.c_str());
}

void introduce(spank_t spank, int count, char** arguments) {
  // SLURM keeps the pointer.
  static char name[] = "ncclscope";
  static char values[] = "off|on|full";
  static char usage[] = "telemetry of NCCL: off, on, or full (every operation in all its detail)";
  static spank_option option{name, values, usage, 1, 0, take_option};
  (void)spank_option_register(spank, &option);
  if (spank_context() != S_CTX_SLURMD) return;
  std::vector<std::string> problems;
  (void)read_arguments(count, arguments, problems);
  for (const std::string& problem : problems) slurm_error("ncclscope: %s", problem.c_str());
}

}  // namespace

int slurm_spank_init(spank_t spank, int count, char** arguments) {
  try {
    introduce(spank, count, arguments);
  } catch (...) {
    slurm_info("ncclscope: out of memory; jobs run without it");
  }
  return ESPANK_SUCCESS;
}

/// In slurmstepd, as the job's user, before the first task (and, if it comes first in
/// plugstack.conf, before a container plugin starts the container).
int slurm_spank_user_init(spank_t spank, int count, char** arguments) {
  try {
    prepare_environment(spank, count, arguments);
  } catch (...) {
    slurm_info("ncclscope: out of memory; the job runs without it");
  }
  return ESPANK_SUCCESS;
}
