// SPDX-License-Identifier: Apache-2.0
//
// What is in the segments below a folder, as JSON for tests/e2e/archive/archive.py: sums of
// operations, the newest progress of each rank, and how many records of every other kind.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "archive/reader.h"

int main(int argc, char** argv) {
  namespace archive = ncclscope::archive;
  namespace model = ncclscope::model;
  std::vector<std::filesystem::path> segments;
  const archive::Status found = archive::find_segments(argc > 1 ? argv[1] : ".", segments);
  if (!found.ok()) {
    std::fprintf(stderr, "%s\n", found.message().c_str());
    return 2;
  }
  std::map<std::tuple<std::string, int, std::string>, std::pair<std::uint64_t, std::uint64_t>> sums;
  std::map<std::pair<std::string, int>, ncclscope::wire::Progress> progress;
  std::set<std::string> jobs;
  std::size_t network = 0, channels = 0, finalizes = 0, books = 0, cut = 0, bytes = 0;
  for (const auto& path : segments) {
    archive::Status status;
    auto reader = archive::Reader::open(path, status);
    if (!reader) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      return 2;
    }
    while (const archive::Batch* batch = reader->next()) {
      for (const auto& row : batch->operations) {
        auto& sum = sums[{row.source->communicator->comm, row.source->communicator->rank,
                          std::string(model::name(row.function()))}];
        ++sum.first;
        sum.second += row.bytes();
        jobs.insert(row.source->job->job_id);
      }
      for (const auto& row : batch->progress) {
        progress[{row.source->communicator->comm, row.source->communicator->rank}] = row.record;
      }
      network += batch->network.size();
      channels += batch->channels.size();
      finalizes += batch->finalizes.size();
      books += batch->books.size();
    }
    if (!reader->status().ok()) {
      std::fprintf(stderr, "%s\n", reader->status().message().c_str());
      return 2;
    }
    if (reader->truncated()) ++cut;
    bytes += std::filesystem::file_size(path);
  }
  std::cout << "{\"operations\":[";
  const char* separator = "";
  for (const auto& [key, sum] : sums) {
    std::cout << separator << "{\"comm\":\"" << std::get<0>(key)
              << "\",\"rank\":" << std::get<1>(key) << ",\"collective\":\"" << std::get<2>(key)
              << "\",\"count\":" << sum.first << ",\"bytes\":" << sum.second << '}';
    separator = ",";
  }
  std::cout << "],\"progress\":[";
  separator = "";
  for (const auto& [key, p] : progress) {
    const bool open = p.oldest_index != ~std::uint64_t{0};
    std::cout << separator << "{\"comm\":\"" << key.first << "\",\"rank\":" << key.second
              << ",\"enqueued\":" << p.collectives_enqueued
              << ",\"completed\":" << p.collectives_completed
              << ",\"oldest_index\":" << (open ? static_cast<std::int64_t>(p.oldest_index) : -1)
              << ",\"signature\":" << p.oldest_signature << '}';
    separator = ",";
  }
  std::cout << "],\"jobs\":[";
  separator = "";
  for (const auto& job : jobs) {
    std::cout << separator << '"' << job << '"';
    separator = ",";
  }
  std::cout << "],\"network\":" << network << ",\"channels\":" << channels
            << ",\"finalizes\":" << finalizes << ",\"books\":" << books << ",\"cut\":" << cut
            << ",\"segments\":" << segments.size() << ",\"bytes\":" << bytes << "}\n";
  return 0;
}
