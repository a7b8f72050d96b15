// SPDX-License-Identifier: Apache-2.0
#include "topology/matrix.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <sstream>

namespace ncclscope::topology {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string aligned(const Rows& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string gpu_name(std::size_t i) {
  return "GPU" + std::to_string(i);
}
std::string nic_name(std::size_t i) {
  return "NIC" + std::to_string(i);
}

struct Cells {
  std::function<std::string(std::size_t, std::size_t)> gpu_gpu, gpu_nic, nic_nic;
};

Rows matrix(std::size_t gpus, std::size_t nics, const Cells& cells) {
  Rows rows(1, {""});
  for (std::size_t g = 0; g < gpus; ++g) rows[0].push_back(gpu_name(g));
  for (std::size_t n = 0; n < nics; ++n) rows[0].push_back(nic_name(n));
  for (std::size_t g = 0; g < gpus; ++g) {
    rows.push_back({gpu_name(g)});
    for (std::size_t o = 0; o < gpus; ++o) rows.back().push_back(cells.gpu_gpu(g, o));
    for (std::size_t n = 0; n < nics; ++n) rows.back().push_back(cells.gpu_nic(g, n));
  }
  for (std::size_t n = 0; n < nics; ++n) {
    rows.push_back({nic_name(n)});
    for (std::size_t g = 0; g < gpus; ++g) rows.back().push_back(cells.gpu_nic(g, n));
    for (std::size_t o = 0; o < nics; ++o) rows.back().push_back(cells.nic_nic(n, o));
  }
  return rows;
}

std::string legend(const Machine& machine) {
  std::string text;
  for (std::size_t n = 0; n < machine.nics.size(); ++n)
    text += "  " + nic_name(n) + ": " + machine.nics[n].name + "\n";
  return text.empty() ? text : "\nNIC Legend:\n\n" + text;
}

/// Cells of a line, without the escape sequences with which nvidia-smi underlines its header.
std::vector<std::string> cells_of(const std::string& line) {
  std::string plain;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      while (i < line.size() && line[i] != 'm') ++i;
    } else {
      plain += line[i];
    }
  }
  std::vector<std::string> cells;
  std::istringstream words(plain);
  for (std::string word; words >> word;) cells.push_back(word);
  return cells;
}

/// The number behind `prefix`, -1 if the cell is something else.
int numbered(const std::string& cell, std::string_view prefix) {
  if (cell.compare(0, prefix.size(), prefix) != 0 || cell.size() == prefix.size() ||
      cell.size() > prefix.size() + 4)
    return -1;
  int value = 0;
  for (std::size_t i = prefix.size(); i < cell.size(); ++i) {
    if (cell[i] < '0' || cell[i] > '9') return -1;
    value = value * 10 + (cell[i] - '0');
  }
  return value;
}

struct SmiMatrix {
  std::vector<std::string> columns;              // GPU0, GPU1, ..., NIC0 ...
  std::vector<std::vector<std::string>> of_gpu;  // cells of the rows GPU0, GPU1, ...
};

}  // namespace

std::string smi_matrix(const Machine& machine, const Paths& paths) {
  Rows rows = matrix(machine.gpus.size(), machine.nics.size(),
                     {[&](std::size_t a, std::size_t b) { return paths.smi_gpu_gpu(a, b); },
                      [&](std::size_t g, std::size_t n) { return paths.smi_gpu_nic(g, n); },
                      [&](std::size_t a, std::size_t b) { return paths.smi_nic_nic(a, b); }});
  if (machine.gpus.empty()) return aligned(rows) + legend(machine);
  rows[0].insert(rows[0].end(), {"CPU Affinity", "NUMA Affinity"});
  for (std::size_t g = 0; g < machine.gpus.size(); ++g) {
    const int node = machine.device(machine.gpus[g].pci)->numa_node;
    const auto at = std::find_if(machine.numa.begin(), machine.numa.end(),
                                 [&](const NumaNode& n) { return n.id == node; });
    const bool there = at != machine.numa.end();
    rows[g + 1].push_back(there ? at->cpus : "N/A");
    rows[g + 1].push_back(there ? std::to_string(node) : "N/A");
  }
  return aligned(rows) + legend(machine);
}

std::string nccl_matrix(const Machine& machine, const Paths& paths) {
  const auto grade = [](Path path) {
    return path.type == PathType::kLoc ? std::string("X") : std::string(path_name(path.type));
  };
  return aligned(
      matrix(machine.gpus.size(), machine.nics.size(),
             {[&](std::size_t a, std::size_t b) { return grade(paths.gpu_gpu(a, b)); },
              [&](std::size_t g, std::size_t n) { return grade(paths.gpu_nic(g, n)); },
              [&](std::size_t a, std::size_t b) { return grade(paths.nic_nic(a, b)); }}));
}

