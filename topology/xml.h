// SPDX-License-Identifier: Apache-2.0
//
// NCCL's topology file: read as strictly as NCCL's own small parser does (which is no general XML
// parser), written so that it can be read, and checked against the machine.
//   The text may be anything: every limit of NCCL's is one here, and nesting is bounded.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "topology/finding.h"
#include "topology/machine.h"
#include "topology/paths.h"

namespace ncclscope::topology {

struct XmlElement {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;
  std::vector<XmlElement> children;
  std::size_t line = 0;

  /// Empty if there is none.
  [[nodiscard]] std::string_view attribute(std::string_view wanted) const;
  [[nodiscard]] bool has(std::string_view wanted) const;
};

struct XmlDocument {
  XmlElement root;
  std::size_t elements = 0;
  std::string error;                  // "line 3: ...", empty if NCCL would read it
  std::vector<std::string> warnings;  // what NCCL drops silently
};
[[nodiscard]] XmlDocument parse_xml(std::string_view text);
[[nodiscard]] std::string write_xml(const XmlElement& root);

/// What NCCL would make of this file on this machine.
[[nodiscard]] Findings check_topology_file(const std::string& name, std::string_view text,
                                           const Machine& machine, const Paths& paths);

}  // namespace ncclscope::topology
