// SPDX-License-Identifier: Apache-2.0
#include "topology/prerequisites.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

namespace ncclscope::topology {
namespace {

constexpr std::uint64_t kMiB = 1024 * 1024;
constexpr std::uint64_t kDockersShm = 64 * kMiB;
constexpr std::uint64_t kEnoughShm = 1024 * kMiB;
constexpr std::uint64_t kEnoughLocked = 1024 * kMiB;

std::string mebibytes(std::uint64_t bytes) {
  return std::to_string(bytes / kMiB) + " MiB";
}

/// "5.15.0-105-generic" is at least major.minor.
bool kernel_at_least(const std::string& release, long major, long minor) {
  char* rest = nullptr;
  const long first = std::strtol(release.c_str(), &rest, 10);
  const long second = *rest == '.' ? std::strtol(rest + 1, nullptr, 10) : 0;
  return first > major || (first == major && second >= minor);
}

// ---- access control services --------------------------------------------------------------------

constexpr std::size_t kExtendedConfig = 0x100;

std::uint32_t word(const std::string& config, std::size_t at) {
  std::uint32_t value = 0;
  if (at + sizeof(value) <= config.size()) std::memcpy(&value, config.data() + at, sizeof(value));
  return value;  // configuration space is little-endian, as are all machines with NCCL
}

/// The control register of a bridge's access control services; 0 where it has none, empty where it
/// cannot be read.
std::optional<unsigned> access_control(const std::string& config) {
  constexpr std::uint32_t kAccessControl = 0x000d;
  constexpr int kMaxCapabilities = 96;
  if (config.size() < kExtendedConfig + 4) return {};
  std::size_t at = kExtendedConfig;
  for (int i = 0; i < kMaxCapabilities && at >= kExtendedConfig; ++i) {
    const std::uint32_t header = word(config, at);
    if (header == 0 || header == 0xffffffff) break;
    if ((header & 0xffff) == kAccessControl) return word(config, at + 4) >> 16;
    at = (header >> 20) & 0xffc;
  }
  return 0U;
}

std::vector<int> bridges_above(const Machine& machine, int device) {
  std::vector<int> bridges;
  for (int above = machine.parent(device); above >= 0; above = machine.parent(above))
    bridges.push_back(above);
  return bridges;
}

/// Bridges below the common one, on both sides: those where traffic between the two turns round.
void add_turning_points(const Machine& machine, int a, int b, std::set<int>& points) {
  const std::vector<int> over_a = bridges_above(machine, a), over_b = bridges_above(machine, b);
  for (const auto& [side, other] : {std::pair(&over_a, &over_b), std::pair(&over_b, &over_a)}) {
    for (const int bridge : *side) {
      if (std::find(other->begin(), other->end(), bridge) != other->end()) break;
      points.insert(bridge);
    }
  }
}

}  // namespace

Findings check_gpudirect(const Machine& machine, const Roots& roots) {
  if (machine.gpus.empty() || !machine.has_rdma()) return {};
  Finding f{"gpudirect", Level::kOk, "node", "", "", ""};
  const std::string driver = roots.proc.text("/driver/nvidia/version").value_or("");
  const std::string kernel = roots.proc.text("/sys/kernel/osrelease").value_or("");
  for (const char* module :
       {"/module/nvidia_peermem/version", "/kernel/mm/memory_peers/nv_mem/version",
        "/kernel/mm/memory_peers/nv_mem_nc/version"}) {
    if (!roots.sys.exists(module)) continue;
    f.reason = "NICs can reach the GPUs' memory: nvidia-peermem is loaded";
    f.evidence = std::string("/sys") + module;
    return {f};
  }
  if (driver.empty()) {
    f.level = Level::kUnknown;
    f.reason = "whether NICs can reach the GPUs' memory is not known: no NVIDIA driver is loaded";
    f.evidence = "/proc/driver/nvidia/version cannot be read";
    f.fix = "run this on the node, with the driver loaded";
    return {f};
  }
  const bool open = driver.find("Open Kernel Module") != std::string::npos;
  f.evidence = driver.substr(0, driver.find('\n')) + "; kernel " + kernel +
               "; no nvidia_peermem in /sys/module";
  if (open && kernel_at_least(kernel, 5, 12)) {
    f.reason =
        "NICs can reach the GPUs' memory through dma-buf: open kernel module, Linux 5.12 or "
        "later";
    return {f};
  }
  f.level = Level::kProblem;
  f.reason =
      "GPUDirect RDMA cannot work: nvidia-peermem is not loaded, and dma-buf needs the open "
      "kernel module and Linux 5.12: data goes through the CPU's memory";
  f.fix =
      "modprobe nvidia-peermem (and load it at boot), or install the driver's open kernel "
      "modules";
  return {f};
}

Findings check_access_control(const Machine& machine, const Paths& paths, const Roots& roots) {
  if (machine.virtualised()) return {};
  std::set<int> points;
  const auto near = [](Path path) {
    return path.type == PathType::kPix || path.type == PathType::kPxb;
  };
  for (std::size_t g = 0; g < machine.gpus.size(); ++g) {
    for (std::size_t o = g + 1; o < machine.gpus.size(); ++o)
      if (near(paths.gpu_gpu(g, o)))
        add_turning_points(machine, machine.gpus[g].pci, machine.gpus[o].pci, points);
    for (std::size_t n = 0; n < machine.nics.size(); ++n)
      if (machine.nics[n].rdma && machine.nics[n].pci >= 0 && near(paths.gpu_nic(g, n)))
        add_turning_points(machine, machine.gpus[g].pci, machine.nics[n].pci, points);
  }
  if (points.empty()) return {};
  constexpr unsigned kRequestRedirect = 1U << 2, kCompletionRedirect = 1U << 3;
  std::vector<std::string> redirecting;
  std::size_t unread = 0;
  for (const int bridge : points) {
    const PciDevice& d = *machine.device(bridge);
    const std::optional<unsigned> control =
        access_control(roots.sys.bytes(d.path + "/config").value_or(""));
    if (!control) {
      ++unread;
    } else if ((*control & (kRequestRedirect | kCompletionRedirect)) != 0) {
      redirecting.push_back(d.address);
    }
  }
  if (!redirecting.empty()) {
    std::string list;
    for (std::size_t i = 0; i < redirecting.size() && i < 8; ++i)
      list += (i == 0 ? "" : ", ") + redirecting[i];
    if (redirecting.size() > 8) list += ", ...";
    return {
        {"acs", Level::kProblem, "node",
         "PCIe access control sends traffic between near GPUs and NICs up to the CPU: about "
         "half the bandwidth, or hangs with an IOMMU",
         std::to_string(redirecting.size()) + " bridges redirect: " + list,
         "turn ACS off in the firmware settings, or setpci -s BRIDGE ECAP_ACS+6.w=0000 for each "
         "at boot"}};
  }
  if (unread > 0)
    return {{"acs", Level::kUnknown, "node",
             "whether PCIe access control redirects traffic between GPUs and NICs can only be seen "
             "by root",
             std::to_string(unread) + " of " + std::to_string(points.size()) +
                 " bridges: extended configuration space cannot be read",
             "run as root"}};
  return {{"acs", Level::kOk, "node",
           "PCIe access control redirects nothing between near GPUs and NICs",
           std::to_string(points.size()) + " bridges", ""}};
}

Findings check_iommu(const Machine& machine, const Roots& roots) {
  if (machine.virtualised() || machine.gpus.empty()) return {};
  std::vector<std::string> translated;
  std::size_t unknown = 0;
  for (const Gpu& gpu : machine.gpus) {
    const PciDevice& d = *machine.device(gpu.pci);
    const std::string group = d.path + "/iommu_group";
    if (!roots.sys.exists(group)) continue;
    const std::optional<std::string> type = roots.sys.text(group + "/type");
    if (!type) {
      ++unknown;
    } else if (type->compare(0, 3, "DMA") == 0) {
      translated.push_back(d.address + " (" + *type + ")");
    }
  }
  if (!translated.empty())
    return {{"iommu", Level::kWarning, "node",
             "the IOMMU translates the GPUs' addresses: traffic between devices may go through it",
             "/sys/bus/pci/devices/*/iommu_group/type: " + translated.front() +
                 (translated.size() > 1 ? " and " + std::to_string(translated.size() - 1) + " more"
                                        : ""),
             "boot with iommu=pt, or turn the IOMMU off on nodes that host no virtual machines"}};
  if (unknown > 0)
    return {{"iommu", Level::kUnknown, "node", "the IOMMU's mode cannot be read",
             "/sys/bus/pci/devices/*/iommu_group/type", "run as root"}};
  return {{"iommu", Level::kOk, "node", "the IOMMU is off or passes the GPUs' addresses through",
           "/sys/bus/pci/devices/*/iommu_group/type", ""}};
}

ProcessLimits limits_of_this_process() {
  ProcessLimits limits;
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0)
    limits.shm_bytes = std::uint64_t{shm.f_blocks} * std::uint64_t{shm.f_frsize};
  struct rlimit locked {};
  if (::getrlimit(RLIMIT_MEMLOCK, &locked) == 0)
    limits.memlock_bytes = locked.rlim_cur == RLIM_INFINITY
                               ? std::numeric_limits<std::uint64_t>::max()
                               : std::uint64_t{locked.rlim_cur};
  limits.open_error = [](const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return errno;
    ::close(fd);
    return 0;
  };
  return limits;
}

