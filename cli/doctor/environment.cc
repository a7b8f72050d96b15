// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/environment.h"

#include <pwd.h>
#include <unistd.h>

#include <vector>

#include "topology/file_tree.h"

namespace ncclscope::cli {

topology::Settings read_settings(const std::string& root, topology::Findings& findings) {
  std::vector<std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    environment.emplace_back(*entry);
  topology::Settings settings = topology::settings_of(environment);
  std::string user_file;
  if (const auto named = settings.find("NCCL_CONF_FILE");
      named != settings.end() && !named->second.value.empty()) {
    user_file = named->second.value;
  } else {
    // NCCL asks the password database, not $HOME.
    const passwd* user = ::getpwuid(::getuid());  // NOLINT(concurrency-mt-unsafe): one thread
    if (user != nullptr && user->pw_dir != nullptr)
      user_file = std::string(user->pw_dir) + "/.nccl.conf";
  }
  const topology::FileTree files(root);
  for (const std::string& name : {user_file, std::string("/etc/nccl.conf")}) {
    if (name.empty()) continue;
    if (const auto text = files.text(name)) {
      topology::append(findings, topology::add_conf_file(settings, name, *text));
    }
  }
  return settings;
}

}  // namespace ncclscope::cli
