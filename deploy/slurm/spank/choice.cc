// SPDX-License-Identifier: Apache-2.0
#include "choice.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>

namespace ncclscope::slurm {
namespace {

constexpr const char* kProfiler = "NCCL_PROFILER_PLUGIN";
constexpr const char* kMark = "NCCLSCOPE_SPANK";  // what has been decided for the step around
constexpr const char* kDisable = "NCCLSCOPE_DISABLE";
constexpr const char* kSocket = "NCCLSCOPE_SOCKET";
// In containers the library lies where few images have anything: a bind below a crowded folder
// makes Apptainer warn of the many mounts that it takes.
constexpr std::string_view kContainerFolder = "/opt/ncclscope";

/// Names a file that may stand in lists of binds and in fstab lines.
bool is_plain_path(std::string_view path) {
  constexpr std::string_view kOthers = "/._+-";
  return path.size() > 1 && path.front() == '/' && path.back() != '/' &&
         std::all_of(path.begin(), path.end(), [&](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  kOthers.find(c) != std::string_view::npos;
         });
}

std::string file_name(std::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));
}

std::string folder_of(std::string_view path) {
  return std::string(path.substr(0, path.rfind('/')));
}

bool is_library(std::string_view path) {
  const std::string name = file_name(path);
  return is_plain_path(path) && name.size() > 6 && name.compare(0, 3, "lib") == 0 &&
         name.compare(name.size() - 3, 3, ".so") == 0;
}

bool same_file(const std::string& a, const std::string& b) {
  struct stat first {};
  struct stat second {};
  return stat(a.c_str(), &first) == 0 && stat(b.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

/// Of a file of some 100 KiB; at most 16 MiB. Empty if it cannot be read.
std::string read_file(const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             std::fclose);
  std::string bytes;
  char block[16384];
  while (file != nullptr && bytes.size() < kMostBytes) {
    const std::size_t count = std::fread(block, 1, sizeof block, file.get());
    if (count == 0) break;
    bytes.append(block, count);
  }
  return bytes;
}

/// Paths of that name in the loader's cache, which keeps them as plain strings.
std::vector<std::string> cached_paths(const std::string& cache, const std::string& name) {
  const std::string bytes = read_file(cache);
  const std::string wanted = "/" + name + '\0';
  std::vector<std::string> paths;
  for (std::size_t at = bytes.find(wanted); at != std::string::npos;
       at = bytes.find(wanted, at + 1)) {
    const std::size_t before = bytes.rfind('\0', at);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    paths.push_back(bytes.substr(begin, at + wanted.size() - 1 - begin));
  }
  return paths;
}

/// Whether the loader finds this very file by its name alone, and no other one.
bool on_loader_path(const std::string& plugin, const std::string& root) {
  const std::string name = file_name(plugin);
  const std::vector<std::string> cached = cached_paths(root + "/etc/ld.so.cache", name);
  if (!cached.empty()) {
    return std::all_of(cached.begin(), cached.end(), [&](const std::string& path) {
      return same_file(root + path, root + plugin);
    });
  }
  for (const char* folder : {"/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/", "/lib64/",
                             "/usr/lib64/", "/lib/", "/usr/lib/"}) {
    if (same_file(root + folder + name, root + plugin)) return true;
  }
  return false;
}

/// The job's environment with the changes so far.
class Draft {
 public:
  explicit Draft(const Environment& environment) : environment_(environment) {}

  /// Empty if it is not set.
  [[nodiscard]] std::string get(const std::string& name) const {
    const auto changed = changes_.find(name);
    if (changed != changes_.end()) return changed->second.value_or("");
    const char* value = environment_(name.c_str());
    return value == nullptr ? "" : value;
  }
  [[nodiscard]] bool has(const std::string& name) const {
    const auto changed = changes_.find(name);
    return changed != changes_.end() ? changed->second.has_value()
                                     : environment_(name.c_str()) != nullptr;
  }
  void set(const std::string& name, const std::string& value) { changes_[name] = value; }
  void unset(const std::string& name) { changes_[name] = std::nullopt; }
  void unset_if(const std::string& name, std::string_view value) {
    if (has(name) && get(name) == value) unset(name);
  }
  void set_unless_there(const std::string& name, const std::string& value) {
    if (!has(name)) set(name, value);
  }

  /// What differs from the environment.
  [[nodiscard]] std::vector<Change> changes() const {
    std::vector<Change> result;
    for (const auto& [name, value] : changes_) {
      const char* old = environment_(name.c_str());
      if (value ? old == nullptr || *value != old : old != nullptr) result.push_back({name, value});
    }
    return result;
  }

 private:
  const Environment& environment_;
  std::map<std::string, std::optional<std::string>> changes_;
};

/// The list (commas) without the entries that are ours.
std::string without(const std::string& list, const std::vector<std::string>& ours) {
  std::string result;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string entry = list.substr(begin, end - begin);
    if (!entry.empty() && std::find(ours.begin(), ours.end(), entry) == ours.end())
      result += (result.empty() ? "" : ",") + entry;
    begin = end + 1;
  }
  return result;
}

