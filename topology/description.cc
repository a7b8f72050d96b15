// SPDX-License-Identifier: Apache-2.0
#include "topology/description.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <sstream>

namespace ncclscope::topology {
namespace {

constexpr unsigned kMaxCpus = 8192;

std::optional<unsigned> whole_number(std::string_view text, unsigned most) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > most) return {};
  return value;
}

std::string speed_text(std::string_view number) {
  for (const char* known : {"2.5", "5", "8", "16", "32", "64"})
    if (number == known) return std::string(known) + (number == "2.5" ? "" : ".0") + " GT/s PCIe";
  return {};
}

class Reader {
 public:
  Description read(std::string_view text) {
    std::istringstream lines{std::string(text)};
    for (std::string line; std::getline(lines, line) && result_.error.empty();) {
      ++line_;
      if (const std::size_t comment = line.find('#'); comment != std::string::npos)
        line.resize(comment);
      take(line);
    }
    if (result_.error.empty() && result_.cpus.empty()) result_.error = "no line with a cpu";
    return std::move(result_);
  }

 private:
  void fail(const std::string& why) {
    result_.error = "line " + std::to_string(line_) + ": " + why;
  }

  void take(const std::string& line) {
    const std::size_t indent = line.find_first_not_of(' ');
    if (indent == std::string::npos || line.find_first_not_of(" \r") == std::string::npos) return;
    if (line[indent] == '\t') return fail("a tab: indent by blanks");
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    Part part;
    if (kind == "cpu") {
      part.kind = Kind::kCpu;
    } else if (kind == "switch") {
      part.kind = Kind::kSwitch;
    } else if (kind == "gpu") {
      part.kind = Kind::kGpu;
    } else if (kind == "nic") {
      part.kind = Kind::kNic;
    } else {
      return fail("'" + kind + "': wanted cpu, switch, gpu or nic");
    }
    for (std::string word; words >> word && result_.error.empty();) attribute(part, word);
    if (!result_.error.empty()) return;
    if (part.name.empty() && part.kind != Kind::kSwitch)
      return fail(part.kind == Kind::kCpu ? "a cpu needs the number of its NUMA node"
                                          : "a " + kind + " needs its PCI address");
    place(indent, std::move(part));
  }

  void attribute(Part& part, const std::string& word) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (equals == std::string::npos) {
      const bool right =
          part.kind == Kind::kCpu ? whole_number(word, 65535).has_value() : is_pci_address(word);
      if (!right)
        return fail("'" + word + "': wanted " +
                    (part.kind == Kind::kCpu ? "the number of a NUMA node"
                                             : "a PCI address such as 0000:3b:00.0"));
      part.name = word;
    } else if (key == "cpus" && part.kind == Kind::kCpu) {
      part.cpus = value;
      if (cpu_mask(value).empty()) fail("'" + word + "': wanted a list such as 0-47,96-143");
    } else if (key == "speed" && part.kind != Kind::kCpu) {
      part.speed = speed_text(value);
      if (part.speed.empty()) fail("'" + word + "': wanted GT/s per lane: 2.5, 5, 8, 16, 32 or 64");
    } else if (key == "width" && part.kind != Kind::kCpu) {
      const auto lanes = whole_number(value, 32);
      if (!lanes || *lanes == 0) return fail("'" + word + "': wanted 1 to 32 lanes");
      part.width = *lanes;
    } else {
      fail("'" + word + "' is not known here");
    }
  }

  /// Below the nearest line above that is indented less.
  void place(std::size_t indent, Part part) {
    while (!open_.empty() && open_.back().indent >= indent) open_.pop_back();
    const bool cpu = part.kind == Kind::kCpu;
    if (cpu != open_.empty())
      return fail(cpu ? "a cpu stands below something" : "this stands below no cpu");
    if (!cpu && open_.back().kind != Kind::kCpu && open_.back().kind != Kind::kSwitch)
      return fail("nothing can be below a GPU or NIC");
    std::vector<Part>* level = &result_.cpus;
    for (const Open& above : open_) level = &(*level)[above.index].below;
    open_.push_back({indent, part.kind, level->size()});
    level->push_back(std::move(part));
  }

  struct Open {
    std::size_t indent;
    Kind kind;
    std::size_t index;  // in the level above
  };
  Description result_;
  std::vector<Open> open_;
  std::size_t line_ = 0;
};

std::string speed_of(const LinkSpeed& link) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", link.gigatransfers);
  return link.gigatransfers > 0 && !speed_text(text.data()).empty() ? text.data() : "";
}

/// The tree of those devices of a machine that count, as lines.
class Describer {
 public:
  explicit Describer(const Machine& machine) : machine_(machine) {}

  std::string text() {
    for (std::size_t g = 0; g < machine_.gpus.size(); ++g) add(machine_.gpus[g].pci, "gpu");
    for (const Nic& nic : machine_.nics)
      if (nic.rdma && nic.pci >= 0 && machine_.device(nic.pci)->address.back() == '0')
        add(nic.pci, "nic");
    std::string result =
        "# What sysfs shows. Where a hypervisor hides switches, put those devices that share one\n"
        "# below it, as in:   switch speed=32 width=16\n";
    for (const auto& [node, parts] : cpus_) {
      result += "cpu " + std::to_string(std::max(node, 0)) + cpus_of(node) + "\n";
      lines(parts, 1, result);
    }
    return result;
  }

