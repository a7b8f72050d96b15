// SPDX-License-Identifier: Apache-2.0
#include "topology/machine.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <utility>

namespace ncclscope::topology {
namespace {

constexpr std::uint32_t kNvidia = 0x10de;

std::uint32_t hex(const std::optional<std::string>& text) {
  std::uint32_t value = 0;
  if (text && text->size() > 2 && text->compare(0, 2, "0x") == 0)
    std::from_chars(text->data() + 2, text->data() + text->size(), value, 16);
  return value;
}

int integer(std::string_view text, int otherwise) {
  int value = otherwise;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? value : otherwise;
}

/// The number a text begins with; 0 if none.
double leading_number(std::string_view text) {
  const std::string copy(text.substr(0, 32));
  const double value = std::strtod(copy.c_str(), nullptr);
  return value > 0 && value < 1e9 ? value : 0;
}

/// "4: ACTIVE" -> "ACTIVE"
std::string after_colon(const std::optional<std::string>& text) {
  if (!text) return {};
  const std::size_t colon = text->find(": ");
  return colon == std::string::npos ? *text : text->substr(colon + 2);
}

/// The value after "name<white space>:" on a line of its own.
std::string field(std::string_view text, std::string_view name) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.substr(0, name.size()) != name) continue;
    const std::size_t colon = line.find_first_not_of(" \t", name.size());
    if (colon == std::string_view::npos || line[colon] != ':') continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string_view::npos ? "" : std::string(line.substr(value));
  }
  return {};
}

/// Models of which NCCL's figures depend on the compute capability, by PCI device id.
int capability_of(std::uint32_t device) {
  constexpr std::pair<std::uint32_t, int> kKnown[] = {
      {0x1db1, 70}, {0x1db5, 70}, {0x1eb8, 75},  {0x20b0, 80}, {0x20b2, 80}, {0x20b5, 80},
      {0x20f1, 80}, {0x2235, 86}, {0x26b9, 89},  {0x27b8, 89}, {0x2330, 90}, {0x2331, 90},
      {0x2335, 90}, {0x2342, 90}, {0x2901, 100}, {0x2941, 100}};
  for (const auto& [id, capability] : kKnown)
    if (id == device) return capability;
  return 0;
}

