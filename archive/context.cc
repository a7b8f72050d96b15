// SPDX-License-Identifier: Apache-2.0
//
// A description is {u8 kind, varint id, varint bytes, fields}; a field {varint key, varint bytes,
// bytes}. Text is as it is, numbers are varints (signed ones zigzag first). One list of fields per
// kind serves both directions; keys are only appended.
#include "archive/context.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

#include "archive/format.h"
#include "archive/varint.h"

namespace ncclscope::archive {
namespace {

template <typename Job, typename Visit>
void visit_fields(Job& job,
                  Visit&& visit) requires std::is_same_v<std::remove_const_t<Job>, archive::Job> {
  visit(1, job.job_id);
  visit(2, job.cluster);
  visit(3, job.user);
  visit(4, job.partition);
  visit(5, job.account);
  visit(6, job.job_name);
  visit(7, job.array_task);
  visit(8, job.run);
  visit(9, job.kubernetes_namespace);
  visit(10, job.pod);
  visit(11, job.identity_source);
  visit(12, job.uid);
  visit(13, job.node);
  visit(14, job.producer);
}

template <typename Process, typename Visit>
void visit_fields(Process& process, Visit&& visit) requires
    std::is_same_v<std::remove_const_t<Process>, archive::Process> {
  visit(1, process.session_id);
  visit(2, process.pid);
  visit(3, process.uid);
  visit(4, process.claimed);
  visit(5, process.hostname);
  visit(6, process.program);
  visit(7, process.global_rank);
  visit(8, process.local_rank);
  visit(9, process.step);
  visit(10, process.plugin_version);
  visit(11, process.nccl_version);
  visit(12, process.interface_version);
  visit(13, process.start_time_ns);
  visit(14, process.realtime_offset_ns);
}

template <typename Communicator, typename Visit>
void visit_fields(Communicator& communicator, Visit&& visit) requires
    std::is_same_v<std::remove_const_t<Communicator>, archive::Communicator> {
  visit(2, communicator.id);
  visit(3, communicator.comm);
  visit(4, communicator.hash_known);
  visit(5, communicator.name);
  visit(6, communicator.dimension);
  visit(7, communicator.nranks);
  visit(8, communicator.nnodes);
  visit(9, communicator.rank);
  visit(10, communicator.cuda_device);
  visit(11, communicator.gpu);
  visit(12, communicator.gpu_uuid);
  visit(13, communicator.pci_bus_id);
  visit(14, communicator.init_time_ns);
}
constexpr std::uint32_t kProcessOfCommunicator = 1;  // key

void put_field(std::vector<std::byte>& out, std::uint32_t key, std::span<const std::byte> bytes) {
  put_varint(out, key);
  put_varint(out, bytes.size());
  out.insert(out.end(), bytes.begin(), bytes.end());
}

template <typename Number>
std::uint64_t to_number(Number value) {
  if constexpr (std::is_signed_v<Number>) return zigzag(value);
  return static_cast<std::uint64_t>(value);
}

/// Text and numbers that are not what they would be without being written.
struct FieldWriter {
  std::vector<std::byte>& out;

  void operator()(std::uint32_t key, const std::string& text) const {
    if (text.empty()) return;
    const std::size_t length = std::min<std::size_t>(text.size(), kMaxTextBytes);
    put_field(out, key, {reinterpret_cast<const std::byte*>(text.data()), length});
  }
  template <typename Number>
  requires std::is_integral_v<Number>
  void operator()(std::uint32_t key, Number value) const {
    std::vector<std::byte> bytes;
    put_varint(bytes, to_number(value));
    put_field(out, key, bytes);
  }
};

/// Takes the field's value if the key is the member's.
struct FieldReader {
  std::uint32_t wanted;
  std::span<const std::byte> bytes;
  bool ok = true;