 private:
  struct Node {
    std::string line;
    std::map<std::string, Node> below;  // by address
  };
  using Level = std::map<std::string, Node>;

  std::string cpus_of(int node) const {
    for (const NumaNode& n : machine_.numa)
      if (n.id == std::max(node, 0) && !n.cpus.empty()) return " cpus=" + n.cpus;
    return "";
  }

  void add(int device, const std::string& kind) {
    std::vector<int> switches;  // from the top
    int above = machine_.parent(device);
    for (int lower = device; above >= 0;) {
      const int higher = machine_.parent(above);
      if (higher < 0) break;  // a root port
      lower = higher;
      switches.insert(switches.begin(), lower);
      above = machine_.parent(lower);
    }
    const int top = switches.empty() ? device : switches.front();
    Level* level = &cpus_[machine_.device(top)->numa_node];
    for (const int s : switches) level = &node(*level, s, "switch").below;
    node(*level, device, kind);
  }

  Node& node(Level& level, int index, const std::string& kind) const {
    const PciDevice& d = *machine_.device(index);
    Node& n = level[d.address];
    n.line = kind + " " + d.address;
    if (const std::string speed = speed_of(d.maximum); !speed.empty()) n.line += " speed=" + speed;
    if (d.maximum.lanes > 0) n.line += " width=" + std::to_string(d.maximum.lanes);
    return n;
  }

  static void lines(const Level& level, std::size_t depth, std::string& text) {
    for (const auto& [address, n] : level) {
      text += std::string(2 * depth, ' ') + n.line + "\n";
      lines(n.below, depth + 1, text);
    }
  }

  const Machine& machine_;
  std::map<int, Level> cpus_;  // by NUMA node
};

class FileWriter {
 public:
  explicit FileWriter(const Machine& machine) : machine_(machine) {}

  XmlElement cpu(const Part& part) {
    XmlElement e;
    e.name = "cpu";
    std::string affinity = cpu_mask(part.cpus);
    for (const NumaNode& n : machine_.numa)
      if (affinity.empty() && std::to_string(n.id) == part.name) affinity = n.cpumap;
    e.attributes = {{"numaid", part.name}};
    if (!affinity.empty()) e.attributes.emplace_back("affinity", affinity);
    const Cpu& cpu = machine_.cpu;
    if (!cpu.arch.empty()) e.attributes.emplace_back("arch", cpu.arch);
    if (!cpu.vendor.empty()) {
      e.attributes.emplace_back("vendor", cpu.vendor);
      e.attributes.emplace_back("familyid", std::to_string(cpu.family));
      e.attributes.emplace_back("modelid", std::to_string(cpu.model));
    }
    for (const Part& p : part.below) e.children.push_back(pci(p));
    return e;
  }

 private:
  XmlElement pci(const Part& part) {
    XmlElement e;
    e.name = "pci";
    std::string address = part.name;
    if (address.empty()) {
      std::array<char, 16> invented{};
      std::snprintf(invented.data(), invented.size(), "ffff:%02x:00.0", ++invented_ & 0xff);
      address = invented.data();
    }
    const PciDevice* device = machine_.device(machine_.find_device(address));
    const char* class_text = part.kind == Kind::kSwitch ? "0x060400"
                             : part.kind == Kind::kGpu  ? "0x030200"
                                                        : "0x020700";
    std::string speed = part.speed;
    unsigned width = part.width;
    if (device != nullptr && speed.empty()) speed = device->maximum.text;
    if (device != nullptr && width == 0) width = device->maximum.lanes;
    e.attributes = {{"busid", address}, {"class", class_text}};
    e.attributes.emplace_back("link_speed", speed.empty() ? "32.0 GT/s PCIe" : speed);
    e.attributes.emplace_back("link_width", std::to_string(width == 0 ? 16 : width));
    for (const Part& p : part.below) e.children.push_back(pci(p));
    return e;
  }

  const Machine& machine_;
  unsigned invented_ = 0;
};

}  // namespace

std::string cpu_mask(std::string_view list) {
  std::vector<std::uint32_t> groups;  // least significant first
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view part = list.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t dash = part.find('-');
    const auto first = whole_number(part.substr(0, dash), kMaxCpus - 1);
    const auto last =
        dash == std::string_view::npos ? first : whole_number(part.substr(dash + 1), kMaxCpus - 1);
    if (!first || !last || *first > *last) return {};
    groups.resize(std::max<std::size_t>(groups.size(), *last / 32 + 1));
    for (unsigned cpu = *first; cpu <= *last; ++cpu) groups[cpu / 32] |= 1U << (cpu % 32);
  }
  std::string text;
  for (std::size_t i = groups.size(); i-- > 0;) {
    std::array<char, 16> group{};
    std::snprintf(group.data(), group.size(), "%s%08x", text.empty() ? "" : ",", groups[i]);
    text += group.data();
  }
  return text;
}

Description parse_description(std::string_view text) {
  return Reader().read(text);
}

std::string describe(const Machine& machine) {
  return Describer(machine).text();
}

XmlElement topology_file(const Description& description, const Machine& machine) {
  XmlElement system;
  system.name = "system";
  system.attributes = {{"version", "1"}};
  FileWriter writer(machine);
  for (const Part& cpu : description.cpus) system.children.push_back(writer.cpu(cpu));
  return system;
}

}  // namespace ncclscope::topology