/// mlx5_2 before mlx5_10.
bool by_number(const std::string& a, const std::string& b) {
  const auto stem = [](const std::string& name) { return name.find_last_not_of("0123456789") + 1; };
  if (a.compare(0, stem(a), b, 0, stem(b)) != 0) return a < b;
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

class Reader {
 public:
  explicit Reader(const Roots& roots) : sys_(roots.sys), proc_(roots.proc) {}

  Machine read() {
    read_devices();
    read_gpus();
    read_interfaces();
    read_nics();
    read_numa();
    read_cpu();
    const std::string vendor = sys_.text("/class/dmi/id/sys_vendor").value_or("");
    const std::string name = sys_.text("/class/dmi/id/product_name").value_or("");
    machine_.product = vendor + (vendor.empty() || name.empty() ? "" : " ") + name;
    return std::move(machine_);
  }

 private:
  void read_devices() {
    for (const std::string& address : sys_.names("/bus/pci/devices")) {
      const std::optional<std::string> path = sys_.real("/bus/pci/devices/" + address);
      if (!path || path->compare(0, 9, "/devices/") != 0) continue;
      PciDevice d;
      d.address = address;
      d.path = *path;
      d.class_code = hex(sys_.text(*path + "/class"));
      d.vendor = hex(sys_.text(*path + "/vendor"));
      d.device = hex(sys_.text(*path + "/device"));
      d.subsystem_vendor = hex(sys_.text(*path + "/subsystem_vendor"));
      d.subsystem_device = hex(sys_.text(*path + "/subsystem_device"));
      d.numa_text = sys_.text(*path + "/numa_node").value_or("");
      d.numa_node = integer(d.numa_text, -1);
      d.now = link(*path, "current");
      d.maximum = link(*path, "max");
      d.virtual_function = sys_.exists(*path + "/physfn");
      machine_.devices.push_back(std::move(d));
    }
    std::sort(machine_.devices.begin(), machine_.devices.end(),
              [](const PciDevice& a, const PciDevice& b) { return a.address < b.address; });
  }

  LinkSpeed link(const std::string& path, const std::string& which) const {
    return parse_link_speed(sys_.text(path + "/" + which + "_link_speed").value_or(""),
                            sys_.text(path + "/" + which + "_link_width").value_or(""));
  }

  void read_gpus() {
    for (std::size_t i = 0; i < machine_.devices.size(); ++i) {
      const PciDevice& d = machine_.devices[i];
      if (d.vendor != kNvidia || (d.class_code >> 8 != 0x0300 && d.class_code >> 8 != 0x0302))
        continue;
      Gpu gpu;
      gpu.pci = static_cast<int>(i);
      gpu.capability = capability_of(d.device);
      const std::string about =
          proc_.text("/driver/nvidia/gpus/" + d.address + "/information").value_or("");
      gpu.model = field(about, "Model");
      gpu.minor = integer(field(about, "Device Minor"), -1);
      if (gpu.minor >= 0) {
        for (const std::string& entry :
             proc_.names("/driver/nvidia/capabilities/gpu" + std::to_string(gpu.minor) + "/mig"))
          gpu.mig_instances += entry.compare(0, 2, "gi") == 0 ? 1 : 0;
      }
      machine_.gpus.push_back(std::move(gpu));
    }
  }

  int device_of(const std::string& link) const {
    const std::optional<std::string> path = sys_.real(link);
    if (!path) return -1;
    return machine_.find_device(path->substr(path->rfind('/') + 1));
  }

  void read_interfaces() {
    for (const std::string& name : sys_.names("/class/net")) {
      const std::string path = "/class/net/" + name;
      const std::optional<std::string> type = sys_.text(path + "/type");
      if (!type) continue;  // /sys/class/net/bonding_masters is a file
      Interface i;
      i.name = name;
      i.pci = device_of(path + "/device");
      const std::string state = sys_.text(path + "/operstate").value_or("");
      i.loopback = *type == "772";
      i.up = state == "up" || (state == "unknown" && !i.loopback);
      i.megabits = leading_number(sys_.text(path + "/speed").value_or(""));
      if (const auto bond = sys_.real(path + "/master"); bond && sys_.exists(*bond + "/bonding"))
        i.bond = bond->substr(bond->rfind('/') + 1);
      const std::string members = sys_.text(path + "/bonding/slaves").value_or("");
      for (std::size_t begin = 0; begin < members.size();) {
        const std::size_t end = std::min(members.find(' ', begin), members.size());
        if (end > begin) i.members.push_back(members.substr(begin, end - begin));
        begin = end + 1;
      }
      machine_.interfaces.push_back(std::move(i));
    }
  }

  Port read_port(const std::string& path, int number) const {
    Port port;
    port.number = number;
    port.state = after_colon(sys_.text(path + "/state"));
    port.physical = after_colon(sys_.text(path + "/phys_state"));
    port.link_layer = sys_.text(path + "/link_layer").value_or("");
    port.rate_text = sys_.text(path + "/rate").value_or("");
    port.gigabits = leading_number(port.rate_text);
    for (const std::string& index : sys_.names(path + "/gid_attrs/types")) {
      // The kernel answers EINVAL for entries that are not in use.
      const std::optional<std::string> type = sys_.text(path + "/gid_attrs/types/" + index);
      if (!type) continue;
      port.gids_known = true;
      port.roce_v2 = port.roce_v2 || *type == "RoCE v2";
    }
    return port;
  }

  void read_nics() {
    std::vector<std::string> names = sys_.names("/class/infiniband");
    std::sort(names.begin(), names.end(), by_number);
    for (const std::string& name : names) {
      const std::string path = "/class/infiniband/" + name;
      Nic nic;
      nic.name = name;
      nic.rdma = true;
      nic.pci = device_of(path + "/device");
      for (const std::string& number : sys_.names(path + "/ports"))
        nic.ports.push_back(read_port(path + "/ports/" + number, integer(number, 0)));
      nic.interfaces = sys_.names(path + "/device/net");
      machine_.nics.push_back(std::move(nic));
    }
    if (!machine_.nics.empty()) return;
    for (const Interface& interface : machine_.interfaces) {
      if (interface.pci < 0) continue;
      Nic nic;
      nic.name = interface.name;
      nic.pci = interface.pci;
      Port port;
      port.state = interface.up ? "ACTIVE" : "DOWN";
      port.link_layer = "Ethernet";
      port.gigabits = interface.megabits / 1000;
      nic.ports.push_back(std::move(port));
      nic.interfaces = {interface.name};
      machine_.nics.push_back(std::move(nic));
    }
  }

  void read_numa() {
    for (const std::string& name : sys_.names("/devices/system/node")) {
      if (name.compare(0, 4, "node") != 0) continue;
      const int id = integer(std::string_view(name).substr(4), -1);
      if (id < 0) continue;
      const std::string path = "/devices/system/node/" + name;
      machine_.numa.push_back({id, sys_.text(path + "/cpulist").value_or(""),
                               sys_.text(path + "/cpumap").value_or("")});
    }
    std::sort(machine_.numa.begin(), machine_.numa.end(),
              [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  }

  void read_cpu() {
    const std::string about = proc_.text("/cpuinfo").value_or("");
    Cpu& cpu = machine_.cpu;
    cpu.vendor = field(about, "vendor_id");
    if (!cpu.vendor.empty()) {
      cpu.arch = "x86_64";
      cpu.family = integer(field(about, "cpu family"), 0);
      cpu.model = integer(field(about, "model"), 0);
      cpu.hypervisor =
          (" " + field(about, "flags") + " ").find(" hypervisor ") != std::string::npos;
    } else if (!field(about, "CPU implementer").empty()) {
      cpu.arch = "arm64";
    } else if (field(about, "cpu").compare(0, 5, "POWER") == 0) {
      cpu.arch = "ppc64";
    }
  }

  const FileTree& sys_;
  const FileTree& proc_;
  Machine machine_;
};

}  // namespace

bool Nic::active() const {
  return std::any_of(ports.begin(), ports.end(),
                     [](const Port& port) { return port.state == "ACTIVE"; });
}

double Nic::gigabits() const {
  double best = 0;
  for (const Port& port : ports)
    if (port.state == "ACTIVE") best = std::max(best, port.gigabits);
  return best;
}

int Machine::find_device(std::string_view address) const {
  const auto at = std::lower_bound(
      devices.begin(), devices.end(), address,
      [](const PciDevice& d, std::string_view wanted) { return d.address < wanted; });
  return at != devices.end() && at->address == address ? static_cast<int>(at - devices.begin())
                                                       : -1;
}

const PciDevice* Machine::device(int index) const {
  return index < 0 ? nullptr : &devices[static_cast<std::size_t>(index)];
}

int Machine::parent(int index) const {
  const PciDevice* d = device(index);
  if (d == nullptr) return -1;
  const std::string above = d->path.substr(0, d->path.rfind('/'));
  return find_device(above.substr(above.rfind('/') + 1));
}

bool Machine::has_rdma() const {
  return std::any_of(nics.begin(), nics.end(), [](const Nic& nic) { return nic.rdma; });
}

bool is_pci_address(std::string_view text) {
  if (text.size() != 12) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool right = i == 4 || i == 7 ? c == ':'
                       : i == 10        ? c == '.'
                                        : (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    if (!right) return false;
  }
  return true;
}

LinkSpeed parse_link_speed(std::string_view speed, std::string_view width) {
  LinkSpeed link;
  link.text = speed;
  link.gigatransfers = leading_number(speed);
  const int lanes = integer(width, 0);
  // 255 and 63 are what a link that is down or a bridge without one show.
  link.lanes = lanes > 0 && lanes <= 32 ? static_cast<unsigned>(lanes) : 0;
  return link;
}

Machine read_machine(const Roots& roots) {
  return Reader(roots).read();
}

}  // namespace ncclscope::topology
