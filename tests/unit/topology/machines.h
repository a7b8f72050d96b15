// SPDX-License-Identifier: Apache-2.0
//
// The machines of tests/data/topology, as topology/ reads them, and what was written of them by
// hand.
#pragma once

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "topology/machine.h"
#include "topology/matrix.h"

namespace ncclscope::topology {

inline const std::vector<std::string>& machine_names() {
  static const std::vector<std::string> names{
      "rail8", "pcie4",      "onesided", "flatvm",    "switchvm", "mig",   "nonic",
      "grace", "downgraded", "roce",     "multiport", "broadcom", "vmbus", "bond"};
  return names;
}

inline std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline Roots roots_of(const std::string& name) {
  const std::string root = std::string(NCCLSCOPE_MACHINES) + "/" + name;
  return {FileTree(root + "/sys"), FileTree(root + "/proc")};
}

inline Machine machine_of(const std::string& name) {
  Machine machine = read_machine(roots_of(name));
  const std::string smi = file_text(std::string(NCCLSCOPE_MACHINE_DATA) + "/" + name + ".smi");
  if (!smi.empty()) add_nvidia_smi(machine, smi);
  return machine;
}

/// A text's words by single blanks, empty lines left out.
inline std::string plain(const std::string& text) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string row;
    for (std::string word; words >> word;) row += (row.empty() ? "" : " ") + word;
    if (!row.empty()) result += row + "\n";
  }
  return result;
}

/// Sections "nvidia-smi", "nccl" and "findings" of NAME.expected.
inline std::map<std::string, std::string> expected_of(const std::string& name) {
  std::istringstream lines(
      file_text(std::string(NCCLSCOPE_MACHINE_DATA) + "/" + name + ".expected"));
  std::map<std::string, std::string> sections;
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line == "nvidia-smi" || line == "nccl" || line == "findings") {
      section = line;
    } else if (!line.empty()) {
      sections[section] += line + "\n";
    }
  }
  return sections;
}

}  // namespace ncclscope::topology