  void operator()(std::uint32_t key, std::string& text) {
    if (key != wanted) return;
    if (bytes.size() > kMaxTextBytes) {
      ok = false;
      return;
    }
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  template <typename Number>
  requires std::is_integral_v<Number>
  void operator()(std::uint32_t key, Number& value) {
    if (key != wanted) return;
    Cursor cursor(bytes);
    const std::uint64_t number = cursor.varint();
    ok = cursor.ok() && cursor.at_end();
    if constexpr (std::is_same_v<Number, bool>) {
      value = number != 0;
    } else if constexpr (std::is_signed_v<Number>) {
      const std::int64_t wide = unzigzag(number);
      ok = ok && wide >= std::numeric_limits<Number>::min() &&
           wide <= std::numeric_limits<Number>::max();
      value = static_cast<Number>(wide);
    } else {
      ok = ok && number <= std::numeric_limits<Number>::max();
      value = static_cast<Number>(number);
    }
  }
};

void put_description(std::vector<std::byte>& out, ContextKind kind, std::uint32_t id,
                     std::span<const std::byte> fields) {
  out.push_back(static_cast<std::byte>(kind));
  put_varint(out, id);
  put_varint(out, fields.size());
  out.insert(out.end(), fields.begin(), fields.end());
}

template <typename Value>
void put_value(std::vector<std::byte>& out, ContextKind kind, std::uint32_t id, const Value& value,
               std::vector<std::byte> fields = {}) {
  visit_fields(value, FieldWriter{fields});
  put_description(out, kind, id, fields);
}

/// `extra` gets a field that the list does not have.
template <typename Value, typename Extra>
bool read_value(std::span<const std::byte> fields, Value& value, Extra&& extra) {
  Cursor cursor(fields);
  while (!cursor.at_end()) {
    const std::uint64_t key = cursor.varint();
    const std::uint64_t length = cursor.varint();
    const std::span<const std::byte> bytes = cursor.bytes(length);
    if (!cursor.ok()) return false;
    if (key > std::numeric_limits<std::uint32_t>::max()) continue;
    FieldReader reader{static_cast<std::uint32_t>(key), bytes};
    visit_fields(value, reader);
    extra(reader);
    if (!reader.ok) return false;
  }
  return true;
}

}  // namespace

void encode(const Job& job, std::vector<std::byte>& out) {
  put_value(out, ContextKind::kJob, 0, job);
}

void encode(std::uint32_t id, const Process& process, std::vector<std::byte>& out) {
  put_value(out, ContextKind::kProcess, id, process);
}

void encode(std::uint32_t id, std::uint32_t process, const Communicator& communicator,
            std::vector<std::byte>& out) {
  std::vector<std::byte> fields;
  FieldWriter{fields}(kProcessOfCommunicator, process);
  put_value(out, ContextKind::kCommunicator, id, communicator, std::move(fields));
}

bool decode_contexts(std::span<const std::byte> payload, ContextSink& sink) {
  constexpr std::uint32_t kAnyId = std::numeric_limits<std::uint32_t>::max();
  Cursor cursor(payload);
  while (!cursor.at_end()) {
    const auto kind = static_cast<ContextKind>(cursor.byte());
    const std::uint32_t id = cursor.varint32(kAnyId);
    const std::uint64_t length = cursor.varint();
    const std::span<const std::byte> fields = cursor.bytes(length);
    if (!cursor.ok()) return false;
    const auto nothing = [](FieldReader&) {};
    switch (kind) {
      case ContextKind::kJob: {
        Job job;
        if (!read_value(fields, job, nothing) || !sink.job(std::move(job))) return false;
        break;
      }
      case ContextKind::kProcess: {
        Process process;
        if (!read_value(fields, process, nothing) || !sink.process(id, std::move(process)))
          return false;
        break;
      }
      case ContextKind::kCommunicator: {
        Communicator communicator;
        std::uint32_t process = 0;
        const auto process_of = [&](FieldReader& reader) {
          reader(kProcessOfCommunicator, process);
        };
        if (!read_value(fields, communicator, process_of) ||
            !sink.communicator(id, process, std::move(communicator))) {
          return false;
        }
        break;
      }
      default:
        break;  // of a later version
    }
  }
  return true;
}

}  // namespace ncclscope::archive