std::string with(const std::string& list, const std::vector<std::string>& entries) {
  std::string result = list;
  for (const std::string& entry : entries) result += (result.empty() ? "" : ",") + entry;
  return result;
}

std::string socket_bind(const Settings& settings) {
  return settings.socket_folder + ":" + settings.socket_folder + ":ro";
}

std::string plugin_bind(const Settings& settings) {
  return folder_of(settings.plugin) + ":" + std::string(kContainerFolder) + ":ro";
}

std::string plugin_in_container(const Settings& settings) {
  return std::string(kContainerFolder) + "/" + file_name(settings.plugin);
}

bool is_ours(const Settings& settings, const std::string& profiler) {
  return profiler == settings.plugin || profiler == file_name(settings.plugin);
}

/// Takes back what an earlier decision has put into the environment that this step got.
void undo(const Settings& settings, Choice earlier, Draft& draft) {
  if (is_ours(settings, draft.get(kProfiler))) draft.unset(kProfiler);
  if (earlier == Choice::kOff) draft.unset_if(kDisable, "1");
  if (earlier == Choice::kFull) {
    draft.unset_if("NCCLSCOPE_DETAIL", "full");
    draft.unset_if("NCCLSCOPE_COST_SAMPLE", "0");
  }
  for (const char* program : {"APPTAINER", "SINGULARITY"}) {
    const std::string bind = std::string(program) + "_BIND";
    if (draft.has(bind)) {
      const std::string rest =
          without(draft.get(bind), {socket_bind(settings), plugin_bind(settings)});
      rest.empty() ? draft.unset(bind) : draft.set(bind, rest);
    }
    draft.unset_if(std::string(program) + "ENV_" + kProfiler, plugin_in_container(settings));
  }
}

/// Apptainer reads SINGULARITY_* only where the variable of its own name is missing, and warns
/// where the two differ: both get the same, beginning with what the user has.
void bind_into_containers(const Settings& settings, const Node& node, Draft& draft) {
  std::vector<std::string> binds{plugin_bind(settings)};
  // Apptainer does not start a container whose binds have no source.
  if (node.has_socket_folder) binds.push_back(socket_bind(settings));
  const std::string singularity = draft.get("SINGULARITY_BIND");
  const std::string apptainer =
      draft.has("APPTAINER_BIND") ? draft.get("APPTAINER_BIND") : singularity;
  draft.set("APPTAINER_BIND", with(apptainer, binds));
  draft.set("SINGULARITY_BIND", with(singularity.empty() ? apptainer : singularity, binds));
  for (const char* program : {"APPTAINERENV_", "SINGULARITYENV_"})
    draft.set_unless_there(std::string(program) + kProfiler, plugin_in_container(settings));
}

}  // namespace

