// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/protocol.h"

#include <charconv>

namespace ncclscope::cli::probe {
namespace {

/// Takes the next word off the front and reads it as a number.
template <typename Number>
bool take(std::string_view& line, Number& out) {
  const Words words = split_word(line);
  line = words.rest;
  const char* end = words.first.data() + words.first.size();
  const auto [at, error] = std::from_chars(words.first.data(), end, out);
  return !words.first.empty() && error == std::errc{} && at == end;
}

int nibble(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Words split_word(std::string_view line) {
  const std::size_t blank = line.find(' ');
  if (blank == std::string_view::npos) return {line, {}};
  return {line.substr(0, blank), line.substr(blank + 1)};
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

std::optional<std::string> from_hex(std::string_view text) {
  std::string out;
  if (text.size() % 2 != 0) return {};
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = nibble(text[i]), low = nibble(text[i + 1]);
    if (high < 0 || low < 0) return {};
    out += static_cast<char>(high * 16 + low);
  }
  return out;
}

std::string start_line(const Start& start) {
  return "start " + std::to_string(start.first_rank) + " " + std::to_string(start.ranks) + " " +
         to_hex(start.id) + " " + plan_text(start.plan);
}

std::optional<Start> parse_start(std::string_view line) {
  Start start;
  const Words words = split_word(line);
  std::string_view rest = words.rest;
  if (words.first != "start" || !take(rest, start.first_rank) || !take(rest, start.ranks))
    return {};
  const Words id = split_word(rest);
  std::optional<std::string> bytes = from_hex(id.first);
  std::optional<Plan> plan = parse_plan(id.rest);
  if (!bytes || bytes->size() != kIdBytes || !plan || start.first_rank >= start.ranks) return {};
  start.id = std::move(*bytes);
  start.plan = std::move(*plan);
  return start;
}

std::string result_line(const Result& result) {
  return "result " + std::to_string(result.row) + " " + std::to_string(result.rank) + " " +
         std::to_string(result.nanoseconds) + " " +
         (result.wrong ? std::to_string(*result.wrong) : "-");
}

std::optional<Result> parse_result(std::string_view line) {
  Result result;
  const Words words = split_word(line);
  std::string_view rest = words.rest;
  if (words.first != "result" || !take(rest, result.row) || !take(rest, result.rank) ||
      !take(rest, result.nanoseconds))
    return {};
  if (rest == "-") return result;
  std::uint64_t wrong = 0;
  if (!take(rest, wrong) || !rest.empty()) return {};
  result.wrong = wrong;
  return result;
}

std::vector<std::string> link_lines(const topology::Machine& machine) {
  std::vector<std::string> lines;
  for (const topology::Gpu& gpu : machine.gpus) {
    const topology::PciDevice* device = machine.device(gpu.pci);
    if (device == nullptr || !machine.nvlinks_known) continue;
    std::string line = "links " + device->address + " " + std::to_string(gpu.capability) + " " +
                       std::to_string(gpu.nvlinks_active) + " " + std::to_string(gpu.c2c_links) +
                       " " + std::to_string(static_cast<std::uint64_t>(gpu.c2c_megabytes)) + " ";
    for (std::size_t i = 0; i < gpu.nvlinks.size(); ++i)
      line += (i == 0 ? "" : ",") + std::to_string(gpu.nvlinks[i]);
    lines.push_back(line);
  }
  return lines;
}

bool add_links(topology::Machine& machine, std::string_view line) {
  const Words words = split_word(line);
  const Words address = split_word(words.rest);
  std::string_view rest = address.rest;
  topology::Gpu said;
  std::uint64_t megabytes = 0;
  if (words.first != "links" || !take(rest, said.capability) || !take(rest, said.nvlinks_active) ||
      !take(rest, said.c2c_links) || !take(rest, megabytes))
    return false;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    std::string_view part = rest.substr(0, comma);
    int links = 0;
    if (!take(part, links)) return false;
    said.nvlinks.push_back(links);
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
  }
  for (topology::Gpu& gpu : machine.gpus) {
    const topology::PciDevice* device = machine.device(gpu.pci);
    if (device == nullptr || device->address != address.first ||
        said.nvlinks.size() != machine.gpus.size())
      continue;
    if (said.capability > 0) gpu.capability = said.capability;
    gpu.nvlinks = said.nvlinks;
    gpu.nvlinks_active = said.nvlinks_active;
    gpu.c2c_links = said.c2c_links;
    gpu.c2c_megabytes = static_cast<double>(megabytes);
    machine.nvlinks_known = true;
    return true;
  }
  return false;
}

}  // namespace ncclscope::cli::probe