Findings check_shared_memory(const Machine& machine, const ProcessLimits& limits) {
  if (!limits.shm_bytes)
    return {{"shm", Level::kProblem, "/dev/shm",
             "there is no /dev/shm: NCCL cannot share memory between processes", "statvfs fails",
             "mount a tmpfs at /dev/shm (containers: --shm-size)"}};
  const std::uint64_t bytes = *limits.shm_bytes;
  if (bytes >= kEnoughShm || (machine.gpus.size() < 2 && bytes > kDockersShm))
    return {{"shm", Level::kOk, "/dev/shm", mebibytes(bytes), "statvfs", ""}};
  return {{"shm", bytes <= kDockersShm ? Level::kProblem : Level::kWarning, "/dev/shm",
           "only " + mebibytes(bytes) +
               ": NCCL and data loaders may run out of it (\"No space left "
               "on device\")",
           "statvfs",
           "containers: --shm-size=1g or more, or --ipc=host; Kubernetes: an emptyDir "
           "with medium Memory at /dev/shm"}};
}

Findings check_locked_memory(const Machine& machine, const ProcessLimits& limits) {
  if (!machine.has_rdma()) return {};
  if (!limits.memlock_bytes)
    return {{"memlock", Level::kUnknown, "process", "the limit of locked memory cannot be read",
             "getrlimit fails", ""}};
  const std::uint64_t bytes = *limits.memlock_bytes;
  if (bytes == std::numeric_limits<std::uint64_t>::max())
    return {{"memlock", Level::kOk, "process", "locked memory is unlimited", "RLIMIT_MEMLOCK", ""}};
  return {{"memlock", bytes < kEnoughLocked ? Level::kProblem : Level::kWarning, "process",
           "locked memory is limited to " + mebibytes(bytes) +
               ": RDMA locks what it registers, and fails beyond",
           "RLIMIT_MEMLOCK of this process",
           "unlimited: SLURM PropagateResourceLimitsExcept=MEMLOCK and LimitMEMLOCK=infinity in "
           "slurmd's unit; containers: --ulimit memlock=-1"}};
}

