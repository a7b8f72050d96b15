// SPDX-License-Identifier: Apache-2.0
#include "agent/identity/rdma_ports.h"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace ncclscope::agent {

std::uint64_t active_rdma_ports(const std::string& sysfs_root) {
  namespace fs = std::filesystem;
  std::uint64_t active = 0;
  std::error_code error;
  for (fs::directory_iterator device(sysfs_root + "/class/infiniband", error), end;
       !error && device != end; device.increment(error)) {
    std::error_code no_ports;
    for (fs::directory_iterator port(device->path() / "ports", no_ports); !no_ports && port != end;
         port.increment(no_ports)) {
      std::string state;  // "4: ACTIVE"
      std::ifstream file(port->path() / "state");
      if (std::getline(file, state) && state.find("ACTIVE") != std::string::npos) ++active;
    }
  }
  return active;
}

}  // namespace ncclscope::agent
