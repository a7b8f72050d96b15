// SPDX-License-Identifier: Apache-2.0
//
// What ncclscope's SPANK plugin decides, apart from SLURM: how its arguments and its option read,
// what a node has, and which variables of a job's environment change. Plain C++17 and one folder,
// since it is also built on the spot for other releases of SLURM (build.sh). One thread; throws
// std::bad_alloc only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ncclscope::slurm {

enum class Choice { kOff, kOn, kFull };

/// As the option and the argument `default` spell it; nothing for any other text.
std::optional<Choice> parse_choice(std::string_view text);
const char* name_of(Choice choice);

/// The plugin's arguments in plugstack.conf.
struct Settings {
  Choice choice = Choice::kOn;  // default=off|on|full: jobs that do not say
  std::string plugin = "/usr/lib/ncclscope/libnccl-profiler-ncclscope.so";  // plugin=PATH
  std::string socket_folder = "/run/ncclscope";                             // socket_dir=PATH
  bool containers = true;  // containers=on|off: variables of Apptainer and Singularity
};

/// Reads the arguments. Each one that cannot be used is named in `problems` and has no effect; a
/// `default` that cannot be read is off, since nobody is known to have asked for more.
Settings parse_arguments(const std::vector<std::string_view>& arguments,
                         std::vector<std::string>& problems);

/// What this node has of it.
struct Node {
  bool has_plugin = false;
  bool has_socket_folder = false;
  std::string
      plugin;  // for NCCL_PROFILER_PLUGIN: the file's name if the loader finds it, else path
};

/// Looks at some ten paths and the loader's cache below `root` (for tests; empty: the machine's).
Node look_at_node(const Settings& settings, const std::string& root = {});

struct Change {
  std::string name;
  std::optional<std::string> value;  // nothing: the variable goes
};

struct Decision {
  std::vector<Change> changes;
  std::string remark;  // for the log; empty: all is as it should be
};

/// A variable of the job's environment; null if it is not set.
using Environment = std::function<const char*(const char*)>;

/// `option` is what the user has asked of this very step. Without it holds what the step around it
/// had (its environment says), then the settings' default. A profiler of the user's own stays.
Decision decide(const Settings& settings, std::optional<Choice> option, const Node& node,
                const Environment& environment);

}  // namespace ncclscope::slurm