Findings check_devices(const Machine& machine, const Roots& roots, const ProcessLimits& limits) {
  Findings findings;
  std::size_t usable = 0, known = 0;
  for (std::size_t g = 0; g < machine.gpus.size(); ++g) {
    if (machine.gpus[g].minor < 0) continue;
    ++known;
    const std::string path = "/dev/nvidia" + std::to_string(machine.gpus[g].minor);
    const int error = limits.open_error(path);
    usable += error == 0 ? 1 : 0;
    if (error == 0 || error == ENOENT) continue;  // not given to this container
    findings.push_back({"devices", Level::kWarning, "GPU" + std::to_string(g),
                        "its device file is there but cannot be opened: the control group or the "
                        "file's mode forbids it",
                        path + ": " + std::strerror(error),  // NOLINT(concurrency-mt-unsafe)
                        "ask for the GPU (SLURM --gres, Kubernetes resource limits)"});
  }
  for (const std::string& name : roots.sys.names("/class/infiniband_verbs")) {
    const std::string device =
        roots.sys.text("/class/infiniband_verbs/" + name + "/ibdev").value_or("");
    if (device.empty()) continue;
    ++known;
    const std::string path = "/dev/infiniband/" + name;
    const int error = limits.open_error(path);
    usable += error == 0 ? 1 : 0;
    if (error == 0) continue;
    findings.push_back(
        {"devices", Level::kProblem, device,
         "this process cannot open the RDMA device: NCCL takes sockets instead",
         path + ": " + std::strerror(error),  // NOLINT(concurrency-mt-unsafe)
         error == ENOENT ? "pass it into the container (--device=/dev/infiniband, or the RDMA "
                           "device plugin)"
                         : "allow it in the control group (SLURM cgroup.conf, --device), or mode "
                           "0666 by udev"});
  }
  if (findings.empty() && known > 0)
    findings.push_back({"devices", Level::kOk, "process",
                        std::to_string(usable) + " device files of GPUs and RDMA devices can be "
                                                 "opened",
                        "/dev/nvidia*, /dev/infiniband/uverbs*", ""});
  return findings;
}

}  // namespace ncclscope::topology