std::optional<Choice> parse_choice(std::string_view text) {
  if (text == "off") return Choice::kOff;
  if (text == "on") return Choice::kOn;
  if (text == "full") return Choice::kFull;
  return std::nullopt;
}

const char* name_of(Choice choice) {
  return choice == Choice::kOff ? "off" : choice == Choice::kOn ? "on" : "full";
}

Settings parse_arguments(const std::vector<std::string_view>& arguments,
                         std::vector<std::string>& problems) {
  Settings settings;
  const auto complain = [&](std::string_view argument, const char* wanted) {
    problems.push_back("argument \"" + std::string(argument) + "\" in plugstack.conf: wanted " +
                       wanted);
  };
  for (const std::string_view argument : arguments) {
    const std::size_t equals = std::min(argument.find('='), argument.size());
    const std::string_view key = argument.substr(0, equals);
    const std::string_view value = argument.substr(std::min(equals + 1, argument.size()));
    if (key == "default") {
      const std::optional<Choice> choice = parse_choice(value);
      if (!choice) complain(argument, "default=off, default=on or default=full; taken as off");
      settings.choice = choice.value_or(Choice::kOff);
    } else if (key == "plugin") {
      if (is_library(value)) {
        settings.plugin = value;
      } else {
        complain(argument, "plugin=/absolute/path/lib….so of letters, digits and ._+-; ignored");
      }
    } else if (key == "socket_dir") {
      if (is_plain_path(value)) {
        settings.socket_folder = value;
      } else {
        complain(argument,
                 "socket_dir=/absolute/path of letters, digits and ._+-, without / at its end; "
                 "ignored");
      }
    } else if (key == "containers") {
      if (value == "on" || value == "off") {
        settings.containers = value == "on";
      } else {
        complain(argument, "containers=on or containers=off; ignored");
      }
    } else {
      complain(argument, "default=, plugin=, socket_dir= or containers=; ignored");
    }
  }
  return settings;
}

Node look_at_node(const Settings& settings, const std::string& root) {
  Node node;
  node.has_plugin = access((root + settings.plugin).c_str(), R_OK) == 0;
  struct stat folder {};
  node.has_socket_folder =
      stat((root + settings.socket_folder).c_str(), &folder) == 0 && S_ISDIR(folder.st_mode);
  if (node.has_plugin) {
    node.plugin =
        on_loader_path(settings.plugin, root) ? file_name(settings.plugin) : settings.plugin;
  }
  return node;
}

Decision decide(const Settings& settings, std::optional<Choice> option, const Node& node,
                const Environment& environment) {
  Draft draft(environment);
  const std::optional<Choice> earlier = parse_choice(draft.get(kMark));
  if (earlier) undo(settings, *earlier, draft);
  const Choice choice = option ? *option : earlier ? *earlier : settings.choice;
  Decision decision;
  if (option || earlier || choice != Choice::kOff) draft.set(kMark, name_of(choice));
  if (choice == Choice::kOff) {
    if (option || earlier) draft.set(kDisable, "1");
  } else if (draft.has(kProfiler)) {
    // The user's own: it is theirs to say whether ours runs too.
  } else if (!node.has_plugin) {
    decision.remark = settings.plugin + " cannot be read on this node; the job runs without it";
  } else {
    draft.set(kProfiler, node.plugin);
    const std::string socket = settings.socket_folder + "/agent.sock";
    if (settings.socket_folder != Settings{}.socket_folder) draft.set_unless_there(kSocket, socket);
    if (choice == Choice::kFull) {
      draft.set_unless_there("NCCLSCOPE_DETAIL", "full");
      draft.set_unless_there("NCCLSCOPE_COST_SAMPLE", "0");
    }
    if (settings.containers) bind_into_containers(settings, node, draft);
    if (!node.has_socket_folder) {
      decision.remark = settings.socket_folder +
                        " is not there: no agent on this node; the job runs all the same";
    }
  }
  decision.changes = draft.changes();
  return decision;
}

}  // namespace ncclscope::slurm