SmiText add_nvidia_smi(Machine& machine, std::string_view text) {
  SmiText result;
  SmiMatrix found;
  std::vector<int> c2c_links(machine.gpus.size(), 0);
  std::vector<double> c2c_megabytes(machine.gpus.size(), 0);
  std::size_t c2c_gpu = machine.gpus.size();
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> cells = cells_of(line);
    if (cells.empty()) continue;
    if (found.columns.empty() && cells[0] == "GPU0" &&
        (cells.size() == 1 || cells[1] == "GPU1" || cells[1] == "NIC0" || cells[1] == "CPU" ||
         cells[1].compare(0, 4, "mlx5") == 0)) {
      for (const std::string& cell : cells) {
        if (cell == "CPU") break;
        found.columns.push_back(cell);
      }
      continue;
    }
    if (cells[0] == "GPU" && cells.size() > 1) {  // "GPU 0: NVIDIA GH200 480GB (UUID: ...)"
      const std::string number = cells[1].substr(0, cells[1].find(':'));
      const int index = numbered(number, "");
      c2c_gpu = index < 0 ? machine.gpus.size() : static_cast<std::size_t>(index);
      continue;
    }
    if (cells[0] == "C2C" && cells.size() >= 5 && c2c_gpu < machine.gpus.size()) {
      const double gigabytes = std::strtod(cells[3].c_str(), nullptr);
      if (gigabytes > 0 && gigabytes < 1e4) {
        ++c2c_links[c2c_gpu];
        c2c_megabytes[c2c_gpu] = gigabytes * 1000;
      }
      continue;
    }
    const int row = numbered(cells[0], "GPU");
    if (row < 0 || static_cast<std::size_t>(row) != found.of_gpu.size() ||
        cells.size() <= found.columns.size() || found.columns.empty())
      continue;
    found.of_gpu.emplace_back(
        cells.begin() + 1, cells.begin() + 1 + static_cast<std::ptrdiff_t>(found.columns.size()));
  }

  const bool c2c = std::any_of(c2c_links.begin(), c2c_links.end(), [](int n) { return n > 0; });
  if (found.of_gpu.empty() && !c2c) {
    result.error = "no matrix of nvidia-smi topo -m and no links of nvidia-smi c2c -s in the text";
    return result;
  }
  if (!found.of_gpu.empty() && found.of_gpu.size() != machine.gpus.size()) {
    result.error = "nvidia-smi lists " + std::to_string(found.of_gpu.size()) + " GPUs, sysfs has " +
                   std::to_string(machine.gpus.size());
    return result;
  }
  for (std::size_t g = 0; g < machine.gpus.size(); ++g) {
    machine.gpus[g].c2c_links = c2c_links[g];
    machine.gpus[g].c2c_megabytes = c2c_megabytes[g];
  }
  if (found.of_gpu.empty()) return result;

  machine.nvlinks_known = true;
  for (std::size_t g = 0; g < machine.gpus.size(); ++g) {
    Gpu& gpu = machine.gpus[g];
    gpu.nvlinks.assign(machine.gpus.size(), 0);
    for (std::size_t c = 0; c < found.columns.size(); ++c) {
      const int other = numbered(found.columns[c], "GPU");
      const int links = numbered(found.of_gpu[g][c], "NV");
      if (other >= 0 && static_cast<std::size_t>(other) < gpu.nvlinks.size() && links > 0)
        gpu.nvlinks[static_cast<std::size_t>(other)] = links;
    }
  }
  const Paths paths(machine);
  for (std::size_t g = 0; g < machine.gpus.size(); ++g) {
    for (std::size_t c = 0; c < found.columns.size(); ++c) {
      const std::string& cell = found.of_gpu[g][c];
      const int gpu = numbered(found.columns[c], "GPU"), nic = numbered(found.columns[c], "NIC");
      std::string ours;
      if (gpu >= 0 && static_cast<std::size_t>(gpu) < machine.gpus.size())
        ours = paths.smi_gpu_gpu(g, static_cast<std::size_t>(gpu));
      if (nic >= 0 && static_cast<std::size_t>(nic) < machine.nics.size())
        ours = paths.smi_gpu_nic(g, static_cast<std::size_t>(nic));
      if (ours.empty() || ours == cell) continue;
      result.differences.push_back(gpu_name(g) + "-" + found.columns[c] + ": nvidia-smi " + cell +
                                   ", sysfs " + ours);
    }
  }
  return result;
}

}  // namespace ncclscope::topology
